"""Layouts that published data sets of mathematics come in: which column holds what, and how a reference is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tether.data.source import Columns, Source
from tether.errors import ConfigError, UnknownNameError

Read = Callable[[str], str]

PROMPTS = ("prompt", "question", "problem", "messages", "input", "instruction", "text")
"""Columns that a problem is looked for in, first come first served."""
REFERENCES = ("answer", "reference", "ground_truth", "expected_answer", "final_answer", "target", "label", "solution")
"""Columns that a reference is looked for in."""
IDS = ("id", "unique_id", "uuid", "index")


def after_hashes(text: str) -> str:
    r"""What follows the last ``####``, without thousands separators: the reference of GSM8K.

    >>> after_hashes("48 / 2 = 24\n#### 1,024")
    '1024'
    """
    _, mark, after = text.rpartition("####")
    return re.sub(r"(?<=\d),(?=\d{3})", "", after.strip()) if mark else ""


def last_boxed(text: str) -> str:
    r"""What the last ``\boxed{}`` or ``\fbox{}`` holds, braces balanced; empty without one.

    >>> last_boxed(r"so \boxed{1}, no: \boxed{\frac{1}{2}}")
    '\\frac{1}{2}'
    """
    found = list(re.finditer(r"\\(?:boxed|fbox)\s*(\{|\S)", text))
    if not found:
        return ""
    opening = found[-1]
    if opening[1] != "{":
        return opening[1]
    depth = 0
    for place in range(opening.end() - 1, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if depth == 0:
            return text[opening.end() : place].strip()
    return ""


def boxed_or_whole(text: str) -> str:
    """A solution's last box; a text without a box is the answer itself."""
    return last_boxed(text) or text


def whole_number(text: str) -> str:
    """An answer of AIME, a whole number from 0 to 999, leading zeros allowed; anything else is none.

    >>> whole_number("025"), whole_number("1000")
    ('025', '')
    """
    return text if re.fullmatch(r"0*\d{1,3}", text) else ""


def as_it_is(text: str) -> str:
    """The text itself."""
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a data set's columns mean. Its column names are lower case and match in any case."""

    name: str
    origin: str
    """Published data sets that have it."""
    needs: frozenset[str]
    """Columns by which it is recognised: all of them."""
    prompt: tuple[str, ...]
    """Dotted columns, first come first served."""
    reference: tuple[str, ...]
    id: tuple[str, ...] = ()
    read: Read = as_it_is
    """The answer out of what the reference's column holds; empty if there is none in it."""
    only: frozenset[str] = frozenset()
    """Where not empty: a table with any other column is of another layout."""
    mark: str = ""
    """What the reference of the first row must have in it to be of this layout."""
    wrap: tuple[re.Pattern[str], ...] = ()
    """Fixed words around every problem, which do not make it another problem."""
    says: str = "a text"
    """What its references are, in messages."""

    def recognises(self, row: Mapping[str, Any]) -> bool:
        """Whether a first row looks like it."""
        names = {name.lower(): name for name in row}
        if not self.needs <= names.keys() or (self.only and not names.keys() <= self.only):
            return False
        return not self.mark or self.mark in str(value_at(row, resolve(row, self.reference) or ""))


_DAPO_WRAP = (
    re.compile(r"\A\s*Solve the following math problem step by step\..*?is the answer to the problem\.\s*", re.DOTALL),
    re.compile(r'\s*Remember to put your answer on its own line after "Answer:"\.?\s*\Z'),
)

