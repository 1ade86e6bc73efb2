import copy

import pytest

from tether.pipeline import waste
from tether.pipeline.alarms import PATIENCE, Alarms
from tether.pipeline.schedule import Schedule
from tether.pipeline.waste import HELD_BACK, PUBLISHING, STARVED, WARM_UP, wasted
from tether.records import Metric, Metrics

STEPS = WARM_UP + PATIENCE


def schedule_of(regime: str = "fully-async", **more: object) -> Schedule:
    lag = {"sync": 1, "batch-async": 4}.get(regime, 1)
    return Schedule(**{"regime": regime, "lag": lag, "prompts_per_step": 2, "group_size": 2, **more})


def steps_of(count: int, seconds: float = 10.0, **waits: float) -> list[Metrics]:
    """Steps of ten seconds each, of which so many were waited."""
    metrics = {f"wait/{name.replace('__', '/')}_s": Metric(value, "sum") for name, value in waits.items()}
    return [{**metrics, "time/virtual_s": Metric(seconds * (n + 1), "last")} for n in range(count)]


def sounded(alarms: Alarms, steps: list[Metrics]) -> list[tuple[int, str]]:
    return [(number, words) for number, step in enumerate(steps, start=1) for words in alarms.look(step)]


def test_a_starved_trainer_is_told_once_with_its_share_and_again_when_the_run_is_over():
    alarms = Alarms(schedule_of())
    words = "the trainer waited 63 % of the time for data: raise pipeline.max_staleness or add an engine"
    assert sounded(alarms, steps_of(3 * STEPS, data=6.3)) == [(STEPS, words)]
    assert alarms.look_back({}) == [words]


def statuses(name="math", **counts):
    return {f"reward/status/{name}": Metric(counts, "sum", sum(counts.values()))}


def test_many_answers_that_could_not_be_judged_are_told_once_a_reward_with_their_shares():
    alarms = Alarms()
    step = statuses(correct=10.0, wrong=7.0, timeout=2.0, too_large=6.0)
    (found, other) = sounded(
        alarms, [step | statuses("code", wrong=1.0), step, step, *[statuses("code", timeout=25.0)] * 4]
    )
    assert found[0] == 2
    assert "reward 'math': 32 % of the answers could not be judged (timeout 8 %, too_large 24 %)" in found[1]
    assert other[0] == 5
    assert "reward 'code': 98 % of the answers could not be judged (timeout 98 %)" in other[1]


@pytest.mark.parametrize(
    "step",
    [
        statuses(correct=46.0, timeout=4.0),
        statuses(wrong=50.0, no_answer=50.0),
        statuses(cut=100.0),
        statuses(timeout=9.0, wrong=91.0),
        {"reward/part/math": Metric(1.0)},
    ],
)
def test_few_of_them_or_answers_that_are_just_wrong_raise_no_alarm(step):
    assert sounded(Alarms(), [step] * 30) == []


def test_a_few_answers_are_no_ground_for_an_alarm():
    assert sounded(Alarms(), [statuses(timeout=9.0)] * 5) == []
    assert len(sounded(Alarms(), [statuses(timeout=9.0)] * 6)) == 1


def test_warm_up_is_not_counted():
    alarms = Alarms(schedule_of())
    rest = steps_of(3 * STEPS, data=1.0)[WARM_UP:]
    assert sounded(alarms, steps_of(WARM_UP, data=10.0) + rest) == []
    assert alarms.look_back({}) == []


def test_warm_up_lasts_until_two_publications_at_least():
    alarms = Alarms(schedule_of("batch-async", lag=16))
    (found,) = sounded(alarms, steps_of(60, data=6.0))
    assert found[0] == 32 + PATIENCE


def test_in_sync_and_without_a_schedule_nobody_is_told_of_waiting():
    for alarms in (Alarms(), Alarms(schedule_of("sync"))):
        steps = steps_of(3 * STEPS, data=9.0, publication=9.0, settle=9.0, slot=9.0, engine_idle__engine_0=9.0)
        assert sounded(alarms, steps) == []
        assert alarms.look_back({}) == []


def test_a_run_too_short_to_warm_up_says_nothing_when_it_is_over():
    alarms = Alarms(schedule_of())
    assert sounded(alarms, steps_of(WARM_UP, data=9.0)) == []
    assert alarms.look_back({}) == []


def test_the_end_in_which_nothing_is_left_to_ask_is_not_counted():
    alarms, drained = Alarms(schedule_of()), {"pipeline/slots_free": Metric(2.0)}
    steps = steps_of(3 * STEPS, data=1.0)
    tail = [step | drained | {"wait/data_s": Metric(9.0, "sum")} for step in steps[STEPS:]]
    assert sounded(alarms, steps[:STEPS] + tail) == []
    assert alarms.look_back({}) == []


def test_what_was_seen_before_a_checkpoint_still_counts():
    steps = steps_of(STEPS, data=5.0)
    whole, first = Alarms(schedule_of()), Alarms(schedule_of())
    sounded(first, steps[:15])
    assert sounded(copy.deepcopy(first), steps[15:]) == [(n - 15, words) for n, words in sounded(whole, steps)]


@pytest.mark.parametrize(
    ("what", "limit"), [("data", STARVED), ("settle", STARVED), ("publication", PUBLISHING), ("slot", HELD_BACK)]
)
def test_a_wait_is_told_above_its_threshold_only(what, limit):
    idle = {"engine_idle": 1.0} if what == "slot" else {}
    assert list(wasted({what: limit + 0.01, **idle}, "fully-async", "keep")) == [what]
    assert wasted({what: limit, **idle}, "fully-async", "keep") == {}


def test_a_feed_that_waits_for_slots_wastes_nothing_while_the_engines_work():
    assert wasted({"slot": 0.99, "engine_idle": 0.05}, "fully-async", "keep") == {}


def test_more_slots_are_advised_only_where_the_trainer_waits_too():
    shares = {"slot": 0.99, "engine_idle": 0.58}
    words = wasted({**shares, "data": 0.2}, "fully-async", "keep")["slot"]
    assert words == (
        "engines waited 58 % of the time for a free slot: the bound holds them back while the trainer waits, too; "
        "raise pipeline.max_staleness"
    )
    assert "the trainer is the slower side" in wasted({**shares, "data": 0.01}, "fully-async", "keep")["slot"]


def test_the_way_out_fits_what_the_engines_do():
    def way(**shares: float) -> str:
        return wasted({"data": 0.6, **shares}, "fully-async", "keep")["data"].partition(": ")[2]

    assert way(engine_idle=0.02).startswith("add an engine (they are idle for 2 % of it)")
    assert way(engine_idle=waste.BUSY + 0.2).startswith(
        "raise pipeline.max_staleness (engines are idle for 30 % of it)"
    )
    assert "set pipeline.regime=fully-async" in wasted({"data": 0.6}, "batch-async", "keep")["data"]


def test_waiting_for_publications_names_the_policy_that_waits():
    finish = wasted({"publication": 0.5}, "fully-async", "finish")["publication"]
    assert finish.endswith("pipeline.in_flight=finish waits for all under way; use keep or recompute")
    assert wasted({"publication": 0.5}, "fully-async", "keep")["publication"].endswith("raise pipeline.lag")


def test_weights_that_do_not_change_over_three_publications_are_told_once():
    alarms = Alarms()
    told = [alarms.published(version, is_unchanged=version not in (0, 3)) for version in range(9)]
    assert [version for version, messages in enumerate(told) if messages] == [6]
    assert "version 6" in told[6][0]
