"""One if the last value of an answer is the right one, else zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tether.records import Answer, Grade, Prompt
from tether.registry import REWARDS


@REWARDS.register("exact")
@dataclass(frozen=True)
class Exact:
    """``1`` if what follows the last comma of the response is the reference, character by character; else ``0``.

    Spaces around it do not count. The response comes without its end-of-sequence token; a completion that never
    ended is not asked about.

    >>> prompt = Prompt(id="arithmetic/train/0/0", text="4+3*5-2=", token_ids=(6,), reference="5")
    >>> [Exact()(prompt, Answer(text)).value for text in ("0,0,5", "0,0,4", "0,0,5,")]
    [1.0, 0.0, 0.0]
    """

    needs_end: ClassVar[bool] = True
    """A completion that was cut is wrong, whatever it says so far."""

    def __call__(self, prompt: Prompt, answer: Answer) -> Grade:
        """1.0 or 0.0, with the value that was compared."""
        found = last_value(answer.text)
        return Grade(value=float(found == prompt.reference), extracted=found)


def last_value(response: str) -> str:
    """What follows the last comma, without spaces around it; all of it where there is no comma.

    >>> last_value("0,0, 5"), last_value("12"), last_value("")
    ('5', '12', '')
    """
    return response.rsplit(",", 1)[-1].strip()
