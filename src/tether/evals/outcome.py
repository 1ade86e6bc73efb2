"""What a run, or a file of evaluations, says about one metric: a value at each step, and the scores of its problems."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tether.errors import ConfigError, DataError
from tether.evals.at_k import Flags, average_of_each, majority_of_each, pass_of_each
from tether.evals.bootstrap import Floats, mean_score
from tether.evals.estimators import Interval, num_trailing, trailing
from tether.journal import RunView
from tether.journal.evaluated import Evaluated, evaluated_from_json, in_one_evaluation
from tether.journal.reader import Series

ACCURACY: Final = "accuracy"
"""The metric that every evaluation has: avg@k."""
_AT_K = re.compile(r"(pass|maj)@(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A metric at one evaluation, or over several."""

    step: int
    value: Interval
    """Its ends are NaN where no interval was recorded."""
    scores: Mapping[str, float]
    """Of each problem by its key; empty where only the mean was recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run or one file of evaluations."""

    label: str
    state: str
    """``finished``, ``failed``, ``interrupted``, ``unfinished``; ``evaluated`` for a file."""
    why: str
    """Of a failed run: what it said."""
    config: Mapping[str, Any]
    """The resolved recipe; empty for a file."""
    protocol: Mapping[str, Any]
    """How it was asked: what must be equal for numbers to be comparable."""
    evaluations: tuple[Measured, ...]
    """In order of steps; at least one."""
    references: Mapping[str, str]
    """Of each problem by its key, in the last evaluation; empty where no problem is known."""
    view: RunView | None
    """The run, for whatever else is asked of it."""

    @property
    def last(self) -> Measured:
        """The last evaluation."""
        return self.evaluations[-1]

    @property
    def best(self) -> Measured:
        """The evaluation with the largest value, of equals the first: optimistic."""
        return max(self.evaluations, key=lambda measured: measured.value.value)

    @property
    def trailing(self) -> Measured:
        """The mean of the last quarter.

        Its interval is over the problems that all of these evaluations asked; where no problem is known, it is the mean
        of theirs, which is wide: the same problems were asked each time, so their errors go together only in part.
        """
        taken = self.evaluations[-num_trailing(len(self.evaluations)) :]
        mean = trailing([measured.value.value for measured in self.evaluations])
        shared = [key for key in taken[0].scores if all(key in measured.scores for measured in taken)]
        if shared:
            scores = {key: float(np.mean([measured.scores[key] for measured in taken])) for key in shared}
            return Measured(step=taken[-1].step, value=mean_score(_array(scores.values())), scores=scores)
        ends = (float(np.mean([getattr(measured.value, end) for measured in taken])) for end in ("low", "high"))
        return Measured(step=taken[-1].step, value=Interval(mean, *ends), scores={})

    def at(self, place: str) -> Measured:
        """``last``, ``best`` or ``trailing``."""
        found: Measured = getattr(self, place)
        return found


def read_outcome(path: Path, label: str, metric: str = ACCURACY) -> Outcome:
    """A run directory, or a ``.jsonl`` of evaluated problems, read for one metric.

    ``accuracy`` (avg@k), ``pass@K`` and ``maj@K`` are computed from the samples where these are on file; any other
    name, and accuracy of a run made before they were, is one that the run journaled.
    """
    view = None if path.is_file() else RunView(path)
    lines = read_evaluated(path) if view is None else view.evaluated
    measured = _from_lines(lines, metric) or (() if view is None else _journaled(view, metric))
    if not measured:
        raise _no_metric(label, metric, view)
    config = {} if view is None else view.config
    state, why = _end_of(view)
    return Outcome(
        label=label,
        state=state,
        why=why,
        config=config,
        protocol=_asked(lines) or _configured(config),
        evaluations=measured,
        references=_references(lines),
        view=view,
    )


def _no_metric(label: str, metric: str, view: RunView | None) -> ConfigError:
    names = [] if view is None else [*view.names("eval"), *view.names("step")]
    close = ", ".join([name for name in names if name.split("/")[0] in ("eval", "reward")][:12])
    return ConfigError(
        f"{label} has no metric {metric!r}; ask accuracy, pass@K or maj@K of samples that were kept, or a name that it "
        f"journaled{f' ({close})' if close else ''}; or leave the run out"
    )


def _end_of(view: RunView | None) -> tuple[str, str]:
    """How a run ended, and what it said if it failed."""
    if view is None:
        return "evaluated", ""
    if view.is_interrupted:
        return "interrupted", ""
    failure = view.last("fail") if view.status == "failed" else None
    return view.status, "" if failure is None else failure.note


