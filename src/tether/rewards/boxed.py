"""One if an answer puts its result in a box, else zero."""

from __future__ import annotations

from dataclasses import dataclass

from tether.errors import ConfigError
from tether.records import Answer, Grade, Prompt
from tether.registry import REWARDS
from tether.verifier.extraction import boxes


@REWARDS.register("boxed")
@dataclass(frozen=True)
class Boxed:
    r"""``1`` if the answer has a closed ``\boxed{...}`` with something in it, and no more of them than ``most``; else
    ``0``.

    A format reward in the manner of arXiv:2501.12948 (Sec. 2.2.2), for answers in LaTeX. Every ``\boxed{`` or
    ``\fbox{`` counts, also one inside another; braces must balance, and those after a backslash do not count. What is
    in the last box is ``extracted``; whether it is right is not asked. The status is ``fits``, ``missing``,
    ``unclosed``, ``empty`` or ``several``.

    >>> prompt = Prompt(id="p", text="?", token_ids=(1,), reference="3")
    >>> texts = r"so \boxed{\frac{1}{2}}.", "so 3", r"\boxed{3", r"\boxed{ }", r"\boxed{3} or \boxed{4}"
    >>> [(g.value, g.status) for g in (Boxed()(prompt, Answer(text)) for text in texts)]
    [(1.0, 'fits'), (0.0, 'missing'), (0.0, 'unclosed'), (0.0, 'empty'), (0.0, 'several')]
    """

    most: int = 1
    """Boxes that an answer may have."""

    def __post_init__(self) -> None:
        if not 1 <= self.most <= 100:
            raise ConfigError(f"most of the reward 'boxed' must lie in 1 .. 100 boxes; got {self.most}")

    def __call__(self, prompt: Prompt, answer: Answer) -> Grade:
        """1.0 or 0.0, with what is in the last box."""
        text = answer.text
        found = [box for box in boxes(text) if box.inside is None or text[box.end - 1] == "}"]
        if len(found) > self.most:
            return Grade(value=0.0, status="several")
        inside = [None if box.inside is None else text[box.inside] for box in found]
        if not inside:
            return Grade(value=0.0, status="missing")
        last = inside[-1]
        if last is None or None in inside:
            return Grade(value=0.0, status="unclosed")
        if not all(part and part.strip() for part in inside):
            return Grade(value=0.0, status="empty")
        return Grade(value=1.0, status="fits", extracted=last.strip())
