"""Problems out of rows: text, reference and key, or the reason why a row has none."""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tether.data.layouts import Layout, layout_of, resolve, value_at
from tether.data.source import Source
from tether.data.tables import open_table
from tether.errors import ConfigError, DataError

_SHOWN = 80
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A problem of a source."""

    text: str
    """What a user says."""
    bare: str
    """The same without fixed words that its layout puts around every problem."""
    reference: str
    system: str
    """What the system says before it; empty without."""
    key: str
    """Source and row: ``aime/2024-I-3``."""
    identity: str
    """What makes it the same problem as another one: its text without fixed words around it, blanks and case aside."""
    where: str
    """File and row, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """A row that holds no problem."""

    why: str


def read_problems(source: Source) -> tuple[Layout, Iterator[Entry | BadRow]]:
    """How a source is laid out, and its rows in their order."""
    table = open_table(source)
    _, first = next(table.rows(table.columns), ("", {}))
    if not first:
        raise DataError(
            f"{source.path!r} has no rows; a source needs at least one: give another file, or make it again"
        )
    layout = layout_of(source, table.columns, first)
    system = source.columns.system
    if system and resolve(first, (system,)) is None:
        raise ConfigError(
            f"{source.path!r} has no column {system!r} for columns.system; found {', '.join(table.columns)}"
        )
    places = [*layout.prompt, *layout.reference, *layout.id, *([system] if system else [])]
    wanted = list(dict.fromkeys(place.partition(".")[0] for place in places))
    return layout, (_entry(source, layout, where, row) for where, row in table.rows(wanted))


def identity_of(bare: str) -> str:
    """The same for texts that ask the same: blanks made one, case ignored.

    >>> identity_of("  What is   1 + 1?")
    'what is 1 + 1?'
    """
    return " ".join(unicodedata.normalize("NFC", bare).casefold().split())


def unwrapped(text: str, layout: Layout) -> str:
    """A problem without the fixed words that its layout puts around it."""
    for words in layout.wrap:
        text = words.sub("", text)
    return text


def _entry(source: Source, layout: Layout, where: str, row: Mapping[str, Any]) -> Entry | BadRow:
    try:
        text, system = _said(value_at(row, layout.prompt[0]), layout.prompt[0], where)
        reference = _reference(row, layout, where)
        if source.columns.system:
            system = _text(value_at(row, source.columns.system), source.columns.system, where)
    except DataError as error:
        return BadRow(why=str(error))
    bare = unwrapped(text, layout)
    identity = identity_of(bare)
    id = value_at(row, layout.id[0]) if layout.id else None
    known = str(id).strip() if isinstance(id, str | int) and not isinstance(id, bool) else ""
    key = known or hashlib.sha256(identity.encode()).hexdigest()[:16]
    return Entry(text=text, bare=bare, reference=reference, system=system, key=key, identity=identity, where=where)


def _said(value: Any, place: str, where: str) -> tuple[str, str]:
    """What the user says in a prompt's column, and what the system says before."""
    if isinstance(value, str) or value is None:
        return _text(value, place, where), ""
    if not isinstance(value, Sequence) or not all(_is_turn(turn) for turn in value):
        raise DataError(
            f"{where}: a prompt must be a text or a list of messages with role and content; {place} is {_shown(value)}"
        )
    turns = [(str(turn["role"]), str(turn["content"])) for turn in value]
    if turns and turns[-1][0] == "assistant":  # an example's answer, which is not asked for
        turns.pop()
    system = turns.pop(0)[1] if turns and turns[0][0] == "system" else ""
    if [role for role, _ in turns] != ["user"]:
        roles = ", ".join(str(turn["role"]) for turn in value) or "no message"
        raise DataError(
            f"{where}: a prompt must be one user message, with a system message before it at most; {place} has "
            f"{roles}: write the earlier turns into the user's message"
        )
    return _text(turns[0][1], place, where), system


def _is_turn(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("role") in _ROLES and isinstance(value.get("content"), str)


def _reference(row: Mapping[str, Any], layout: Layout, where: str) -> str:
    place = layout.reference[0]
    value = value_at(row, place)
    if isinstance(value, list | tuple) and len(value) == 1:  # open-instruct keeps one reference in a list
        value = value[0]
    number = value
    if isinstance(number, float) and math.isfinite(number):
        number = int(number) if number.is_integer() else str(number)
    if isinstance(number, int) and not isinstance(number, bool):
        number = str(number)
    written = _text(number, place, where)
    if not (read := layout.read(written)):
        raise DataError(
            f"{where}: a reference of layout {layout.name} must be {layout.says}; {place} is {_shown(value)}"
        )
    return read


def _text(value: Any, place: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: {place} must be a text that is not empty; it is {_shown(value)}")
    return re.sub(r"\r\n?", "\n", value).strip()


def _shown(value: Any) -> str:
    if value is None:
        return "missing or null"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
