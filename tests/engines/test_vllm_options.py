"""What the table of engine ``vllm`` refuses before vLLM is there."""

from __future__ import annotations

import warnings

import pytest

from tether.engines.room import cache_bytes
from tether.engines.vllm.options import Vllm
from tether.engines.vllm.quiet import quiet
from tether.errors import ConfigError
from tether.placement.inline import FreeClock
from tether.weights.memory import MemoryStore


def test_a_context_that_holds_no_prompt_beside_the_completion_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine\.max_tokens = 32; got 32: raise it"):
        Vllm(max_tokens=32, context=32)
    assert Vllm(max_tokens=32, context=33).context == 33


def test_a_context_beyond_the_models_own_is_refused_with_that() -> None:
    options = Vllm(max_tokens=32, context=10**6)
    with pytest.raises(ConfigError, match=r"at most the model's own, 512; got 1000000"):
        options.open("tiny-moe", store=MemoryStore("float32"), clock=FreeClock(), device="cpu")


def test_a_cache_of_next_to_nothing_is_not_the_default() -> None:
    assert cache_bytes(1e-12, on_cpu=False) == 1


def test_what_others_deprecate_while_vllm_starts_is_not_shown_and_afterwards_it_is() -> None:
    with quiet():
        warnings.warn("old", FutureWarning, stacklevel=1)
    with pytest.warns(FutureWarning, match="old"):
        warnings.warn("old", FutureWarning, stacklevel=1)
