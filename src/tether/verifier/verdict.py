"""What a verifier says of an answer: a verdict and how it came about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["upstream", "robust", "strict-int"]
"""``upstream``: as the prime_math score of the paper's rewards judges; ``robust``: by mathematics; ``strict-int``: one
integer from 0 to 999, as AIME asks."""
Status = Literal["correct", "wrong", "no_answer", "parse_error", "timeout", "too_large"]
"""``no_answer``: nothing was found to grade; ``parse_error``: what was found could not be read; ``timeout``: the limit
of time or memory was reached; ``too_large``: refused unread, for its value would be too large to compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one answer.

    >>> Verdict(status="correct", extracted="1/2", stage="boxed:number").is_correct
    True
    """

    status: Status
    extracted: str | None
    """What was taken to be the final answer; ``None`` where there was none."""
    stage: str
    """Where the answer was found and what decided, as ``boxed:number`` or ``whole:text``; empty where nothing did."""
    policy: str = ""
    """The named option that decided, where users may disagree: ``percent``, ``order``, ``rounding``, ..."""

    @property
    def is_correct(self) -> bool:
        """Whether it is right. Everything but ``correct`` is not, and its status says why."""
        return self.status == "correct"
