"""All problems of a task: each once, the held-out ones apart, with what was noticed on the way."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tether.data.problems import BadRow, Entry, read_problems
from tether.data.source import Source
from tether.errors import ConfigError, DataError

BadRows = Literal["refuse", "drop"]

FEW_ROWS = 100
"""Fewer than these in a training source are mentioned: an earlier stage may have written only its first rows."""
_EXAMPLES = 3


@dataclass(slots=True, kw_only=True)
class Census:
    """What a source had in it."""

    label: str
    path: str
    layout: str = ""
    num_rows: int = 0
    num_bad: int = 0
    first_bad: str = ""
    num_repeated: int = 0
    """Problems that were there before, in this source or in an earlier one."""
    num_heldout: int = 0
    """Problems that were taken out because they are held out in a file of their own."""
    conflicts: list[str] = field(default_factory=list)
    """Problems that were there before with another reference, the first few in words."""
    num_conflicts: int = 0

    def notices(self, is_training: bool) -> list[str]:
        """What a user should hear of, a sentence each."""
        told = []
        if self.num_rows < FEW_ROWS and is_training:
            told.append(f"{self.path} has only {self.num_rows} rows; check that it is the whole file")
        if self.num_bad:
            told.append(f"{self.path}: {self.num_bad} of {self.num_rows} rows dropped; the first: {self.first_bad}")
        if self.num_conflicts:
            told.append(
                f"{self.path}: {self.num_conflicts} problems came again with another reference, the first was kept: "
                + "; ".join(self.conflicts)
            )
        if self.num_heldout:
            told.append(f"{self.path}: {self.num_heldout} problems are held out, and are not trained on")
        return told


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Problems ready to be asked."""

    train: tuple[tuple[Entry, ...], ...]
    """Of each source, in the order of its rows."""
    heldout: tuple[Entry, ...]
    censuses: tuple[Census, ...]
    """Of each source, then of each held-out one."""
    notices: tuple[str, ...]

    def only(self, split: str, fits: Callable[[Entry], bool]) -> Pool:
        """Without the problems of a split that do not fit, and with a notice of them; itself if all do."""
        parts = (self.heldout,) if split == "heldout" else self.train
        out = {entry.key: entry for part in parts for entry in part if not fits(entry)}
        if not out:
            return self
        kept = tuple(tuple(entry for entry in part if entry.key not in out) for part in parts)
        notice = (
            f"{len(out)} of {sum(map(len, parts))} {split} problems make a prompt that is longer than the model's "
            f"context leaves room for, such as the one at {next(iter(out.values())).where}"
        )
        notices = (*self.notices, notice)
        if split == "heldout":
            return dataclasses.replace(self, heldout=kept[0], notices=notices)
        return dataclasses.replace(self, train=kept, notices=notices)

    @property
    def fingerprint(self) -> str:
        """Of every problem with its reference, in order: another one if the files have changed."""
        digest = hashlib.sha256()
        for part in (*self.train, self.heldout):
            for entry in part:
                digest.update(f"{entry.key}\0{entry.system}\0{entry.text}\0{entry.reference}\0".encode())
            digest.update(b"\1")
        return digest.hexdigest()[:16]


def load_pool(
    sources: Sequence[Source], heldout: Sequence[Source], is_heldout: Callable[[str], bool], bad_rows: BadRows
) -> Pool:
    """Read every source; held-out files first, since what they hold is not trained on.

    ``is_heldout`` says of a problem's identity whether it is held out where no file says so.
    """
    labels = _labels([*sources, *heldout])
    seen: dict[str, Entry] = {}
    apart = [
        _read(source, label, seen, bad_rows) for source, label in zip(heldout, labels[len(sources) :], strict=True)
    ]
    held = set(seen)
    read = [_read(source, label, seen, bad_rows, held) for source, label in zip(sources, labels, strict=False)]
    kept = [entry for entries, _ in apart for entry in entries]
    train = []
    for entries, _ in read:
        train.append(tuple(entry for entry in entries if not is_heldout(entry.identity)))
        kept.extend(entry for entry in entries if is_heldout(entry.identity))
    censuses = [census for _, census in (*read, *apart)]
    notices = [notice for n, census in enumerate(censuses) for notice in census.notices(n < len(sources))]
    return Pool(train=tuple(train), heldout=tuple(kept), censuses=tuple(censuses), notices=tuple(notices))


def _read(
    source: Source, label: str, seen: dict[str, Entry], bad_rows: BadRows, held: Iterable[str] = ()
) -> tuple[list[Entry], Census]:
    """Problems of a source that were not seen before, with keys of their own."""
    census = Census(label=label, path=source.path)
    layout, rows = read_problems(source)
    census.layout = layout.name
    kept, keys = [], set()
    for row in rows:
        census.num_rows += 1
        if isinstance(row, BadRow):
            _count_bad(census, row, bad_rows)
            continue
        if (before := seen.get(row.identity)) is not None:
            _count_again(census, before, row, row.identity in held)
            continue
        id = row.key if row.key not in keys else hashlib.sha256(row.identity.encode()).hexdigest()[:16]
        keys.add(id)
        entry = dataclasses.replace(row, key=f"{label}/{id}")
        seen[row.identity] = entry
        kept.append(entry)
    return kept, census


def _count_bad(census: Census, row: BadRow, bad_rows: BadRows) -> None:
    if bad_rows == "refuse":
        raise DataError(
            f"{row.why}; mend the row or take it out, name the right column in the source's columns, or set "
            "task.bad_rows=drop, which counts what it drops"
        )
    census.num_bad += 1
    census.first_bad = census.first_bad or row.why


def _count_again(census: Census, before: Entry, row: Entry, is_held: bool) -> None:
    census.num_repeated += 1
    census.num_heldout += is_held
    if before.reference != row.reference:
        census.num_conflicts += 1
        if len(census.conflicts) < _EXAMPLES:
            census.conflicts.append(f"{before.reference!r} at {before.where}, {row.reference!r} at {row.where}")


def _labels(sources: Sequence[Source]) -> list[str]:
    """A name of its own for each source: the second ``train`` is ``train-2``."""
    labels: list[str] = []
    for source in sources:
        label, number = source.label, 1
        while label in labels:
            if source.name:
                raise ConfigError(f"sources need names of their own; {source.name!r} is there twice")
            number += 1
            label = f"{source.label}-{number}"
        labels.append(label)
    return labels
