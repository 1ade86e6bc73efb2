"""A reward that moves with the length of an answer along half a cosine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tether.errors import ConfigError
from tether.records import Answer, Grade, Prompt
from tether.registry import REWARDS


@REWARDS.register("cosine")
@dataclass(frozen=True)
class Cosine:
    """From ``at_zero`` for an answer without tokens to ``at_limit`` for one of ``limit``, along half a cosine.

    For ``n`` tokens, the end-of-sequence token included, the cosine reward of arXiv:2502.03373::

        at_limit + (at_zero - at_limit) (1 + cos(pi n / limit)) / 2    n < limit, and not cut
        exceeded                                                       n >= limit, or cut

    The paper has one pair of ends for right answers, that falls, so that short ones are better, and one for wrong ones,
    that rises, so that longer thought is less bad: two parts here, one ``when = "right"`` and one ``when = "wrong"``.
    Its code takes an answer as exceeding 16 tokens before the limit; here it is at the limit.

    >>> prompt = Prompt(id="p", text="?", token_ids=(1,), reference="3")
    >>> right = Cosine(limit=100, at_zero=2.0, at_limit=1.0, exceeded=-10.0)
    >>> [round(right(prompt, Answer("...", n)).value, 3) for n in (0, 25, 50, 99, 100)]
    [2.0, 1.854, 1.5, 1.0, -10.0]
    """

    limit: int
    """Tokens of an answer that has no room left."""
    at_zero: float
    """For an answer without tokens."""
    at_limit: float
    """What it comes near to at ``limit``."""
    exceeded: float = 0.0
    """For an answer that was cut, or has ``limit`` tokens or more."""

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ConfigError(f"limit of the reward 'cosine' must be at least 1 token; got {self.limit}")

    def __call__(self, prompt: Prompt, answer: Answer) -> Grade:
        """A number between the two ends, or ``exceeded``."""
        if answer.is_cut or answer.num_tokens >= self.limit:
            return Grade(value=self.exceeded, status="exceeded")
        share = (1 + math.cos(math.pi * answer.num_tokens / self.limit)) / 2
        return Grade(value=self.at_limit + (self.at_zero - self.at_limit) * share, status="within")