LAYOUTS = (
    Layout(
        name="dapo-math",
        origin="DAPO-Math-17k, its processed copies, and what verl reads",
        needs=frozenset({"prompt", "reward_model"}),
        prompt=("prompt",),
        reference=("reward_model.ground_truth",),
        id=("extra_info.index",),
        wrap=_DAPO_WRAP,
    ),
    Layout(
        name="dolci-math",
        origin="Dolci-RL-Zero-Math-7B, and what open-instruct reads",
        needs=frozenset({"ground_truth", "dataset"}),
        prompt=("messages", "prompt"),
        reference=("ground_truth",),
        id=("id", "custom_id"),
    ),
    Layout(
        name="gsm8k",
        origin="GSM8K",
        needs=frozenset({"question", "answer"}),
        prompt=("question",),
        reference=("answer",),
        read=after_hashes,
        mark="####",
        says="a text with the answer after ####",
    ),
    Layout(
        name="aime",
        origin="AIME_2024 (ID, Problem, Solution, Answer), aime_2024 (id, problem, solution, answer, url, year)",
        needs=frozenset({"id", "problem", "answer"}),
        only=frozenset({"id", "problem", "solution", "answer", "url", "year"}),
        prompt=("problem",),
        reference=("answer",),
        id=("id",),
        read=whole_number,
        says="a whole number from 0 to 999",
    ),
    Layout(
        name="math-500",
        origin="MATH-500 (problem, solution, answer, subject, level, unique_id)",
        needs=frozenset({"problem", "solution", "answer", "level"}),
        prompt=("problem",),
        reference=("answer",),
        id=("unique_id",),
    ),
    Layout(
        name="math",
        origin="MATH by Hendrycks and others (problem, solution, level, type), a file a problem or one file",
        needs=frozenset({"problem", "solution", "level"}),
        prompt=("problem",),
        reference=("solution",),
        read=last_boxed,
        says=r"a text with \boxed{}",
    ),
)
"""Those that are recognised, in the order in which they are tried."""


def layout_of(source: Source, columns: tuple[str, ...], first: Mapping[str, Any]) -> Layout:
    """The layout of a source: the named one, the one its columns show, or one made of what its columns are called."""
    if source.layout:
        chosen = next((layout for layout in LAYOUTS if layout.name == source.layout), None)
        if chosen is None and source.layout != "generic":
            known = ", ".join([*(layout.name for layout in LAYOUTS), "generic"])
            raise UnknownNameError(f"no layout {source.layout!r}; there are {known}")
    else:
        chosen = next((layout for layout in LAYOUTS if layout.recognises(first)), None)
    return _with_columns(chosen or _generic(columns), source.columns, first, source, columns)


def _generic(columns: tuple[str, ...]) -> Layout:
    names = {name.lower() for name in columns}
    reference = next((name for name in REFERENCES if name in names), "")
    return Layout(
        name="generic",
        origin="anything else",
        needs=frozenset(),
        prompt=PROMPTS,
        reference=REFERENCES,
        id=IDS,
        read=boxed_or_whole if reference == "solution" else as_it_is,
    )


def _with_columns(
    layout: Layout, own: Columns, first: Mapping[str, Any], source: Source, columns: tuple[str, ...]
) -> Layout:
    """The layout on real column names, which the recipe may give."""
    found = {}
    for what, given, known in (
        ("prompt", own.prompt, layout.prompt),
        ("reference", own.reference, layout.reference),
    ):
        place = resolve(first, (given,) if given else known)
        if place is None:
            expected = given or " or ".join(known)
            raise ConfigError(
                f"{source.path!r} needs a column with the {what}: expected {expected} (layout {layout.name}), found "
                f"{', '.join(columns)}; say which, such as sources = [{{path = {source.path!r}, columns = {{prompt = "
                f'"...", reference = "..."}}}}]'
            )
        found[what] = (place,)
    named = (own.id,) if own.id else layout.id
    place = resolve(first, named)
    if own.id and place is None:
        raise ConfigError(f"{source.path!r} has no column {own.id!r} for columns.id; found {', '.join(columns)}")
    read = as_it_is if own.reference and layout.name == "generic" else layout.read
    return Layout(
        name=layout.name,
        origin=layout.origin,
        needs=layout.needs,
        prompt=found["prompt"],
        reference=found["reference"],
        id=() if place is None else (place,),
        read=read,
        wrap=layout.wrap,
        says=layout.says,
    )


def resolve(row: Mapping[str, Any], places: tuple[str, ...]) -> str | None:
    """The first of some dotted places that a row has, in the row's own spelling; ``None`` without one.

    >>> resolve({"ID": 7, "Answer": {"value": 1}}, ("answer.value",))
    'Answer.value'
    """
    for place in places:
        spelled: list[str] = []
        value: Any = row
        for part in place.split("."):
            if not isinstance(value, Mapping):
                break
            name = part if part in value else next((n for n in value if n.lower() == part.lower()), None)
            if name is None:
                break
            spelled.append(name)
            value = value[name]
        else:
            return ".".join(spelled)
    return None


def value_at(row: Mapping[str, Any], place: str) -> Any:
    """What lies at a dotted place; ``None`` where nothing does."""
    value: Any = row
    for part in place.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
