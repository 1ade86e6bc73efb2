"""One if an answer has its sections in tags, each once and in order, else zero."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tether.errors import ConfigError
from tether.records import Answer, Grade, Prompt
from tether.registry import REWARDS

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@REWARDS.register("tags")
@dataclass(frozen=True)
class Tags:
    """``1`` if each of ``names`` is opened once, closed once, and has something in it, in this order; else ``0``.

    The format reward of arXiv:2501.12948 (Sec. 2.2.2): ``<think>...</think><answer>...</answer>``. Tags are compared
    letter by letter. Outside of them nothing but white space may stand, unless ``text_outside``. What is in the last
    one is ``extracted``. The status is ``fits``, ``missing`` (a tag is not there), ``several`` (one is there more than
    once), ``order``, ``empty`` or ``outside``.

    >>> prompt = Prompt(id="p", text="?", token_ids=(1,), reference="3")
    >>> texts = "<think>1+2</think> <answer>3</answer>", "<think>1+2</think> 3", "<answer>3</answer><think>?</think>"
    >>> [(g.value, g.status) for g in (Tags()(prompt, Answer(text)) for text in texts)]
    [(1.0, 'fits'), (0.0, 'missing'), (0.0, 'order')]
    """

    names: tuple[str, ...] = ("think", "answer")
    """Of the tags, in order."""
    is_begun: bool = False
    """Whether the prompt ends with the first tag opened, as some chat templates do: then the answer does not."""
    text_outside: bool = False
    """Whether text may stand before, between and behind the tags."""

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) != len(self.names) or not all(map(_NAME.fullmatch, self.names)):
            raise ConfigError(
                f"names of the reward 'tags' must be different words of letters, digits, - and _; got "
                f"{list(self.names)}"
            )

    def __call__(self, prompt: Prompt, answer: Answer) -> Grade:
        """1.0 or 0.0, with what is in the last tag."""
        first = f"<{self.names[0]}>"
        text = first + answer.text if self.is_begun else answer.text
        marks = [mark for name in self.names for mark in (f"<{name}>", f"</{name}>")]
        counts = [text.count(mark) for mark in marks]
        if max(counts) > 1:
            return Grade(value=0.0, status="several")
        if min(counts) == 0:
            return Grade(value=0.0, status="missing")
        starts = [text.index(mark) for mark in marks]
        if starts != sorted(starts):
            return Grade(value=0.0, status="order")
        ends = [start + len(mark) for start, mark in zip(starts, marks, strict=True)]
        between = [text[end:start] for end, start in zip([0, *ends], [*starts, len(text)], strict=True)]
        outside, inside = between[::2], between[1::2]
        if not all(part.strip() for part in inside):
            return Grade(value=0.0, status="empty")
        if not self.text_outside and any(part.strip() for part in outside):
            return Grade(value=0.0, status="outside")
        return Grade(value=1.0, status="fits", extracted=inside[-1].strip())
