"""Problems from files and data sets: mixed by weight, each once an epoch, held-out ones never trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from tether.data.mixing import Mix, shuffled
from tether.data.pool import BadRows, Pool, load_pool
from tether.data.problems import Entry
from tether.data.source import Source
from tether.errors import ConfigError, DataError
from tether.registry import TASKS
from tether.tasks.splits import hash_number
from tether.tasks.task import Problem, Split

_SHARE = 0.125


@TASKS.register("dataset")
@dataclass(frozen=True, kw_only=True)
class Dataset:
    r"""Problems of JSONL, JSON, Parquet or Hugging Face data, in layouts such as those of DAPO-Math and GSM8K.

    Problem ``index`` of the training split is a pure function of seed and index: sources take turns in proportion to
    their weights, and each source goes through a permutation of its problems, another one every epoch. Hence a run
    resumes with the problem that it would have asked. The same problem, by its text, is asked from one row only. The
    held-out split is a file of its own, or a share of the problems by a hash of their text; it is never trained on.

    >>> import json, tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
    ...     rows = ({"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(200))
    ...     _ = file.write("\n".join(map(json.dumps, rows)))
    ...     file.flush()
    ...     task = Dataset(path=file.name, reward="number")
    ...     task.size("train"), task.size("heldout")
    (178, 22)
    >>> problem = task.problem("train", seed=0, index=0)
    >>> problem.text, problem.reference
    ('What is 60 + 1?', '61')
    """

    path: str = ""
    """One source in short: a file, a folder or a hub data set, in a layout that is recognised."""
    sources: tuple[Source, ...] = ()
    """Where the problems come from, in place of ``path``."""
    heldout: tuple[Source, ...] = ()
    """Where the held-out problems come from; what of them is in the sources too is not trained on."""
    heldout_share: float | None = None
    """Share of the sources' problems that is held out, by a hash of their text; not set: 0.125, or 0 where ``heldout``
    is a file. 1: nothing is trained on, which serves an evaluation."""
    bad_rows: BadRows = "refuse"
    """What becomes of a row without a problem or a reference: ``refuse`` the file, or ``drop`` the row."""
    too_long: Literal["refuse", "drop"] = "refuse"
    """What becomes of problems that make a longer prompt than the model's context leaves room for: ``refuse`` to start,
    or ``drop`` them, and say how many."""
    instruction: Literal["keep", "drop"] = "keep"
    """What becomes of a fixed instruction that a layout's problems are wrapped in, as those of DAPO-Math are."""
    chat: bool = True
    """Ask in the model's chat format; without it the problem's text is the prompt."""
    system: str = ""
    """What the system says before a problem that brings no system message of its own."""
    suffix: str = ""
    r"""What follows a problem after a blank line, such as ``Put your final answer in \boxed{}.``"""
    reward: str = "math"
    """Name of the reward that judges the answers, or ``package.module:function``; it also decides what is right when
    accuracy is measured."""

    def __post_init__(self) -> None:
        if bool(self.path) == bool(self.sources) and not (self.heldout and not self.path):
            raise ConfigError(
                "a task of data needs path = FILE or sources = [{path = FILE}, ...], and not both; got path "
                f"{self.path!r} and {len(self.sources)} sources"
            )
        weighted = [source.weight is not None for source in self.sources]
        if any(weighted) and not all(weighted):
            raise ConfigError("sources have a weight each, or none has one; give the others a weight, or take it away")
        if self.heldout_share is not None and not 0 <= self.heldout_share <= 1:
            raise ConfigError(f"heldout_share must lie in 0 .. 1; got {self.heldout_share}")
        if self.system and not self.chat:
            raise ConfigError(f"a system message needs chat = true; got system {self.system!r} with chat = false")

    @property
    def criterion(self) -> str:
        """Name of the reward that decides what is right when accuracy is measured."""
        return self.reward

    @cached_property
    def pool(self) -> Pool:
        """All problems; read when they are first asked for."""
        share = self.heldout_share if self.heldout_share is not None else 0.0 if self.heldout else _SHARE
        below = round(share * 2**64)
        sources = self.sources or ((Source(path=self.path),) if self.path else ())
        pool = load_pool(sources, self.heldout, lambda identity: hash_number(identity) < below, self.bad_rows)
        if not self.chat and any(entry.system for part in (*pool.train, pool.heldout) for entry in part):
            raise DataError("these problems have a system message, which needs a chat; set task.chat=true")
        return pool

    def notices(self) -> tuple[str, ...]:
        """What was noticed about the data, a sentence each."""
        return self.pool.notices

    def fingerprint(self) -> str:
        """Of all problems and references, in order."""
        return self.pool.fingerprint

    def fitting(self, split: Split, num_tokens: Callable[[Problem], int], room: int) -> Dataset:
        """The task without the problems of a split that are too long, counted in a notice, or a refusal.

        Texts of fewer bytes than there is room are not encoded: no token of today's tokenizers is shorter than a byte.
        """
        entries = self.pool.heldout if split == "heldout" else [e for part in self.pool.train for e in part]
        if not entries:
            return self
        around = num_tokens(self._asked(min(entries, key=lambda entry: len(entry.text))))

        def fits(entry: Entry) -> bool:
            asked = self._asked(entry)
            if len(f"{asked.text}{asked.system}".encode()) + around <= room:
                return True
            return num_tokens(asked) <= room

        pool = self.pool.only(split, fits)
        if pool is self.pool:
            return self
        if self.too_long == "refuse":
            raise DataError(
                f"{pool.notices[-1]}; they would stop the run when their turn comes: set task.too_long=drop, lower "
                "engine.max_tokens, or use a model with a longer context"
            )
        fitted = dataclasses.replace(self)
        fitted.__dict__["pool"] = pool  # in the place of the one it would read
        return fitted

    def size(self, split: Split) -> int:
        """How many different problems a split has."""
        return len(self.pool.heldout) if split == "heldout" else sum(map(len, self.pool.train))

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """The problem of that number in that split; the same one for the same arguments."""
        if self.size(split) == 0:
            raise DataError(_nothing(split, len(self.pool.heldout)))
        if split == "heldout":
            return self._asked(_in_turn(self.pool.heldout, f"heldout/{seed}", index))
        source, position = self._mix.turn(index)
        entries = self.pool.train[source]
        return self._asked(_in_turn(entries, f"train/{seed}/{source}", position))

    @cached_property
    def _mix(self) -> Mix:
        """Whose turn it is. Without weights every problem has one turn in a period."""
        counts = [len(entries) for entries in self.pool.train]
        weights = [source.weight for source in self.sources]
        if not weights or None in weights:
            return Mix.counted(counts)
        for source, count in zip(self.sources, counts, strict=True):
            if count == 0:
                raise DataError(
                    f"source {source.path!r} has weight {source.weight:g} and no problem left to train on: all of its "
                    "rows are held out, or in an earlier source; take it out, or set heldout_share lower"
                )
        return Mix.of([weight for weight in weights if weight is not None])

    def _asked(self, entry: Entry) -> Problem:
        text = entry.bare if self.instruction == "drop" else entry.text
        return Problem(
            text=f"{text}\n\n{self.suffix}" if self.suffix else text,
            reference=entry.reference,
            demonstration="",
            chat=self.chat,
            system=entry.system or self.system,
            key=entry.key,
        )


def _in_turn(entries: tuple[Entry, ...], name: str, position: int) -> Entry:
    """The entry at a position of endless epochs, each in an order of its own."""
    epoch, place = divmod(position, len(entries))
    return entries[int(shuffled(f"{name}/{epoch}", len(entries))[place])]


def _nothing(split: Split, num_heldout: int) -> str:
    if split == "heldout":
        return (
            "the data have no held-out problems to evaluate on; give task.heldout a file, set task.heldout_share "
            "above 0, or set eval.prompts=0"
        )
    return (
        "the data have no problems left to train on; give task.path or task.sources"
        f"{f', or hold out fewer: {num_heldout} are, by task.heldout or task.heldout_share' if num_heldout else ''}"
    )
