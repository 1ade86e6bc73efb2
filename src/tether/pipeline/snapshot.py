"""What a run is besides its weights, as one file: the loops, the ledger's open lines, the controller, the clock.

It is read as data alone: only the records named here can come out of it, and reading runs no code of the file's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from tether.errors import ResumeError
from tether.evals.evaluation import Evaluation, Protocol
from tether.evals.history import History
from tether.journal.ledger import LedgerLine
from tether.pipeline.alarms import Alarms
from tether.pipeline.buffer import BufferState
from tether.pipeline.curriculum import CurriculumState
from tether.pipeline.loops import LoopsState
from tether.pipeline.pool import PoolState
from tether.pipeline.rolling import NOT_YET, Member, Streaks, Underway
from tether.pipeline.rollouts import Asked
from tether.pipeline.unjudged import Unjudged
from tether.ports import GenerationRequest
from tether.records import Completion, Grade, Group, Judgement, KeptSets, Prompt, Rollout, Truncation

RUN_FILE = "run.pt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run between two steps."""

    now_s: float
    """On the run's clock, to the last bit."""
    loops: LoopsState
    partials: Mapping[str, Completion]
    """What was sampled so far by the engines that cannot tell their flight, by rollout id."""
    open_lines: tuple[LedgerLine, ...]
    """What the ledger knows of the rollouts that have no fate yet."""
    evaluations: History
    alarms: Alarms
    skipped: int
    """Steps without a trainable token, up to now in a row."""


_RECORDS = (
    Snapshot,
    LoopsState,
    CurriculumState,
    BufferState,
    PoolState,
    Streaks,
    Underway,
    Member,
    Asked,
    GenerationRequest,
    Truncation,
    Prompt,
    Completion,
    KeptSets,
    Grade,
    Judgement,
    Rollout,
    Judgement,
    Grade,
    Group,
    LedgerLine,
    History,
    Evaluation,
    Protocol,
    Alarms,
    Unjudged,
)
_NUMPY: tuple[Any, ...] = (
    np.ndarray,
    np.dtype,
    np.empty(0).__reduce__()[0],  # what numpy rebuilds arrays with
    *(type(np.dtype(name)) for name in ("int8", "int16", "int32", "int64", "float32", "float64", "bool", "uint64")),
)


def going_on(snapshot: Snapshot, partials: Literal["keep", "restart"]) -> LoopsState:
    """What the loops go on from: rollouts that were under way keep what was sampled of them, or restart."""
    loops = snapshot.loops
    if partials == "restart":
        loops = replace(loops, pool=replace(loops.pool, engines={}, flights={}))
    groups = []
    for group in loops.open:
        members = [
            member
            if member.is_over or member.completion is not None or member.request.id in loops.pool.engines
            else _asked_again(member, snapshot, is_kept=partials == "keep")
            for member in group.members
        ]
        groups.append(replace(group, members=members))
    return replace(loops, open=tuple(groups))


def _asked_again(member: Member, snapshot: Snapshot, *, is_kept: bool) -> Member:
    """A rollout that no engine has yet. Its floor stays where tokens are kept: they are as old as they were."""
    partial = snapshot.partials.get(member.request.id)
    if is_kept and partial is not None and partial.finish != "interrupted":
        return replace(member, completion=partial, sampled_s=snapshot.now_s)
    so_far = partial if partial is not None and len(partial) else member.request.so_far
    if is_kept and so_far is not None:
        return replace(member, request=replace(member.request, so_far=so_far), engine="")
    if not member.engine and so_far is None:
        return member
    request, num_restarts = replace(member.request, so_far=None), member.num_restarts + 1
    return replace(member, request=request, num_restarts=num_restarts, engine="", floor=NOT_YET)


def write_snapshot(snapshot: Snapshot, folder: Path) -> None:
    """Write ``run.pt``."""
    torch.save(snapshot, folder / RUN_FILE)


def read_snapshot(folder: Path) -> Snapshot:
    """Read ``run.pt``. Raises ``ResumeError`` where it holds what this version cannot read."""
    try:
        with torch.serialization.safe_globals([*_RECORDS, *_NUMPY]):
            snapshot = torch.load(folder / RUN_FILE, weights_only=True)
    except Exception as error:  # whatever an older or newer version wrote
        raise ResumeError(
            f"{folder / RUN_FILE} cannot be read by this version of tether ({type(error).__name__}); resume with the "
            "version that wrote it"
        ) from error
    assert isinstance(snapshot, Snapshot)
    return snapshot