def read_evaluated(path: Path) -> tuple[Evaluated, ...]:
    """The problems of a file that lies apart from any run."""
    number = 0
    lines = []
    try:
        for number, text in enumerate(path.read_text("utf-8").splitlines(), start=1):  # noqa: B007
            lines.append(evaluated_from_json(json.loads(text)))
    except (KeyError, TypeError, AttributeError, ValueError, OSError) as error:
        raise DataError(
            f"line {number} of {path} is not an evaluated problem ({type(error).__name__}: {error}); give a run "
            "directory, or a .jsonl that tether eval --out wrote"
        ) from error
    return tuple(lines)


def _from_lines(lines: Sequence[Evaluated], metric: str) -> tuple[Measured, ...]:
    """The metric from every sample; empty if there are no samples, or it is no metric of samples."""
    score = _scoring(metric)
    if score is None:
        return ()
    measured = []
    for evaluation in in_one_evaluation(lines):
        scores = {
            key: float(x) for key, x in zip(_keys(evaluation), score(evaluation), strict=True) if not math.isnan(x)
        }
        if scores:
            value = mean_score(_array(scores.values()))
            measured.append(Measured(step=evaluation[0].step, value=value, scores=scores))
    return tuple(measured)


def _scoring(metric: str) -> Callable[[Sequence[Evaluated]], Floats] | None:
    """How problems are scored: NaN for one of which too few samples were judged."""
    if metric in (ACCURACY, f"eval/{ACCURACY}"):
        return lambda lines: average_of_each(*_judged(lines))
    found = _AT_K.fullmatch(metric.removeprefix("eval/"))
    if found is None:
        return None
    k = int(found[2])
    return (lambda lines: _pass(lines, k)) if found[1] == "pass" else (lambda lines: _majority(lines, k))


def _pass(lines: Sequence[Evaluated], k: int) -> Floats:
    correct, valid = _judged(lines)
    known = valid.sum(1) >= k
    scores = np.full(len(lines), np.nan)
    if known.any():
        scores[known] = pass_of_each(correct[known], k, valid[known])
    return scores


def _majority(lines: Sequence[Evaluated], k: int) -> Floats:
    scores = np.full(len(lines), np.nan)
    for row, line in enumerate(lines):
        if line.k >= k and line.is_judged:
            scores[row] = majority_of_each([line.extracted], [[bool(x) for x in line.correct]], k)[0]
    return scores


def _judged(lines: Sequence[Evaluated]) -> tuple[Flags, Flags]:
    """Right samples and judged samples, ``[n, k]`` each, with the largest k there is."""
    shape = len(lines), max(line.k for line in lines)
    correct, valid = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    for row, line in enumerate(lines):
        correct[row, : line.k] = [bool(x) for x in line.correct]
        valid[row, : line.k] = [x is not None for x in line.correct]
    return correct, valid


def _keys(lines: Sequence[Evaluated]) -> list[str]:
    """A key for each problem; one that is asked twice is told apart by its count."""
    seen: dict[str, int] = {}
    keys = []
    for line in lines:
        seen[line.key] = seen.get(line.key, 0) + 1
        keys.append(line.key if seen[line.key] == 1 else f"{line.key} #{seen[line.key]}")
    return keys


def _references(lines: Sequence[Evaluated]) -> dict[str, str]:
    last = in_one_evaluation(lines)[-1] if lines else []
    return {key: line.reference for key, line in zip(_keys(last), last, strict=True)}


def _journaled(view: RunView, metric: str) -> tuple[Measured, ...]:
    """A number as the run wrote it, with the interval beside it if there is one."""
    for name, kind in ((f"eval/{metric}", "eval"), (metric, "eval"), (metric, "step")):
        steps, values = view.series(name, kind)
        if len(steps):
            low, high = (_beside(view.series(f"{name}_{end}", kind), steps) for end in ("low", "high"))
            rows = zip(steps.tolist(), values.tolist(), low, high, strict=True)
            return tuple(Measured(step=step, value=Interval(v, lo, hi), scores={}) for step, v, lo, hi in rows)
    return ()


def _beside(series: Series, steps: NDArray[np.int64]) -> list[float]:
    known = dict(zip(series[0].tolist(), series[1].tolist(), strict=True))
    return [known.get(step, math.nan) for step in steps.tolist()]


def _asked(lines: Sequence[Evaluated]) -> dict[str, Any]:
    """How the last evaluation was asked; empty without lines."""
    if not lines:
        return {}
    line = lines[-1]
    names = ("task", "criterion", "temperature", "top_p", "max_tokens", "k")
    return {name: getattr(line, name) for name in names}


def _configured(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same from a recipe; empty without one."""
    if not config:
        return {}
    ask, engine, task = config.get("eval") or {}, config.get("engine") or {}, config.get("task") or {}
    task = ask.get("task") or task
    return {
        "task": task.get("name"),
        "temperature": ask.get("temperature"),
        "max_tokens": ask.get("max_tokens") or engine.get("max_tokens"),
        "k": ask.get("samples", 1),
    }


def _array(values: Any) -> Floats:
    return np.array(list(values), np.float64)
