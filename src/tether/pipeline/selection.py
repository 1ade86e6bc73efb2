"""Which finished groups are not trained on, by the recipe's choice; each is counted, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tether.errors import ConfigError
from tether.pipeline.judged import Kind, is_flat_group, kind_of
from tether.records import Group

FLAT: Mapping[Kind, str] = {
    "all_right": "filtered:all-right",
    "all_wrong": "filtered:all-wrong",
    "mixed": "filtered:flat-group",
}
"""Why a group with equal rewards teaches nothing."""
TOO_FEW: str = "filtered:too-few-survivors"
TOO_STALE: str = "evicted:staleness"
QUEUE: str = "evicted:queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The ``[selection]`` table. Whatever it takes out frees its slot at once, and another group is generated.

    >>> Selection(flat_groups="filter", most_flat=0)
    Traceback (most recent call last):
    tether.errors.ConfigError: selection.most_flat must be at least 1; got 0
    """

    flat_groups: Literal["train", "filter"] = "train"
    """Groups whose rewards are all equal, which teach nothing: ``train`` on them (they count in the denominators), or
    ``filter`` them and generate others in their place."""
    most_flat: int = 256
    """Groups filtered in a row after which the run stops."""
    drop_staleness: int | None = None
    """Groups with a token staler than this when a batch is made are dropped. Off by default: the bound makes it
    needless, and it starves long answers."""
    drop_queue: int | None = None
    """The oldest finished groups beyond this many are dropped when a batch is made. Off by default, likewise."""

    def __post_init__(self) -> None:
        for name, least in (("most_flat", 1), ("drop_staleness", 0), ("drop_queue", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"selection.{name} must be at least {least}; got {value}")

    def filtered(self, group: Group) -> str | None:
        """The fate of a finished group that is taken out because it is flat; ``None``: it stays."""
        return FLAT[kind_of(group)] if self.flat_groups == "filter" and is_flat_group(group) else None

    def dropped(self, queued: Iterable[Group], updates: int) -> list[tuple[Group, str]]:
        """Which of the groups in the queue are dropped now, oldest first, and why; ``updates`` are made so far."""
        found: list[tuple[Group, str]] = []
        stay: list[Group] = []
        for group in queued:
            stalest = updates - min(int(r.completion.version.min(initial=updates)) for r in group.rollouts)
            if self.drop_staleness is not None and stalest > self.drop_staleness:
                found.append((group, TOO_STALE))
            else:
                stay.append(group)
        if self.drop_queue is not None and len(stay) > self.drop_queue:
            found += [(group, QUEUE) for group in stay[: len(stay) - self.drop_queue]]
        return found

    @property
    def drops(self) -> bool:
        """Whether anything is ever dropped."""
        return self.drop_staleness is not None or self.drop_queue is not None
