"""Engine ``openai``: any server that runs and completes token ids in OpenAI's way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tether.engines.served.engine import ServedEngine
from tether.engines.served.look import kind_of, spoken_by
from tether.engines.served.openai_speech import OpenaiSpeech
from tether.engines.served.options import ServedOptions, refuse_adapter, servable_of
from tether.engines.served.process import Running
from tether.errors import ConfigError
from tether.models.loading import load_skeleton
from tether.models.lora import Lora
from tether.ports import Clock, EngineCapabilities, WeightStore
from tether.registry import ENGINES


@ENGINES.register("openai")
@dataclass(frozen=True, kw_only=True)
class Openai(ServedOptions):
    """A token-in, token-out server with ``/v1/completions`` and ``return_token_ids``.

    It tells no versions, so weights change only while nothing is under way, at ``reload_url``. Without that address it
    serves one version, the first: for looking at (``tether probe``), not for training.

    >>> Openai().capabilities.token_versions, Openai(reload_url="http://127.0.0.1:8000/reload").capabilities.token_versions
    (False, True)
    """

    model: str = ""
    """Name that the server serves the model by; empty: the first that it tells."""
    reload_url: str = ""
    """Asked by POST with ``{"weights_path": folder, "version": label}``; it answers once the server holds the weights
    and has dropped its caches."""
    logp: Literal["raw", "processed"] = "raw"
    """What its log-probs are of: the model (raw), or the distribution sampled from; looked at where it matters."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.logp not in ("raw", "processed"):
            raise ConfigError(f"engine.logp must be raw or processed; got {self.logp!r}")
        if self.reload_url and not self.reload_url.startswith(("http://", "https://")):
            raise ConfigError(f"engine.reload_url must begin with http:// or https://; got {self.reload_url!r}")

    @property
    def capabilities(self) -> EngineCapabilities:
        """What the form of the endpoint allows."""
        return EngineCapabilities(logp=self.logp, token_versions=bool(self.reload_url), truncation=True, cpu=True)

    def check(self) -> None:
        """A server must be named."""
        if not self.url:
            raise ConfigError("engine 'openai' asks a server that runs: set engine.url, such as http://127.0.0.1:8000")

    def open(
        self, source: str, *, store: WeightStore, clock: Clock, device: str, lora: Lora | None = None
    ) -> ServedEngine:
        """The server at ``url``, looked at."""
        refuse_adapter(lora, "openai")
        self.check()
        skeleton = load_skeleton(source, dtype=self.dtype)
        with spoken_by("openai", self.url):
            served = self.looked("/v1/models")["data"]
            model = self.model or served[0]["id"]
        if self.logp == "processed" and not (self.temperature in (0.0, 1.0) and self.truncation.is_none):
            self._check_processed(model)
        limits = [entry.get("max_model_len") for entry in served if entry["id"] == model]
        client = self.client(lambda: self.url)
        reload = self.client(lambda: self.reload_url) if self.reload_url else None
        eos_ids = tuple(skeleton.eos_ids)
        speech = OpenaiSpeech(client, self.capabilities, model=model, eos_ids=eos_ids, reload=reload)
        servable = servable_of(skeleton, limits[0] if limits else None)
        return self.engine(client, speech, Running(self.url, self.start_s), self.folders(store, skeleton), servable)

    def _check_processed(self, model: str) -> None:
        def top(prompt: tuple[int, ...], temperature: float, top_k: int) -> Sequence[float]:
            asked = {"model": model, "prompt": list(prompt), "max_tokens": 1, "temperature": temperature, "logprobs": 2}
            answer = self.looked("/v1/completions", {**asked, **({"top_k": top_k} if top_k else {})})
            told = answer["choices"][0]["logprobs"]
            return [told["token_logprobs"][0], *sorted(told["top_logprobs"][0].values(), reverse=True)[:2]]

        kind = kind_of(top)
        if kind == "raw" or (kind == "tempered" and not self.truncation.is_none):
            raise ConfigError(
                f"engine.logp is processed, and the log-probs of the server at {self.url} are {kind}: those of "
                f"{'the model' if kind == 'raw' else 'all ids'}; have it report processed ones, or set "
                "engine.temperature = 1 and switch truncation off"
            )
