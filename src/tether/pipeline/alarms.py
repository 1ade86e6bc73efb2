"""What a person should hear of while a run goes on, each once: it runs, but learns nothing, or has left its data."""

from __future__ import annotations

from tether.records import Metrics

PATIENCE = 10
"""Steps in a row before an alarm sounds."""
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

    def __init__(self) -> None:
        self._in_a_row = {"flat": 0, "far": 0}
        self._sounded: set[str] = set()

    def look(self, metrics: Metrics) -> list[str]:
        """Messages that are due after this step."""
        truncated = _number(metrics, "rollout/truncated_fraction")
        distance = _number(metrics, "mismatch/abs_mean")
        messages = {
            "flat": f"{PATIENCE} steps in a row in which the rewards of every group were equal: nothing is learned "
            f"from them (truncated answers: {truncated:.0%}); raise engine.max_tokens if that is high, or change the "
            "task's difficulty or the reward",
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
        return due


def _number(metrics: Metrics, name: str) -> float:
    value = metrics[name].value if name in metrics else 0.0
    return value if isinstance(value, float) else 0.0
