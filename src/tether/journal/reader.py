"""Opens a run directory for reading: config, events, curves, ledger, samples. Everything a report is made of."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from tether.errors import RunDirectoryError
from tether.journal.evaluated import Evaluated, evaluated_from_json
from tether.journal.ledger import LedgerLine, ledger_line_from_json
from tether.journal.merging import merge
from tether.journal.schema import (
    CONFIG_FILE,
    EVALS_FILE,
    EVENTS_FILE,
    INTERRUPTED,
    LEDGER_FILE,
    LINE_FILES,
    MODEL_FOLDER,
    ROLLOUTS_FILE,
    SCHEMA,
    SPANS_FILE,
    Sample,
    event_from_json,
    files_in,
    label_order,
    sample_from_json,
)
from tether.journal.spans import Span, span_from_json
from tether.records import Event, Metrics

T = TypeVar("T")
Series = tuple[NDArray[np.int64], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Gap:
    """Where a file could be read no further.

    >>> print(Gap("events.jsonl", line=7, num_after=0))
    The last line of events.jsonl was cut off, as when a run is killed while it writes; it is left out.
    >>> print(Gap("events.jsonl", line=7, num_after=2))
    Line 7 of events.jsonl is not JSON; it and what follows it (2 lines) are left out. Copy the run again from where \
