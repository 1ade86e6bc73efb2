"""The ``[engine]`` table of kind ``vllm``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tether.engines.options import SamplingOptions
from tether.engines.room import check_room
from tether.engines.vllm.transfer import TRANSFERS
from tether.errors import ConfigError
from tether.models.lora import Lora
from tether.ports import Clock, EngineCapabilities, WeightStore
from tether.registry import ENGINES

if TYPE_CHECKING:
    from tether.engines.vllm.engine import VllmEngine

TEMPERATURES = (0.01, 2.0)
"""Below the first vLLM samples at it and says so in a log alone; above the second it refuses to."""


@ENGINES.register("vllm")
@dataclass(frozen=True, kw_only=True)
class Vllm(SamplingOptions):
    """vLLM (https://docs.vllm.ai), in this process: paged attention, continuous batching, its own kernels.

    Its loop is driven from outside, one step a token, so that the boundary between two versions is exact. Weights are
    reloaded in place, through vLLM's own loader, between two steps. Prompts are hit in the prefix cache only where the
    same publication computed them. With ``dtype = "float32"`` it agrees with the trainer's model to 1e-4 nats.

    >>> Vllm(max_tokens=16).transfer
    'reload'
    >>> Vllm(temperature=0.001)
    Traceback (most recent call last):
    tether.errors.ConfigError: engine.temperature must be 0 (greedy) or lie in 0.01 .. 2 for vLLM; got 0.001
    """

    kv_cache_gib: float = 0.0
    """Memory of the key-value cache, in GiB; 0: 1 GiB on processors, as much as vLLM takes by itself of a GPU. Where it
    is full vLLM sends rows back and computes them anew."""
    context: int = 0
    """Most tokens of prompt and completion together; 0: the model's own limit. The cache must hold one such row."""
    prefix_cache: bool = True
    """Whether what several prompts begin with is computed once."""
    eager: bool = True
    """Whether the model runs as it is written; false: compiled and with CUDA graphs, which takes long to start."""

    transfer: str = "reload"
    """How weights get into vLLM: ``reload``, through its loader, all at once; or through its weight-transfer API,
    ``handover`` inside this process or ``nccl`` between two of its GPUs (not run on hardware yet)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.transfer not in TRANSFERS:
            raise ConfigError(f"engine.transfer must be one of {', '.join(TRANSFERS)}; got {self.transfer!r}")
        least, most = TEMPERATURES
        if self.temperature and not least <= self.temperature <= most:
            raise ConfigError(
                f"engine.temperature must be 0 (greedy) or lie in {least:g} .. {most:g} for vLLM; got "
                f"{self.temperature}"
            )
        check_room(self.kv_cache_gib)
        if not 0 <= self.context <= 10**8:
            raise ConfigError(f"engine.context must be 0 (the model's own) or at most {10**8}; got {self.context}")
        if 0 < self.context <= self.max_tokens:
            raise ConfigError(
                f"engine.context must hold a prompt and a completion of engine.max_tokens = {self.max_tokens}; got "
                f"{self.context}: raise it, or set 0 for the model's own"
            )

    @property
    def capabilities(self) -> EngineCapabilities:
        """All but entropy."""
        return EngineCapabilities(
            logp="processed",
            token_versions=True,
            alternatives=True,
            routing=True,
            truncation=True,
            kept=True,
            in_flight=("finish", "keep", "recompute", "restart"),
            lora=True,
            seeded=True,
            virtual_time=True,
            cpu=True,
        )

    def open(
        self, source: str, *, store: WeightStore, clock: Clock, device: str, lora: Lora | None = None
    ) -> VllmEngine:
        """Start vLLM with the model of ``source``; its weights have version -1 until the first ``load``."""
        from tether.engines.vllm.adapter import Adapter
        from tether.engines.vllm.core import open_core
        from tether.engines.vllm.engine import VllmEngine
        from tether.engines.vllm.quiet import quiet
        from tether.models.loading import load_skeleton

        skeleton = load_skeleton(source, dtype=self.dtype)
        if self.context > skeleton.context:
            raise ConfigError(
                f"engine.context must be 0 or at most the model's own, {skeleton.context}; got {self.context}"
            )
        adapter = None if lora is None else Adapter(source, lora, self.dtype)
        with quiet():
            core = open_core(skeleton, self, device, None if adapter is None else adapter.arguments())
        return VllmEngine(core, skeleton, self, store=store, clock=clock, adapter=adapter)
