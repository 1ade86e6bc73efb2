"""Temporary."""

from __future__ import annotations
from dataclasses import dataclass
from tether.registry import REWARDS


@REWARDS.register("exact")
@dataclass(frozen=True)
class Exact:
    """x

    >>> 1
    1
    """

    def __call__(self, prompt, response):
        return 1.0 if response.split(",")[-1].strip() == prompt.reference else 0.0
