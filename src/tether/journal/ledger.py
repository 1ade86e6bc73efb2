"""The ledger: every rollout that was admitted gets exactly one fate, and the books balance.

It holds what is known of the open rollouts and hands a line to its callback when one closes. No files here.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from tether.errors import DataError
from tether.journal.schema import SCHEMA, check_fate, check_finite
from tether.records import Completion, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """The life of one rollout, told at its end; times on the run's clock, ``None`` where it never got that far."""

    id: str
    prompt_id: str
    group: str
    version_first: int | None = None
    """Lowest version among its tokens."""
    version_last: int | None = None
    """Highest version among its tokens."""
    num_versions: int | None = None
    """How many versions sampled its tokens; ``None`` in ledgers that do not tell."""
    cached_version: int | None = None
    """Oldest version that a token was sampled over the cache of; ``None`` if that is each token's own."""
    num_restarts: int = 0
    """How often its generation began anew."""
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    reward: float | None = None
    """``None`` if it was never scored."""
    started_s: float | None = None
    """When its generation was asked for."""
    sampled_s: float | None = None
    """When its last token was sampled; ``None`` in ledgers that do not tell."""
    finished_s: float | None = None
    """When its reward was known."""
    used_s: float | None = None
    """When the trainer took it."""
    step: int | None = None
    """Batch that used it."""
    fate: str = "in-flight"
    """``trained``, ``filtered:REASON``, ``evicted:REASON``, ``failed:REASON``, ``unused`` or ``in-flight``."""


REMEMBERED = 2**16
"""Ids of closed rollouts that are known by name; of the others only how many there are."""
_FIELDS = tuple(f.name for f in fields(LedgerLine))


class Ledger:
    """Opens every rollout once and closes it once.

    >>> lines = []
    >>> ledger = Ledger(lines.append)
    >>> ledger.admit("g0/0", prompt_id="arithmetic/train/4", group="g0", started_s=0.0)
    >>> _ = ledger.close("g0/0", "failed:reward")
    >>> ledger.close("g0/0", "trained")
    Traceback (most recent call last):
    tether.errors.DataError: rollout 'g0/0' has a fate already; a rollout has exactly one
    >>> ledger.balance(), lines[0].fate
    ({'failed:reward': 1}, 'failed:reward')
    """

    def __init__(self, write: Callable[[LedgerLine], object]) -> None:
        self._write = write
        self._open: dict[str, LedgerLine] = {}
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._admitted = self._num_closed = 0
        self._balance: Counter[str] = Counter()

    @property
    def num_admitted(self) -> int:
        """Rollouts that were opened, whatever became of them."""
        return self._admitted

    @property
    def open_lines(self) -> tuple[LedgerLine, ...]:
        """What is known of the rollouts that have no fate yet, in the order of admission."""
        return tuple(self._open.values())

    def restore(self, closed: Iterable[LedgerLine], opened: Iterable[LedgerLine]) -> None:
        """Go on from lines that were written and from what was known of the open ones; writes nothing."""
        for line in closed:
            self._remember(line.id)
            self._balance[line.fate] += 1
        self._open.update((line.id, line) for line in opened)
        self._admitted += len(self._open) + self._num_closed

    def admit(self, id: str, prompt_id: str, group: str, started_s: float | None = None) -> None:
        """Open a rollout: from here on it must come to an end."""
        if id in self._open or id in self._closed:
            raise DataError(f"rollout {id!r} was admitted already; ids are unique in a run")
        self._admitted += 1
        self._open[id] = LedgerLine(id=id, prompt_id=prompt_id, group=group, started_s=started_s)

    def sampled(self, id: str, completion: Completion, sampled_s: float, num_restarts: int = 0) -> None:
        """Note what was sampled of a rollout, all of it or a part, before or without a reward."""
        version, cached = completion.version, completion.cached_version
        is_older = cached is not None and bool((cached < version).any())
        self._open[id] = replace(
            self._find(id),
            version_first=int(version.min()) if len(version) else None,
            version_last=int(version.max()) if len(version) else None,
            num_versions=len(np.unique(version)),
            cached_version=int(cached.min()) if cached is not None and is_older else None,
            num_restarts=num_restarts,
            num_completion_tokens=len(completion),
            sampled_s=float(sampled_s),
        )

    def finish(self, rollout: Rollout) -> None:
        """Note what a rollout became: lengths, versions, reward, times; its fate is still open."""
        self.sampled(rollout.id, rollout.completion, rollout.sampled_s, rollout.num_restarts)
        self._open[rollout.id] = replace(
            self._find(rollout.id),
            num_prompt_tokens=len(rollout.prompt.token_ids),
            reward=float(rollout.reward),
            started_s=float(rollout.started_s),
            finished_s=float(rollout.finished_s),
        )

    def close(self, id: str, fate: str, *, step: int | None = None, used_s: float | None = None) -> LedgerLine:
        """Give a rollout its one fate and write its line."""
        line = replace(self._find(id), fate=check_fate(fate), step=step, used_s=used_s)
        self._write(line)
        del self._open[id]
        self._remember(id)
        self._balance[fate] += 1
        return line

    def close_rest(self) -> tuple[LedgerLine, ...]:
        """The run is over: finished rollouts were ``unused``, the others are ``in-flight``."""
        fates = {line.id: "in-flight" if line.finished_s is None else "unused" for line in self._open.values()}
        return tuple(self.close(id, fate) for id, fate in fates.items())

    def balance(self) -> dict[str, int]:
        """How many rollouts met each fate, sorted by fate."""
        return dict(sorted(self._balance.items()))

    def _find(self, id: str) -> LedgerLine:
        if id in self._open:
            return self._open[id]
        if id in self._closed:
            raise DataError(f"rollout {id!r} has a fate already; a rollout has exactly one")
        raise DataError(f"rollout {id!r} was never admitted, or is long closed; admit it before its generation begins")

    def _remember(self, id: str) -> None:
        """What closed lately is told apart from what was never opened; memory does not grow with the run."""
        self._num_closed += 1
        self._closed[id] = None
        if len(self._closed) > REMEMBERED:
            self._closed.popitem(last=False)


def ledger_line_to_json(line: LedgerLine) -> dict[str, Any]:
    """A ledger line as the object of its line in the file."""
    check_fate(line.fate)
    plain = {name: getattr(line, name) for name in _FIELDS}  # asdict copies each value deeply: ten times slower
    for name in ("reward", "started_s", "sampled_s", "finished_s", "used_s"):
        if (value := plain[name]) is not None:
            plain[name] = check_finite(f"{name} of rollout {line.id!r}", value)
    return {"schema": SCHEMA, **plain}


def ledger_line_from_json(line: Mapping[str, Any]) -> LedgerLine:
    """The ledger line of an object."""
    check_fate(line["fate"])
    return LedgerLine(**{name: value for name, value in line.items() if name != "schema"})
