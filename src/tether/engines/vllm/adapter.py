"""Published adapters as vLLM takes them: beside a base that stays, through a folder as peft writes it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from tether.engines.fitting import check_fits
from tether.engines.vllm.core import Core
from tether.errors import ConfigError
from tether.models.loading import DTYPES, load_model
from tether.models.lora import BASE, Lora, adapt, check_base, published, save_adapter

RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Most ranks that vLLM 0.32 can be opened for."""


class Adapter:
    """Writes each adapter that arrives where vLLM reads it, once it is known to fit.

    The base is read once more than vLLM reads it, for its fingerprint: in the engine's number format, as it stands in
    the files that vLLM has it from, and with which the trainer's is compared at each load.

    Args:
        source: of the model.
        lora: rank, scale and layers.
        dtype: the engine's.
    """

    def __init__(self, source: str, lora: Lora, dtype: str) -> None:
        if lora.rank > RANKS[-1]:
            raise ConfigError(
                f"model.lora_rank must be at most {RANKS[-1]} for vLLM; got {lora.rank}; take engine.kind = 'torch' "
                "for more"
            )
        model = load_model(source, dtype=dtype).model
        adapt(model, lora, dtype=DTYPES[dtype])
        base = model.get_buffer(BASE)
        self._model = model.to("meta")
        self._model.register_buffer(BASE, base, persistent=False)
        self._rank = lora.rank

    def arguments(self) -> dict[str, Any]:
        """What vLLM must be opened with: one adapter, on these layers."""
        layers = {name.partition(".lora_")[0].rpartition(".")[2] for name in published(self._model) if name != BASE}
        return {
            "enable_lora": True,
            "max_loras": 1,
            "max_lora_rank": next(rank for rank in RANKS if rank >= self._rank),
            "lora_target_modules": sorted(layers),
        }

    def check(self, received: Mapping[str, Tensor]) -> None:
        """Refuse an adapter of another shape, or of another base."""
        check_fits(published(self._model), received)
        check_base(self._model, received)

    def put(self, received: Mapping[str, Tensor], core: Core) -> None:
        """Have vLLM replace the adapter that it holds by this one."""
        with tempfile.TemporaryDirectory(prefix="tether-adapter-") as place:
            save_adapter(self._model, folder := Path(place) / "adapter", received)
            core.replace_adapter(folder)
