"""What a line of a run directory looks like, in both directions.

Every file is JSON, one object a line, with keys in a fixed order and floats in their shortest exact form: two runs
with one seed write the same bytes. What is not a finite number never gets in.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from tether.errors import DataError, NonFiniteError
from tether.records import Event, Floats, Ints, Merge, Metric

SCHEMA: Final = 1
"""Version of the format; a reader refuses lines that are newer than itself."""

CONFIG_FILE: Final = "config.json"
EVENTS_FILE: Final = "events.jsonl"
LEDGER_FILE: Final = "ledger.jsonl"
ROLLOUTS_FILE: Final = "rollouts.jsonl"
SPANS_FILE: Final = "spans.jsonl"
EVALS_FILE: Final = "evals.jsonl"
LINE_FILES: Final = (EVENTS_FILE, LEDGER_FILE, ROLLOUTS_FILE, SPANS_FILE, EVALS_FILE)
"""Of a run's life, a line at a time; a run that goes on from a checkpoint cuts them back to what they were then."""
PROCESSES_FILE: Final = "processes.jsonl"
"""Who worked on the run: a line for every process that was started, never cut back."""
ROLLED_BACK_FOLDER: Final = "rolled-back"
"""What was cut off, a numbered folder each time."""
MODEL_FOLDER: Final = "model"
ADAPTER_FOLDER: Final = "adapter"
"""In the model's: the adapter of a run that trained one, beside the weights into which it is merged."""
REPORT_FILE: Final = "report.html"

PLAIN_FATES: Final = ("trained", "unused", "in-flight")
REASONED_FATES: Final = ("filtered", "evicted", "failed")
INTERRUPTED: Final = "interrupted"
"""Note of a ``fail`` event where nothing was wrong: somebody stopped the run."""
MERGES: Final[tuple[str, ...]] = get_args(Merge)

_REASON = re.compile(r"[^\s:][^\n\r]*")


def check_fate(fate: str) -> str:
    """A fate as it is, or an error: ``trained``, ``unused``, ``in-flight``, or a kind with its reason.

    >>> check_fate("filtered:flat-group")
    'filtered:flat-group'
    >>> check_fate("lost")
    Traceback (most recent call last):
    tether.errors.DataError: no fate 'lost'; there are trained, unused, in-flight, filtered:REASON, evicted:REASON, \
failed:REASON
    """
    kind, colon, reason = fate.partition(":")
    if fate in PLAIN_FATES or (kind in REASONED_FATES and colon and _REASON.fullmatch(reason)):
        return fate
    known = ", ".join((*PLAIN_FATES, *(f"{kind}:REASON" for kind in REASONED_FATES)))
    raise DataError(f"no fate {fate!r}; there are {known}")