it was made.
    """

    file: str
    line: int
    """Its first line that is not JSON; lines count from 1."""
    num_after: int
    """Lines behind that one, none of which is read."""

    @property
    def is_torn(self) -> bool:
        """Whether it is the last line: a run that is killed while it writes leaves a part of one."""
        return self.num_after == 0

    def __str__(self) -> str:
        if self.is_torn:
            return f"The last line of {self.file} was cut off, as when a run is killed while it writes; it is left out."
        lines = "1 line" if self.num_after == 1 else f"{self.num_after:,} lines"
        return (
            f"Line {self.line} of {self.file} is not JSON; it and what follows it ({lines}) are left out. "
            "Copy the run again from where it was made."
        )


class RunView:
    """A run directory, read when asked; a file is read up to its first line that is not JSON, told in ``gaps``."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._gaps: dict[str, Gap] = {}
        if not self.folder.is_dir():
            raise RunDirectoryError(f"no run directory {self.folder}; give the folder that tether train --out made")
        if not files_in(self.folder):
            raise RunDirectoryError(
                f"{self.folder} is not a run directory: it has neither {CONFIG_FILE} nor {EVENTS_FILE}; "
                "give the folder that tether train --out made"
            )

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The resolved recipe; empty if the run stopped before it was written."""
        path = self.folder / CONFIG_FILE
        try:
            config = json.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise RunDirectoryError(
                f"cannot read {path}: {error}; copy the run again from where it was made"
            ) from error
        if not isinstance(config, dict):
            raise RunDirectoryError(
                f"cannot read {path}: an object is needed, got {type(config).__name__}; "
                "copy the run again from where it was made"
            )
        return config

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """Every event, in the order written."""
        return self._read(EVENTS_FILE, event_from_json)

    @cached_property
    def ledger(self) -> tuple[LedgerLine, ...]:
        """Every rollout that came to its end."""
        return self._read(LEDGER_FILE, ledger_line_from_json)

    @cached_property
    def rollouts(self) -> tuple[Sample, ...]:
        """The stored samples."""
        return self._read(ROLLOUTS_FILE, sample_from_json)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """What the parts of the run did when, in the order in which it was over; empty where a run keeps no trace."""
        return self._read(SPANS_FILE, span_from_json)

    @cached_property
    def evaluated(self) -> tuple[Evaluated, ...]:
        """Every problem of every evaluation, in the order asked; empty where a run was made before there was such a
        file."""
        return self._read(EVALS_FILE, evaluated_from_json)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What could not be read of the files of lines, at most one gap each."""
        for _ in (self.events, self.ledger, self.rollouts, self.spans, self.evaluated):
            pass
        return tuple(self._gaps[name] for name in LINE_FILES if name in self._gaps)

    @property
    def is_torn(self) -> bool:
        """Whether the last line of a file was cut off: the run was killed while it wrote."""
        return any(gap.is_torn for gap in self.gaps)

    @property
    def model(self) -> Path | None:
        """The folder of the final weights, if the run got that far."""
        path = self.folder / MODEL_FOLDER
        return path if path.is_dir() else None

    @property
    def status(self) -> Literal["finished", "failed", "unfinished"]:
        """How the run ended; ``unfinished`` means that it still goes on, or was killed."""
        ends = [event.event for event in self.events if event.event in ("finish", "fail")]
        if not ends:
            return "unfinished"
        return "finished" if ends[-1] == "finish" else "failed"

    @property
    def is_interrupted(self) -> bool:
        """Whether a run counts as failed only because somebody stopped it."""
        failure = self.last("fail")
        return self.status == "failed" and failure is not None and failure.note == INTERRUPTED

    @property
    def steps(self) -> tuple[Event, ...]:
        """The ``step`` events."""
        return self.of("step")

    @property
    def evals(self) -> tuple[Event, ...]:
        """The ``eval`` events."""
        return self.of("eval")

    def of(self, kind: str) -> tuple[Event, ...]:
        """The events of one kind."""
        return tuple(event for event in self.events if event.event == kind)

    def last(self, kind: str) -> Event | None:
        """The last event of a kind, if there is one."""
        return next((event for event in reversed(self.events) if event.event == kind), None)

    def names(self, kind: str = "step") -> tuple[str, ...]:
        """Every metric that events of a kind carry, sorted."""
        return tuple(sorted({name for event in self.of(kind) for name in event.metrics}))

    def series(self, name: str, kind: str = "step") -> Series:
        """Steps and values of a number over the run; both empty if it was not measured."""
        points = [(event.step, event.metrics[name].value) for event in self.of(kind) if name in event.metrics]
        numbers = [(step, value) for step, value in points if not isinstance(value, Mapping)]
        return np.array([step for step, _ in numbers], np.int64), np.array([v for _, v in numbers], np.float64)

    def merged(self, kind: str = "step") -> Metrics:
        """Every metric of a kind of event over the whole run, by its own merge."""
        return merge(event.metrics for event in self.of(kind))

    def histogram(self, name: str, kind: str = "step") -> dict[str, float]:
        """A histogram over the whole run, labels in order; empty if it was not measured."""
        merged = merge({name: event.metrics[name]} for event in self.of(kind) if name in event.metrics)
        value = merged[name].value if name in merged else {}
        return {label: value[label] for label in sorted(value, key=label_order)} if isinstance(value, Mapping) else {}

    def totals(self, prefix: str, kinds: tuple[str, ...] = ("step", "skip", "publish", "eval")) -> dict[str, float]:
        """Sums over the run of every number that is merged by ``sum`` and begins with ``prefix``, largest first."""
        sums: Counter[str] = Counter()
        for event in self.events:
            for name, metric in event.metrics.items() if event.event in kinds else ():
                if name.startswith(prefix) and metric.merge == "sum" and not isinstance(metric.value, Mapping):
                    sums[name] += metric.value  # type: ignore[assignment]
        return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))

    def balance(self) -> dict[str, int]:
        """How many rollouts met each fate, sorted by fate."""
        return dict(sorted(Counter(line.fate for line in self.ledger).items()))

    def rollout(self, id: str) -> Sample:
        """The stored sample of an id; the last one if it was stored twice."""
        found = next((sample for sample in reversed(self.rollouts) if sample.id == id), None)
        if found is not None:
            return found
        ids = tuple(dict.fromkeys(sample.id for sample in self.rollouts))
        known = ", ".join((*ids[:4], "...", *ids[-4:]) if len(ids) > 8 else ids) or "none"
        raise RunDirectoryError(f"no stored rollout {id!r} in {self.folder}; stored are {known}")

    def _read(self, name: str, parse: Callable[[Mapping[str, Any]], T]) -> tuple[T, ...]:
        path = self.folder / name
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise RunDirectoryError(
                f"cannot read {path}: {error}; copy the run again from where it was made"
            ) from error
        if not lines[-1]:
            lines.pop()
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                obj = json.loads(line)
            except (ValueError, RecursionError):
                self._gaps[name] = Gap(name, number, len(lines) - number)
                break
            records.append(_parse(obj, parse, f"line {number} of {path}"))
        return tuple(records)


def _parse(obj: Any, parse: Callable[[Mapping[str, Any]], T], where: str) -> T:
    try:
        schema = obj["schema"]
        if schema > SCHEMA:
            raise RunDirectoryError(f"{where} has schema {schema}; this tether reads up to {SCHEMA}: upgrade it")
        return parse(obj)
    except (KeyError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise RunDirectoryError(
            f"{where} is not a line of a run ({type(error).__name__}: {error}); "
            "copy the run again from where it was made"
        ) from error
