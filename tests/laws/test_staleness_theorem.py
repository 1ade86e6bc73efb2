"""The bound of docs/staleness.md against an adversary who tries every schedule there is, of any length.

Symbols as there: P groups a batch, C slots, W window, and b batches between two publications (b = n / U). Staleness is
counted in batches here; U updates a batch only multiply it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import pytest

from tether.pipeline.schedule import Schedule

Group = tuple[int, int]
"""Of a group in its slot: batches made since the weights of its first token, and used groups that overtook it."""
State = tuple[tuple[Group, ...], int, int]
"""Groups in their slots, oldest first; groups used whose slots are not free; batches since the last publication."""


@dataclass(frozen=True, kw_only=True)
class Game:
    """What the adversary may do: admit where there is a slot, have any groups used that the window lets go, have any
    group leave unused, at any time and in any order."""

    P: int
    C: int
    W: int
    b: int
    frees: str = "after publication"

    @property
    def bound(self) -> int:
        """In batches between the first token's weights and the use, exclusive of the use."""
        return -(-(self.C + self.W) // self.P) - 1

    @property
    def is_tight(self) -> bool:
        """Whether some schedule reaches the bound; a window is of no use where every slot is of the next block."""
        return self.W == 0 or self.P * self.b < self.C

    def moves(self, state: State) -> Iterator[State]:
        live, used, since = state
        if len(live) + used < self.C:
            yield (*live, (since, 0)), used, since
        for gone in range(len(live)):
            yield live[:gone] + live[gone + 1 :], used, since
        for chosen in combinations(range(len(live)), self.P):
            if (after := self.batch(state, chosen)) is not None:
                yield after

    def batch(self, state: State, chosen: tuple[int, ...]) -> State | None:
        """One batch of the chosen groups, and the publication if it is due; ``None`` if the window forbids it."""
        live, used, since = state
        stay = [
            (k + 1, passed + sum(other > place for other in chosen))
            for place, (k, passed) in enumerate(live)
            if place not in chosen
        ]
        if any(passed > self.W for _, passed in stay):
            return None
        used, since = (0 if self.frees == "at use" else used + self.P), since + 1
        if since == self.b:
            if self.frees == "before publication":  # whoever waits is admitted under the weights that are still there
                stay += [(since, 0)] * (self.C - len(stay))
            used, since = 0, 0
        return tuple(stay), used, since

    def most(self) -> int:
        """The largest staleness of a group that is used, over all schedules; the search ends above the bound."""
        start: State = ((), 0, 0)
        seen, todo, most = {start}, [start], 0
        while todo and most <= self.bound:
            state = todo.pop()
            for chosen in combinations(range(len(state[0])), self.P):
                if self.batch(state, chosen) is not None:
                    most = max(most, *(state[0][place][0] for place in chosen))
            new = set(self.moves(state)) - seen
            seen |= new
            todo += new
        return most


def games(most: int) -> list[Game]:
    """Every small game whose slots and window are at most ``most`` together."""
    return [
        Game(P=P, C=C, W=W, b=b)
        for P in (1, 2, 3)
        for b in (1, 2, 3)
        for W in range(5)
        for C in range(P * b, most + 1 - W)
    ]


def check(game: Game) -> None:
    assert game.most() == (game.bound if game.is_tight else game.b - 1), game


def test_no_schedule_exceeds_the_bound_and_one_reaches_it():
    for game in games(most=7):
        check(game)


@pytest.mark.long
@pytest.mark.parametrize("game", games(most=9), ids=str)
def test_no_schedule_of_larger_games_exceeds_the_bound_and_one_reaches_it(game):
    check(game)


def test_slots_freed_before_publication_break_the_bound():
    for game in games(most=5):
        assert replace(game, frees="before publication").most() > game.bound or not game.is_tight, game


def test_slots_freed_at_use_break_the_bound_where_publications_are_rarer():
    broken = {game for game in games(most=6) if replace(game, frees="at use").most() > game.bound}
    assert broken >= {game for game in games(most=6) if game.is_tight and game.b > 1}


def test_more_overtaking_than_the_window_breaks_the_bound():
    for game in games(most=5):
        if game.is_tight and game.W:
            assert replace(game, W=game.W + game.P).most() > game.bound, game


SCHEDULES = [
    Schedule(regime="sync", lag=2, updates_per_batch=2, prompts_per_step=3),
    Schedule(regime="batch-async", lag=8, prompts_per_step=8),
    Schedule(regime="batch-async", lag=4, updates_per_batch=2, prompts_per_step=3),
    Schedule(regime="fully-async", lag=1, max_staleness=3, window=4, prompts_per_step=8),
    Schedule(regime="fully-async", lag=2, updates_per_batch=2, max_staleness=7, window=5, prompts_per_step=4),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.regime}-{s.lag}-{s.window}")
def test_the_schedule_of_the_proof_reaches_the_bound(schedule):
    """All slots are taken under the first weights; the group that is P places from the end is held back as long as the
    window lets it, and the others leave in order."""
    each = schedule.updates_per_batch
    game = Game(P=schedule.prompts_per_step, C=schedule.slots, W=schedule.window, b=schedule.lag // each)
    held = game.C - game.P
    state: State = (((0, 0),) * game.C, 0, 0)
    while (after := game.batch(state, others(state, held, game.P))) is not None:
        held -= sum(place < held for place in others(state, held, game.P))
        live, used, since = after
        state = (*live, *((since, 0),) * (game.C - len(live) - used)), used, since
    assert each * state[0][held][0] + each - 1 == schedule.bound


def others(state: State, held: int, count: int) -> tuple[int, ...]:
    """The oldest that are not held back."""
    return tuple([place for place in range(len(state[0])) if place != held][:count])
