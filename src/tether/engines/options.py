"""What every kind of engine can be asked: the fields that all ``[engine]`` tables have."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tether.errors import ConfigError
from tether.models.loading import DTYPES
from tether.records import Truncation


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How an engine samples; each kind's table adds what is its own.

    >>> SamplingOptions(top_p=0.9).truncation
    Truncation(top_k=0, top_p=0.9, min_p=0.0)
    >>> SamplingOptions(temperature=-1.0)
    Traceback (most recent call last):
    tether.errors.ConfigError: engine.temperature must be finite and at least 0 (0 is greedy); got -1.0
    """

    dtype: str = "bfloat16"
    """Number format of its weights and arithmetic: bfloat16 or float32. Another one than the trainer's gives
    a real mismatch between engine and trainer."""
    temperature: float = 1.0
    """Divides the logits when rollouts are sampled."""
    max_tokens: int = 32
    """Most tokens of a completion; one that reaches it ends with ``finish = "length"``."""
    max_rows: int = 512
    """Most completions decoded together; more wait until rows are free."""
    top_k: int = 0
    """Samples are drawn among so many of the most probable ids; 0: all."""
    top_p: float = 1.0
    """Samples are drawn among the fewest of the most probable ids that have this probability together; 1: all."""
    min_p: float = 0.0
    """Samples are drawn among ids at least this times as probable as the most probable; 0: all."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"engine.dtype must be one of {', '.join(sorted(DTYPES))}; got {self.dtype!r}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"engine.temperature must be finite and at least 0 (0 is greedy); got {self.temperature}")
        if self.temperature and not 1e-6 <= self.temperature <= 1e3:
            raise ConfigError(f"engine.temperature must be 0 (greedy) or lie in 1e-6 .. 1e3; got {self.temperature}")
        self.check_counts(max_tokens=10**7, max_rows=10**6)
        if not 0 <= self.top_k <= 10**7:
            raise ConfigError(f"engine.top_k must be 0 (all ids) or at most {10**7}; got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"engine.top_p must lie in (0, 1] (1: all ids); got {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise ConfigError(f"engine.min_p must lie in 0 .. 1 (0: all ids); got {self.min_p}")

    def check(self) -> None:
        """Nothing else must be set."""

    @property
    def truncation(self) -> Truncation:
        """What rollouts are sampled among."""
        return Truncation(top_k=self.top_k, top_p=self.top_p, min_p=self.min_p)

    def check_counts(self, **most: int) -> None:
        """Raise ``ConfigError`` unless each of these fields lies between 1 and what is given."""
        for name, largest in most.items():
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"engine.{name} must be at least 1; got {value}")
            if value > largest:
                raise ConfigError(f"engine.{name} must be at most {largest}; got {value}")
