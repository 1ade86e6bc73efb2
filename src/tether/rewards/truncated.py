"""Minus one for an answer that was cut."""

from __future__ import annotations

from dataclasses import dataclass

from tether.records import Answer, Grade, Prompt
from tether.registry import REWARDS


@REWARDS.register("truncated")
@dataclass(frozen=True)
class Truncated:
    """``-1`` for an answer that was cut at the most tokens allowed, else ``0``; the status says which.

    Ours. For what an answer says before it was cut, let another part judge it.

    >>> prompt = Prompt(id="p", text="?", token_ids=(1,), reference="3")
    >>> [Truncated()(prompt, Answer("3", 9, is_cut)).value for is_cut in (False, True)]
    [0.0, -1.0]
    """

    def __call__(self, prompt: Prompt, answer: Answer) -> Grade:
        """-1.0 or 0.0."""
        return Grade(value=-1.0, status="cut") if answer.is_cut else Grade(value=0.0, status="ended")
