"""A penalty that begins a stretch before the longest length allowed, and grows over it."""

from __future__ import annotations

from dataclasses import dataclass

from tether.errors import ConfigError
from tether.records import Answer, Grade, Prompt
from tether.registry import REWARDS


@REWARDS.register("overlong")
@dataclass(frozen=True)
class Overlong:
    """``0`` up to ``limit - buffer`` tokens; from there down to ``-1`` at ``limit``, on a straight line; ``-1`` beyond.

    For an answer of ``n`` tokens, its end-of-sequence token included, the soft overlong punishment of DAPO
    (arXiv:2503.14476, Eq. 13), there with ``limit`` 20480 and ``buffer`` 4096::

        0                                  n <= limit - buffer
        ((limit - buffer) - n) / buffer    limit - buffer < n <= limit
        -1                                 limit < n

    It counts tokens alone: an answer that was cut before ``limit`` has what its length says, so set ``limit`` to
    ``engine.max_tokens`` unless you want otherwise. ``buffer = 0`` is a step: ``-1`` beyond ``limit``, else ``0``.

    >>> prompt = Prompt(id="p", text="?", token_ids=(1,), reference="3")
    >>> [Overlong(limit=100, buffer=20)(prompt, Answer("...", n)).value for n in (0, 80, 85, 100, 101)]
    [0.0, 0.0, -0.25, -1.0, -1.0]
    """

    limit: int
    """Tokens of the longest answer that is still told apart from longer ones."""
    buffer: int
    """Tokens before ``limit`` over which the penalty grows."""

    def __post_init__(self) -> None:
        if self.limit < 1 or not 0 <= self.buffer <= self.limit:
            raise ConfigError(
                f"the reward 'overlong' has limit >= 1 and buffer in 0 .. limit, both in tokens; got limit "
                f"{self.limit} and buffer {self.buffer}"
            )

    def __call__(self, prompt: Prompt, answer: Answer) -> Grade:
        """A number from -1 to 0."""
        over = answer.num_tokens - (self.limit - self.buffer)
        if over <= 0:
            return Grade(value=0.0)
        return Grade(value=-1.0 if over > self.buffer else -over / self.buffer)
