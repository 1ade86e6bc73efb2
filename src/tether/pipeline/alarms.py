"""What a person should hear of while a run goes on, each once: it runs, but learns nothing, or has left its data, or
leaves one side waiting."""

from __future__ import annotations

from collections.abc import Mapping

from tether.pipeline.schedule import Schedule
from tether.pipeline.unjudged import Unjudged
from tether.pipeline.waste import WARM_UP, shares_of, spoiled, wasted
from tether.records import Metrics

PATIENCE = 10
"""Steps in a row before an alarm sounds."""
UNCHANGED = 3
"""Publications in a row that hold what the one before held, before an alarm sounds."""
FAR = 1.0
"""Mean |d|, in nats, at which the policy has left the data it trains on."""


class Alarms:
    """Looks at every step's metrics.

    >>> from tether.records import Metric
    >>> alarms = Alarms()
    >>> flat = {"reward/flat_groups_fraction": Metric(1.0), "rollout/truncated_fraction": Metric(0.0)}
    >>> [len(alarms.look(flat)) for _ in range(12)]
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]
    """

    def __init__(self, schedule: Schedule | None = None) -> None:
        """Without a schedule nothing is said about waiting."""
        self._in_a_row = {"flat": 0, "far": 0, "unchanged": 0}
        self._sounded: set[str] = set()
        self._regime = "sync" if schedule is None else schedule.regime
        self._in_flight = "keep" if schedule is None else schedule.in_flight
        fill = 0 if schedule is None else 2 * schedule.lag // schedule.updates_per_batch
        self._warm_up = max(WARM_UP, fill)
        self._steps = 0
        self._told_s = self._passed_s = 0.0
        self._waits: dict[str, float] = {}
        self._rollouts = self._restarts = 0.0
        self._unjudged = Unjudged()

    def look(self, metrics: Metrics) -> list[str]:
        """Messages that are due after this step."""
        truncated = _number(metrics, "rollout/truncated_fraction")
        distance = _number(metrics, "mismatch/abs_mean")
        right, wrong = _number(metrics, "reward/groups_all_right"), _number(metrics, "reward/groups_all_wrong")
        messages = {
            "flat": f"{PATIENCE} steps in a row in which the rewards of every group were equal: nothing is learned "
            f"from them (truncated answers: {truncated:.0%}), {right:.0%} of the groups are all right and {wrong:.0%} "
            "all wrong; raise engine.max_tokens if many are truncated, or change the task's difficulty or the reward",
            "far": f"{PATIENCE} steps in a row in which the mean |d| was above {FAR:g} (now {distance:.2f}): the "
            "policy has left the data it trains on; lower trainer.lr or pipeline.lag",
        }
        sounding = {"flat": _number(metrics, "reward/flat_groups_fraction") >= 1.0, "far": distance > FAR}
        due = []
        for name, is_on in sounding.items():
            self._in_a_row[name] = self._in_a_row[name] + 1 if is_on else 0
            if self._in_a_row[name] == PATIENCE and name not in self._sounded:
                self._sounded.add(name)
                due.append(messages[name])
        due += self._unjudged.look(metrics)
        self._count(metrics)
        if (restarts := metrics.get("rollout/restarts_mean")) is not None:
            self._rollouts += restarts.count
            self._restarts += restarts.count * _number(metrics, "rollout/restarts_mean")
        if self._steps >= self._warm_up + PATIENCE:
            due += self._wasted(self._sounded)
        return due

    def published(self, version: int, *, is_unchanged: bool) -> list[str]:
        """What to say of a publication; ``is_unchanged``: it holds what the one before it held, and not because rewards
        that are all equal leave nothing to learn, which is told by itself."""
        counts = is_unchanged and not self._in_a_row["flat"]
        self._in_a_row["unchanged"] = self._in_a_row["unchanged"] + 1 if counts else 0
        if self._in_a_row["unchanged"] < UNCHANGED or "unchanged" in self._sounded:
            return []
        self._sounded.add("unchanged")
        return [
            f"the weights published as version {version} are, as they are published, those of {UNCHANGED} publications "
            "before: the updates between them are too small for engine.dtype, or nothing is trained; raise trainer.lr, "
            "or set engine.dtype = float32"
        ]

    def look_back(self, balance: Mapping[str, int]) -> list[str]:
        """What the whole run wasted, with its last numbers, whether or not it was told before; ``balance``: how many
        rollouts met each fate."""
        return [*self._wasted(set()), *spoiled(balance, self._restarts / max(1.0, self._rollouts))]

    def _count(self, metrics: Metrics) -> None:
        """Add up the waits of a step, once the pipeline has filled and until it runs empty: slots are free only where
        nothing is left to ask."""
        self._steps += 1
        before_s, self._told_s = self._told_s, _number(metrics, "time/virtual_s")
        if self._steps <= self._warm_up or _number(metrics, "pipeline/slots_free") > 0:
            return
        self._passed_s += self._told_s - before_s
        for name in metrics:
            if name.startswith("wait/"):
                what = name.removeprefix("wait/")
                self._waits[what] = self._waits.get(what, 0.0) + _number(metrics, name)

    def _wasted(self, sounded: set[str]) -> list[str]:
        if self._passed_s <= 0:
            return []
        found = wasted(shares_of(self._waits, self._passed_s), self._regime, self._in_flight)
        due = [words for what, words in found.items() if what not in sounded]
        sounded.update(found)
        return due


def _number(metrics: Metrics, name: str) -> float:
    value = metrics[name].value if name in metrics else 0.0
    return value if isinstance(value, float) else 0.0
