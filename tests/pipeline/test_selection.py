from collections import Counter
from dataclasses import replace

import pytest

from tether.config.recipe import load
from tether.errors import ConfigError
from tether.journal.schema import check_fate
from tether.pipeline.schedule import Schedule
from tether.pipeline.selection import Selection
from tether.placement.inline import Costs
from tether.records import Judgement

from .making import ScriptedEngine, completion_of, group_of, rollout_of
from .running import Run, World
from .test_faults import COSTS, stopped_by

LONG = 5
"""Tokens of a long answer; a short one has 1."""


def flat_but(every: int):
    """All groups are flat but each ``every``-th."""

    async def score(prompt, text, id):
        group, member = id.removeprefix("g").split("/")
        return float(int(group) % every == 0 and member == "0")

    return score


@pytest.mark.parametrize("regime", ["batch-async", "fully-async"])
def test_flat_groups_are_replaced_and_every_batch_is_whole(regime):
    schedule = Schedule(regime=regime, lag=2, prompts_per_step=2, group_size=3)
    world = World(steps=5, costs=COSTS, score=flat_but(3), selection=Selection(flat_groups="filter"))
    run = Run(schedule, world)
    counts: list[int] = []
    step = run.loops.packing.step

    def watched(groups):
        made = step(groups)
        counts.append(made.denominator.num_sequences)
        return made

    object.__setattr__(run.loops, "packing", _Watched(run.loops.packing, watched))
    run.go()
    assert [len(batch) for batch in run.learner.batches] == [2] * 5
    assert counts == [6] * 5  # of what is in the batch alone
    assert all(index % 3 == 0 for batch in run.learner.batches for index in batch)
    assert run.ledger.balance()["trained"] == 30
    assert run.ledger.balance()["filtered:all-wrong"] >= 54
    assert max(max(seen) for seen in run.learner.seen) <= schedule.bound


class _Watched:
    def __init__(self, packing, step):
        self.advantage, self.step = packing.advantage, step


def test_staleness_is_that_of_the_regime_whatever_is_filtered():
    schedule = Schedule(lag=2, prompts_per_step=2, group_size=2)
    world = World(steps=6, costs=COSTS, score=flat_but(2), selection=Selection(flat_groups="filter"))
    assert Run(schedule, world).go().learner.seen == [{0}, {1}, {2}, {3}, {2}, {3}]


def test_flat_groups_in_a_row_stop_the_run_and_name_the_task():
    selection = Selection(flat_groups="filter", most_flat=6)
    run = Run(
        Schedule(prompts_per_step=2, group_size=2), World(steps=3, costs=COSTS, score=flat_but(99), selection=selection)
    )
    said = stopped_by(run)
    assert "6 groups of task 'test' in a row had equal rewards" in said
    assert "selection.most_flat" in said
    assert "had 0, 0 (filtered:all-wrong): change the task's difficulty or the reward" in said
    assert run.ledger.balance()["filtered:all-wrong"] >= 12


@pytest.mark.parametrize(
    ("values", "decides", "fate"),
    [
        ((1.0, 1.0), (1.0, 1.0), "filtered:all-right"),
        ((0.0, 0.0), (0.0, 0.0), "filtered:all-wrong"),
        ((0.9, 0.9), (0.9, 0.9), "filtered:all-wrong"),
        ((0.0, 0.0), (0.0, 1.0), "filtered:flat-group"),
        ((0.0, 0.0), (1.0, 1.0), "filtered:all-right"),
        ((0.0, 1.0), (0.0, 1.0), None),
        ((0.5, 0.6), (1.0, 1.0), None),
        ((0.0, 0.0), None, "filtered:flat-group"),
    ],
)
def test_a_flat_group_is_filtered_as_all_right_all_wrong_or_neither(values, decides, fate):
    group = judged_group(values, decides)
    assert Selection(flat_groups="filter").filtered(group) == fate
    assert Selection().filtered(group) is None
    assert fate is None or check_fate(fate) == fate


