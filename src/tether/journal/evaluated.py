"""A line of ``evals.jsonl``: one problem of one evaluation, with everything that was sampled for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tether.errors import DataError
from tether.journal.schema import SCHEMA, as_text, as_whole, check_finite

FAILED: Final = "failed"
"""Status of a sample about which the criterion raised: it is neither right nor wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """One problem of one evaluation; tuples have one entry a sample, ``k`` of them.

    >>> line = Evaluated(step=5, version=5, task="aime", criterion="math", problem="aime/7",
    ...     prompt_id="aime/heldout/0/3", reference="204", seed=0, temperature=1.0, top_p=1.0, max_tokens=64,
    ...     versions=(5, 5), correct=(True, None), extracted=("204", None),
    ...     status=("correct", "failed"), length=(12, 64), truncated=(False, True))
    >>> line.k, line.is_judged, line.key
    (2, False, 'aime/7')
    """

    step: int
    """Batches consumed; 0 outside a run, or before its first."""
    version: int
    """Of the weights that were asked about."""
    task: str
    criterion: str
    """What decided whether an answer is right."""
    problem: str
    """Which one of its source; empty where a source does not tell."""
    prompt_id: str
    reference: str
    seed: int
    temperature: float
    top_p: float
    max_tokens: int
    versions: tuple[int, ...]
    """Of the weights that made each sample's last token: other ones than ``version`` if weights changed meanwhile."""
    correct: tuple[bool | None, ...]
    """``None`` where the criterion failed."""
    extracted: tuple[str | None, ...]
    """What was taken to be the final answer, by criteria that look for one."""
    status: tuple[str, ...]
    """The criterion's word, or ``correct`` and ``wrong`` where it has none; ``failed`` where it raised."""
    length: tuple[int, ...]
    """Tokens."""
    truncated: tuple[bool, ...]
    """Cut at ``max_tokens``."""

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in _SAMPLES}
        if len(set(lengths.values())) != 1 or not self.correct:
            raise DataError(f"each sample of problem {self.prompt_id!r} needs one entry everywhere; got {lengths}")

    @property
    def k(self) -> int:
        """Samples of the problem."""
        return len(self.correct)

    @property
    def is_judged(self) -> bool:
        """Whether every sample is right or wrong, and none failed."""
        return None not in self.correct

    @property
    def key(self) -> str:
        """By which the problem is found again in another evaluation."""
        return self.problem or self.prompt_id


_SAMPLES: Final = ("versions", "correct", "extracted", "status", "length", "truncated")


def evaluated_to_json(line: Evaluated) -> dict[str, Any]:
    """A problem as the object of its line: truth as 1, 0 and ``null``."""
    return {
        "schema": SCHEMA,
        "step": int(line.step),
        "version": int(line.version),
        "task": line.task,
        "criterion": line.criterion,
        "problem": line.problem,
        "prompt_id": line.prompt_id,
        "reference": line.reference,
        "seed": int(line.seed),
        "temperature": check_finite("the temperature", line.temperature),
        "top_p": check_finite("top_p", line.top_p),
        "max_tokens": int(line.max_tokens),
        "k": line.k,
        "versions": [int(version) for version in line.versions],
        "correct": [None if is_right is None else int(is_right) for is_right in line.correct],
        "extracted": list(line.extracted),
        "status": list(line.status),
        "length": [int(length) for length in line.length],
        "truncated": [int(is_cut) for is_cut in line.truncated],
    }


def evaluated_from_json(line: Mapping[str, Any]) -> Evaluated:
    """The problem of a line."""
    found = Evaluated(
        step=as_whole(line["step"]),
        version=as_whole(line["version"]),
        task=as_text(line["task"]),
        criterion=as_text(line["criterion"]),
        problem=as_text(line["problem"]),
        prompt_id=as_text(line["prompt_id"]),
        reference=as_text(line["reference"]),
        seed=int(line["seed"]),
        temperature=check_finite("the temperature", line["temperature"]),
        top_p=check_finite("top_p", line["top_p"]),
        max_tokens=as_whole(line["max_tokens"]),
        versions=tuple(as_whole(version) for version in line["versions"]),
        correct=tuple(None if is_right is None else _truth(is_right) for is_right in line["correct"]),
        extracted=tuple(None if answer is None else as_text(answer) for answer in line["extracted"]),
        status=tuple(as_text(status) for status in line["status"]),
        length=tuple(as_whole(length) for length in line["length"]),
        truncated=tuple(_truth(is_cut) for is_cut in line["truncated"]),
    )
    if found.k != line["k"]:
        raise DataError(f"problem {found.prompt_id!r} has {found.k} samples, but says k = {line['k']!r}")
    return found


def in_one_evaluation(lines: Sequence[Evaluated]) -> list[list[Evaluated]]:
    """Lines of a run apart by evaluation, each in the order asked.

    A step has one evaluation; a run that goes on is cut back before it asks again.
    """
    by_step: dict[int, list[Evaluated]] = {}
    for line in lines:
        by_step.setdefault(line.step, []).append(line)
    return list(by_step.values())


def _truth(value: Any) -> bool:
    if value not in (0, 1):
        raise DataError(f"1 or 0 is needed, got {value!r}")
    return bool(value)
