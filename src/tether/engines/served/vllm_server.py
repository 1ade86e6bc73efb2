"""Engine ``vllm-server``: a vLLM server, our own or one that runs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Final

from tether.engines import repacking
from tether.engines.room import cache_bytes, check_room
from tether.engines.served.engine import ServedEngine
from tether.engines.served.look import spoken_by
from tether.engines.served.options import ServedOptions, refuse_adapter, servable_of
from tether.engines.served.process import Own, Running
from tether.engines.served.vllm_speech import VllmSpeech
from tether.errors import ConfigError
from tether.models.loading import LoadedModel, load_skeleton
from tether.models.lora import Lora
from tether.ports import Clock, EngineCapabilities, WeightStore
from tether.registry import ENGINES

_LEAST_TEMPERATURE: Final = 0.01
"""vLLM takes anything between 0 and this for this."""
_MOST_TEMPERATURE: Final = 2.0
"""Its server refuses more."""
_LEAST_BATCHED: Final = 8192
"""Tokens of a step, where prompts are read whole."""
_NAME: Final = "tether"
_EXTENSION: Final = f"tether_repacking.{repacking.Reloading.__name__}"
_REPACKING: Final = repacking.Reloading.tether_reload.__name__
_OURS: Final = (
    "--model",
    "--served-model-name",
    "--dtype",
    "--host",
    "--port",
    "--max-num-seqs",
    "--kv-cache-memory-bytes",
    "--generation-config",
    "--logprobs-mode",
    "--enable-scale-out",
    "--return-sampling-mask",
    "--api-key",
)
_FLAGS: Final = (
    "VLLM_SERVER_DEV_MODE=1 python -m vllm.entrypoints.openai.api_server --enable-scale-out --logprobs-mode \
processed_logprobs"
)


@ENGINES.register("vllm-server")
@dataclass(frozen=True, kw_only=True)
class VllmServer(ServedOptions):
    """vLLM behind HTTP: started here and ended with this process, or one that runs at ``url``.

    Ids go in and out; each token comes with its log-prob under the distribution sampled from and, at the end, with the
    label of the weights that made it. Versions travel as folders that the server reads in place while it is paused.

    >>> VllmServer().capabilities.in_flight
    ('finish', 'keep', 'recompute', 'restart')
    >>> VllmServer(temperature=0.001)
    Traceback (most recent call last):
    tether.errors.ConfigError: a vLLM server samples at temperature 0 (greedy) or 0.01 .. 2; engine.temperature is 0.001
    >>> VllmServer(args=("--port=1",))
    Traceback (most recent call last):
    tether.errors.ConfigError: engine.args must leave to tether what tether sets; got --port
    """

    python: str = ""
    """Interpreter that has vLLM; empty: this one."""
    kv_cache_gib: float = 0.0
    """Memory of the key-value cache, in GiB; 0: 1 GiB on processors, as much as vLLM takes by itself of a GPU. Where it
    is full vLLM sends rows back and computes them anew."""
    args: tuple[str, ...] = ()
    """What else is said to the server at its start, such as --tensor-parallel-size=2."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.temperature == 0 or _LEAST_TEMPERATURE <= self.temperature <= _MOST_TEMPERATURE):
            raise ConfigError(
                f"a vLLM server samples at temperature 0 (greedy) or {_LEAST_TEMPERATURE} .. {_MOST_TEMPERATURE:g}; "
                f"engine.temperature is {self.temperature:g}"
            )
        if taken := [name for arg in self.args if (name := arg.partition("=")[0]) in _OURS]:
            raise ConfigError(f"engine.args must leave to tether what tether sets; got {taken[0]}")
        check_room(self.kv_cache_gib)
        if self.url and (self.python or self.args or self.kv_cache_gib):
            raise ConfigError(
                "engine.python, engine.kv_cache_gib and engine.args are of a server that is started here; drop them, "
                "or engine.url"
            )

    @property
    def capabilities(self) -> EngineCapabilities:
        """What each token was sampled among is told on a GPU, and under a ``top_k`` only."""
        return EngineCapabilities(
            logp="processed",
            token_versions=True,
            alternatives=True,
            truncation=True,
            kept=self.truncation.is_none or self.top_k > 0,
            in_flight=("finish", "keep", "recompute", "restart"),
            cpu=True,
        )

    def open(
        self, source: str, *, store: WeightStore, clock: Clock, device: str, lora: Lora | None = None
    ) -> ServedEngine:
        """A server that has begun to start, or one that runs and was looked at."""
        refuse_adapter(lora, "vllm-server")
        skeleton = load_skeleton(source, dtype=self.dtype)
        if not self.url:
            return self._own(skeleton, store, device)
        with spoken_by("vllm-server", self.url):
            return self._running(skeleton, store)

    def _own(self, skeleton: LoadedModel, store: WeightStore, device: str) -> ServedEngine:
        if not self.python and find_spec("vllm") is None:
            raise ConfigError(
                "engine 'vllm-server' starts a server of vLLM, which is not installed; pip install 'tether-rl[vllm]', "
                "or set engine.python to an interpreter that has it, or engine.url to that of a server that runs"
            )
        folders, on_cpu = self.folders(store, skeleton), device.startswith("cpu")
        own = Own(
            lambda port: self._command(skeleton, port, on_cpu=on_cpu),
            {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"},
            start_s=self.start_s,
            weights=folders.home,
        )
        shutil.copy(repacking.__file__, own.folder / f"{_EXTENSION.partition('.')[0]}.py")
        own.start()
        client = self.client(lambda: own.url)
        can = replace(self.capabilities, kept=self.capabilities.kept and not on_cpu)
        reload = _REPACKING if on_cpu else "reload_weights"
        speech = VllmSpeech(client, can, model=_NAME, eos_ids=tuple(skeleton.eos_ids), reload=reload)
        return self.engine(client, speech, own, folders, servable_of(skeleton))

    def _command(self, skeleton: LoadedModel, port: int, *, on_cpu: bool) -> Sequence[str]:
        return [
            self.python or sys.executable,
            *("-m", "vllm.entrypoints.openai.api_server"),
            f"--model={skeleton.source}",
            f"--served-model-name={_NAME}",
            f"--dtype={self.dtype}",
            "--host=127.0.0.1",
            f"--port={port}",
            f"--max-model-len={skeleton.context}",
            f"--max-num-seqs={self.max_rows}",
            *([f"--kv-cache-memory-bytes={room}"] if (room := cache_bytes(self.kv_cache_gib, on_cpu=on_cpu)) else []),
            "--max-logprobs=-1",
            "--generation-config=vllm",
            "--logprobs-mode=processed_logprobs",
            "--enable-scale-out",
            "--disable-uvicorn-access-log",
            *(self._on_cpu(skeleton) if on_cpu else []),
            *(["--return-sampling-mask"] if self.top_k and not on_cpu else []),
            *self.args,
        ]

    def _on_cpu(self, skeleton: LoadedModel) -> Sequence[str]:
        return [
            "--enforce-eager",
            f"--worker-extension-cls={_EXTENSION}",
            # rows have seeds, and a generator of a CPU cannot be put back, which reading a prompt in parts asks for
            "--no-enable-chunked-prefill",
            f"--max-num-batched-tokens={max(_LEAST_BATCHED, self.max_rows, skeleton.context)}",
        ]

    def _running(self, skeleton: LoadedModel, store: WeightStore) -> ServedEngine:
        told = self._looked("/server_info?config_format=json")
        config = told["vllm_config"]["model_config"]
        if config["logprobs_mode"] not in ("processed_logprobs", "raw_logprobs"):
            raise ConfigError(
                f"a server must report log-probs; that at {self.url} reports {config['logprobs_mode']}: start it with "
                f"{_FLAGS}"
            )
        if self.dtype not in str(config["dtype"]):
            raise ConfigError(
                f"engine.dtype is {self.dtype}, and the server at {self.url} computes in {config['dtype']}"
            )
        if is_on_cpu := told["vllm_config"]["device_config"]["device_type"] == "cpu":
            self._check_repacking(told["vllm_config"]["parallel_config"])
        is_raw = config["logprobs_mode"] == "raw_logprobs"
        can = replace(
            self.capabilities,
            logp="raw" if is_raw else "processed",
            kept=self.capabilities.kept and bool(config.get("return_sampling_mask")),
        )
        served = self._looked("/v1/models")["data"][0]
        client = self.client(lambda: self.url)
        reload = _REPACKING if is_on_cpu else "reload_weights"
        speech = VllmSpeech(client, can, model=served["id"], eos_ids=tuple(skeleton.eos_ids), reload=reload)
        servable = servable_of(skeleton, int(served["max_model_len"]))
        folders = self.folders(store, skeleton)
        return self.engine(client, speech, Running(self.url, self.start_s), folders, servable)

    def _check_repacking(self, parallel: dict[str, Any]) -> None:
        """On processors vLLM's own reload leaves experts unpacked and tied heads as they were."""
        if not str(parallel["worker_extension_cls"]).endswith(f".{repacking.Reloading.__name__}"):
            raise ConfigError(
                "a vLLM on processors forgets parts of the weights when it reloads them; start that at "
                f"{self.url} with --worker-extension-cls {repacking.__name__}.{repacking.Reloading.__name__}, "
                "where it can import tether; or leave out engine.url, and tether starts one"
            )

    def _looked(self, path: str) -> Any:
        try:
            return self.looked(path)
        except ConfigError as error:
            raise ConfigError(f"{error}; a server for training is started with {_FLAGS}") from error