def judged_group(values, decides):
    """A group of these rewards; by the part that decides these, or judged by nobody."""
    rollouts = [rollout_of(f"g0/{n}", [3], completion_of([4]), value) for n, value in enumerate(values)]
    if decides is not None:
        rollouts = [
            replace(rollout, judgement=Judgement(reward=rollout.reward, grades={}, is_right=value >= 1))
            for rollout, value in zip(rollouts, decides, strict=True)
        ]
    return group_of(0, rollouts)


def test_one_group_that_is_not_flat_begins_the_count_anew():
    selection = Selection(flat_groups="filter", most_flat=5)
    world = World(steps=4, costs=COSTS, score=flat_but(4), selection=selection, rows=512, engines=1)
    run = Run(Schedule(lag=1, prompts_per_step=1, group_size=2), world).go()
    assert len(run.learner.batches) == 4


class TwoLengths(ScriptedEngine):
    """Every other prompt has long answers; all tokens take equally long."""

    async def generate(self, request):
        length = LONG if int(request.id.removeprefix("g").split("/")[0]) % 2 else 1
        version = []
        for _ in range(length):
            version.append(self.version)
            await self._clock.spend("generate_token")
        return completion_of([2] * length, version=version)


def trained_lengths(selection: Selection, max_staleness: int) -> Counter[int]:
    """How many rollouts of each length are trained on, where an update takes as long as two tokens."""
    schedule = Schedule(
        regime="fully-async",
        lag=1,
        max_staleness=max_staleness,
        prompts_per_step=2,
        group_size=2,
        in_flight="keep",
        window=4,
    )
    costs = Costs(generate_token_s=1.0, train_step_s=0.5, publish_s=0.0)
    run = Run(schedule, World(steps=40, costs=costs, engines=1, rows=512, selection=selection))
    engine = TwoLengths(run.loops.rolling.clock)
    run.engines["engine-0"] = engine
    run.loops.rolling.pool._seats["engine-0"].engine = engine
    run.loops.publisher._engines = run.engines
    run.go()
    return Counter(line.num_completion_tokens for line in run.lines if line.fate == "trained")


def test_dropping_by_staleness_starves_long_answers_and_admission_does_not():
    """Half of the prompts have answers of 1 token, half of 5; the limit is 2."""
    paced = trained_lengths(Selection(), 3)
    dropped = trained_lengths(Selection(drop_staleness=2), 11)
    assert paced[1] + paced[LONG] == dropped[1] + dropped[LONG] == 160
    assert abs(paced[LONG] - paced[1]) <= 16
    assert dropped[LONG] <= 0.2 * dropped[1]


@pytest.mark.parametrize(
    ("limits", "fate"), [({"drop_staleness": 2}, "evicted:staleness"), ({"drop_queue": 3}, "evicted:queue")]
)
def test_what_is_dropped_is_counted_with_its_length_and_frees_its_slot(limits, fate):
    schedule = Schedule(regime="fully-async", lag=1, max_staleness=9, prompts_per_step=2, group_size=2)
    costs = Costs(generate_token_s=0.1, train_step_s=3.0, publish_s=0.1)
    run = Run(schedule, World(steps=12, seed=4, costs=costs, selection=Selection(**limits), bare=True)).go()
    dropped = [line for line in run.lines if line.fate == fate]
    assert dropped
    assert all(line.num_completion_tokens for line in dropped)
    run.ledger.close_rest()
    assert sum(run.ledger.balance().values()) == run.loops.num_admitted
    assert max(max(seen) for seen in run.learner.seen) <= min(schedule.bound, limits.get("drop_staleness", 99) + 1)


def test_nothing_is_dropped_while_no_batch_can_be_made():
    selection = Selection(drop_queue=2)
    world = World(steps=3, costs=COSTS, engines=1, rows=512, selection=selection)
    run = Run(Schedule(lag=1, prompts_per_step=2, group_size=2), world).go()
    assert run.loops.num_admitted <= 2 * 2 * (2 * 3 + 4)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("selection.drop_staleness=7", "at least pipeline.lag = 8, .*; got 7"),
        ("selection.drop_queue=1", "at least pipeline.prompts_per_step = .*; got 1"),
    ],
)
def test_limits_that_would_drop_whatever_is_generated_are_refused(setting, message):
    with pytest.raises(ConfigError, match=message):
        load("quickstart", ("pipeline.lag=8", setting))
