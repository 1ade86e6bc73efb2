"""Experts beside an adapter that is not theirs, on processors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def plain_experts() -> Iterator[None]:
    """Let a model that is built inside give its experts the kernel that they have without adapters.

    As soon as adapters are on, vLLM 0.32 gives experts a kernel of Triton, which processors do not have, also where no
    adapter may touch an expert. Ours touch none.
    """
    from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig

    made = FusedMoEConfig.__init__

    def without(self: Any, *args: Any, **options: Any) -> None:
        made(self, *args, **{**options, "is_lora_enabled": False})

    with patch.object(FusedMoEConfig, "__init__", without):
        yield