def to_line(obj: Mapping[str, Any]) -> bytes:
    """One object as one line, the newline included; keys stay in the order given.

    >>> to_line({"step": 3, "note": "0.1 is"})
    b'{"step":3,"note":"0.1 is"}\\n'
    """
    text = json.dumps(obj, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace") + b"\n"  # a lone surrogate becomes its JSON escape


def event_to_json(event: Event) -> dict[str, Any]:
    """An event as the object of its line; metrics sorted by name, so that their order of arrival leaves no trace.

    >>> event_to_json(Event(event="step", step=1, version=1, metrics={"reward/mean": Metric(0.5)}))
    {'schema': 1, 'event': 'step', 'step': 1, 'version': 1, 'metrics': {'reward/mean': 0.5}}
    """
    metrics = {name: metric_to_json(name, event.metrics[name]) for name in sorted(event.metrics)}
    line: dict[str, Any] = {
        "schema": SCHEMA,
        "event": event.event,
        "step": int(event.step),
        "version": int(event.version),
        "metrics": metrics,
    }
    return {**line, "note": event.note} if event.note else line


def event_from_json(line: Mapping[str, Any]) -> Event:
    """The event of a line."""
    metrics = {name: metric_from_json(value) for name, value in line["metrics"].items()}
    return Event(
        event=as_text(line["event"]),
        step=as_whole(line["step"]),
        version=as_whole(line["version"]),
        metrics=metrics,
        note=as_text(line.get("note", "")),
    )


def metric_to_json(name: str, metric: Metric) -> float | dict[str, Any]:
    """A plain number for a mean of one thing, else the value with its merge and count.

    >>> metric_to_json("staleness/max", Metric(15.0, "max"))
    {'value': 15.0, 'merge': 'max', 'count': 1.0}
    >>> metric_to_json("loss", Metric(float("nan")))
    Traceback (most recent call last):
    tether.errors.NonFiniteError: metric 'loss' is nan; the journal takes finite numbers only, so leave out a metric \
that has no value at this step
    """
    if metric.merge not in MERGES:
        raise DataError(f"metric {name!r} has no merge {metric.merge!r}; there are {', '.join(MERGES)}")
    count = check_finite(f"the count of metric {name!r}", metric.count)
    if count < 0:
        raise DataError(f"the count of metric {name!r} must be 0 or more; got {count}")
    value: float | dict[str, float]
    if isinstance(metric.value, Mapping):
        labels = sorted(metric.value, key=label_order)
        value = {label: check_finite(f"metric {name!r} at label {label!r}", metric.value[label]) for label in labels}
    else:
        value = check_finite(f"metric {name!r}", metric.value)
        if metric.merge == "mean" and count == 1.0:
            return value
    return {"value": value, "merge": metric.merge, "count": count}


def metric_from_json(value: Any) -> Metric:
    """The metric of a number or an object.

    >>> metric_from_json(0.25)
    Metric(value=0.25, merge='mean', count=1.0)
    """
    if not isinstance(value, Mapping):
        return Metric(check_finite("a metric", value))
    how, inner = value["merge"], value["value"]
    if how not in MERGES:
        raise DataError(f"there is no merge {how!r}; there are {', '.join(MERGES)}")
    count = check_finite("the count of a metric", value["count"])
    if isinstance(inner, Mapping):
        histogram = {label: check_finite(f"a metric at label {label!r}", number) for label, number in inner.items()}
        return Metric(histogram, how, count)
    return Metric(check_finite("a metric", inner), how, count)


def label_order(label: str) -> tuple[int, float, str]:
    """Sorting key of histogram labels: numbers by value, then words.

    >>> sorted(["10", "2", "more", "0"], key=label_order)
    ['0', '2', '10', 'more']
    """
    try:
        number = float(label)
    except ValueError:
        return 1, 0.0, label
    return (0, number, label) if math.isfinite(number) else (1, 0.0, label)


def check_finite(what: str, value: Any) -> float:
    """A number as a float, or an error that names it: no NaN enters the journal."""
    number = float(value)
    if not math.isfinite(number):
        raise NonFiniteError(
            f"{what} is {number}; the journal takes finite numbers only, "
            "so leave out a metric that has no value at this step"
        )
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One stored rollout, as it was when the trainer used it; arrays are ``[L]``, one entry a completion token.

    >>> one = np.ones(1, np.float32)
    >>> sample = Sample(id="r0", step=9, prompt="1+1=", completion="2", token_texts=("2",),
    ...     token_ids=np.array([7], np.int32), logp_behavior=-one, logp=-2 * one, version=np.array([0], np.int32),
    ...     staleness=np.array([8], np.int32), trainable=np.array([True]), reward=1.0, advantage=0.5)
    >>> sample.mismatch
    array([-1.], dtype=float32)
    """

    id: str
    step: int
    """Batch that used it."""
    prompt: str
    completion: str
    token_texts: tuple[str, ...]
    """Each token decoded alone, the end-of-sequence token included."""
    token_ids: Ints
    logp_behavior: Floats
    """Of the distribution the engine really sampled from."""
    logp: Floats | None
    """The trainer's at use; absent when it was never evaluated."""
    version: Ints
    """Optimizer updates behind the weights that made each token."""
    staleness: Ints
    """Updates made by the trainer at use, minus the token's version."""
    trainable: NDArray[np.bool_]
    reward: float
    advantage: float
    num_kept: Ints | None = None
    """Of how many ids each token was drawn, where sampling was truncated and the engine told; 0 where it did not."""

    def __post_init__(self) -> None:
        arrays = {"token_texts": self.token_texts, **{name: getattr(self, name) for name in _ARRAYS}}
        lengths = {name: len(array) for name, array in arrays.items() if array is not None}
        if len(set(lengths.values())) != 1:
            raise DataError(f"arrays of sample {self.id!r} must have one length; got {lengths}")

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def mismatch(self) -> Floats | None:
        """``d = logp - logp_behavior`` of each token."""
        return None if self.logp is None else self.logp - self.logp_behavior


_ARRAYS: Final = ("token_ids", "logp_behavior", "logp", "version", "staleness", "trainable", "num_kept")


def sample_to_json(sample: Sample) -> dict[str, Any]:
    """A sample as the object of its line."""
    who = f"of sample {sample.id!r}"
    return {
        "schema": SCHEMA,
        "id": sample.id,
        "step": int(sample.step),
        "prompt": sample.prompt,
        "completion": sample.completion,
        "reward": check_finite(f"reward {who}", sample.reward),
        "advantage": check_finite(f"advantage {who}", sample.advantage),
        "token_texts": list(sample.token_texts),
        "token_ids": [int(i) for i in sample.token_ids],
        "logp_behavior": _shortest(f"logp_behavior {who}", sample.logp_behavior),
        "logp": None if sample.logp is None else _shortest(f"logp {who}", sample.logp),
        "version": [int(v) for v in sample.version],
        "staleness": [int(s) for s in sample.staleness],
        "trainable": [int(t) for t in sample.trainable],
        **({} if sample.num_kept is None else {"num_kept": [int(n) for n in sample.num_kept]}),
    }


def sample_from_json(line: Mapping[str, Any]) -> Sample:
    """The sample of a line."""
    return Sample(
        id=as_text(line["id"]),
        step=as_whole(line["step"]),
        prompt=as_text(line["prompt"]),
        completion=as_text(line["completion"]),
        token_texts=tuple(as_text(text) for text in line["token_texts"]),
        token_ids=_array(line["token_ids"], np.int32),
        logp_behavior=_array(line["logp_behavior"], np.float32),
        logp=None if line["logp"] is None else _array(line["logp"], np.float32),
        version=_array(line["version"], np.int32),
        staleness=_array(line["staleness"], np.int32),
        trainable=_array(line["trainable"], np.bool_),
        reward=check_finite("the reward", line["reward"]),
        advantage=check_finite("the advantage", line["advantage"]),
        num_kept=_array(line["num_kept"], np.int32) if "num_kept" in line else None,
    )


def as_text(value: Any) -> str:
    """Text as it is, or an error."""
    if not isinstance(value, str):
        raise DataError(f"text is needed, got {value!r}")
    return value


def as_whole(value: Any) -> int:
    """A count of steps or updates, of a size that curves can be drawn over."""
    return int(np.int32(operator.index(value)))


def _array(values: Any, dtype: type[np.generic]) -> NDArray[Any]:
    """One entry a token; what the type cannot hold is an error, never an infinity."""
    with np.errstate(over="raise"):
        array = np.array(values, dtype)
    if array.ndim != 1:
        raise DataError(f"one entry a token is needed, got {array.ndim} dimensions")
    if not np.isfinite(array).all():
        raise NonFiniteError(f"an entry at token {int(np.argmin(np.isfinite(array)))} is no finite number")
    return array


def _shortest(what: str, values: Sequence[float] | Floats) -> list[float]:
    """Float32 numbers in the fewest digits that give them back."""
    array = np.asarray(values, np.float32)
    if not np.isfinite(array).all():
        at = int(np.flatnonzero(~np.isfinite(array))[0])
        raise NonFiniteError(f"{what} is {array[at]} at token {at}; the journal takes finite numbers only")
    return [float(str(x)) for x in array]


def files_in(folder: Path, names: Iterable[str] = (CONFIG_FILE, EVENTS_FILE)) -> list[str]:
    """Which of the files of a run a folder has."""
    return [name for name in names if (folder / name).is_file()]


def is_run(folder: Path) -> bool:
    """Whether a folder is a run directory whose run has begun."""
    return len(files_in(folder)) == 2
