"""Engine ``sglang``: a SGLang server that runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tether.engines.served.engine import ServedEngine
from tether.engines.served.look import kind_of
from tether.engines.served.options import ServedOptions, refuse_adapter, servable_of
from tether.engines.served.process import Running
from tether.engines.served.sglang_speech import SglangSpeech
from tether.errors import ConfigError
from tether.models.loading import load_skeleton
from tether.models.lora import Lora
from tether.ports import Clock, EngineCapabilities, WeightStore
from tether.registry import ENGINES

_NO_CONTEXT: Final = 1 << 30


@ENGINES.register("sglang")
@dataclass(frozen=True, kw_only=True)
class Sglang(ServedOptions):
    """SGLang over HTTP, by its native endpoints. Unverified on hardware: written against the documented protocol and
    tested against a double of it.

    Log-probs count the temperature. Truncation needs a finite ``top_k``: only then does the server tell the kept ids,
    and log-probs renormalized over them.

    >>> Sglang(top_k=20, top_p=0.9).capabilities.kept
    True
    >>> Sglang(top_p=0.9)
    Traceback (most recent call last):
    tether.errors.ConfigError: SGLang tells what a truncated sample was drawn from under a finite top_k only; set \
engine.top_k beside top_p = 0.9, min_p = 0
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.truncation.is_none and not self.top_k:
            raise ConfigError(
                "SGLang tells what a truncated sample was drawn from under a finite top_k only; set engine.top_k "
                f"beside top_p = {self.top_p:g}, min_p = {self.min_p:g}"
            )

    @property
    def capabilities(self) -> EngineCapabilities:
        """By its documentation."""
        return EngineCapabilities(
            logp="processed",
            token_versions=True,
            alternatives=True,
            truncation=True,
            kept=True,
            in_flight=("finish", "keep", "recompute", "restart"),
        )

    def check(self) -> None:
        """A server must be named."""
        if not self.url:
            raise ConfigError("engine 'sglang' asks a server that runs: set engine.url, such as http://127.0.0.1:30000")

    def open(
        self, source: str, *, store: WeightStore, clock: Clock, device: str, lora: Lora | None = None
    ) -> ServedEngine:
        """The server at ``url``, looked at."""
        refuse_adapter(lora, "sglang")
        self.check()
        skeleton = load_skeleton(source, dtype=self.dtype)
        told = self.looked("/server_info")
        if (dtype := told.get("dtype", "auto")) not in ("auto", self.dtype):
            raise ConfigError(f"engine.dtype is {self.dtype}, and the server at {self.url} computes in {dtype}")
        can = self.capabilities
        if self.temperature not in (0.0, 1.0) and kind_of(self._top) == "raw":
            can = replace(can, logp="raw")
        client = self.client(lambda: self.url)
        servable = servable_of(skeleton, int(told.get("context_length") or _NO_CONTEXT))
        speech = SglangSpeech(client, can, tuple(skeleton.eos_ids))
        return self.engine(client, speech, Running(self.url, self.start_s), self.folders(store, skeleton), servable)

    def _top(self, prompt: tuple[int, ...], temperature: float, top_k: int) -> Sequence[float]:
        answer = self.looked(
            "/generate",
            {
                "input_ids": list(prompt),
                "sampling_params": {
                    "max_new_tokens": 1,
                    "temperature": temperature,
                    "top_k": top_k or -1,
                    "top_p": 1.0,
                },
                "return_logprob": True,
                "top_logprobs_num": 2,
            },
        )
        told = answer["meta_info"]
        return [told["output_token_logprobs"][0][0], *(top[0] for top in told["output_top_logprobs"][0])]
