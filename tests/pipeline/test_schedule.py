import pytest

from tether.errors import ConfigError
from tether.pipeline.schedule import Schedule


@pytest.mark.parametrize(
    ("regime", "lag", "bound", "slots"),
    [("sync", 1, 0, 3), ("batch-async", 1, 1, 6), ("batch-async", 2, 3, 12), ("batch-async", 8, 15, 48)],
)
def test_the_bound_and_the_slots_follow_from_regime_and_lag(regime, lag, bound, slots):
    schedule = Schedule(regime=regime, lag=lag, prompts_per_step=3, group_size=2)
    assert (schedule.bound, schedule.slots, schedule.allowed) == (bound, slots, bound)


def test_a_larger_max_staleness_is_allowed_and_changes_no_slot():
    schedule = Schedule(lag=2, prompts_per_step=3, max_staleness=9)
    assert (schedule.bound, schedule.allowed, schedule.slots) == (3, 9, 12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regime": "sync", "lag": 8}, "must be 1 in regime 'sync'.*got 8; set pipeline.lag=1, or pipeline.regime="),
        ({"regime": "sync", "lag": 0}, "must be 1 in regime 'sync'"),
        ({"regime": "batch-async", "lag": 0}, "at least 1 in regime 'batch-async'; got 0; use pipeline.regime=sync"),
        ({"regime": "batch-async", "lag": -2}, "at least 1 in regime 'batch-async'; got -2"),
        (
            {"lag": 8, "max_staleness": 14},
            "at least 15 .*with lag 8; got 14; lower pipeline.lag to 7, or raise max_staleness to 15, or leave it out",
        ),
        ({"lag": 8, "max_staleness": 0}, "at least 15 .*use pipeline.regime=sync with pipeline.lag=1"),
        ({"regime": "sync", "lag": 1, "max_staleness": -1}, "at least 0 in regime 'sync'"),
        ({"prompts_per_step": 0}, "prompts_per_step must be at least 1; got 0"),
        ({"group_size": 0}, "group_size must be at least 1; got 0"),
        ({"updates_per_batch": 0}, "updates_per_batch must be at least 1; got 0"),
        ({"updates_per_batch": 3}, "multiple of pipeline.updates_per_batch = 3, .*got 8: set 6"),
        ({"regime": "sync", "lag": 1, "updates_per_batch": 2}, "must be 2 in regime 'sync'.*got 1; set pipeline.lag=2"),
        ({"window": 1}, "belongs to regime 'fully-async'.*got 1: set 0"),
        ({"regime": "fully-async", "window": -1}, "at least 0 groups; got -1"),
        ({"regime": "fully-async", "lag": 4, "max_staleness": 2}, "at least 3 .*lower pipeline.lag to 3"),
        (
            {"regime": "fully-async", "lag": 2, "max_staleness": 2, "prompts_per_step": 3, "window": 4},
            "window = 4 takes as many of the 9 slots .* lower the window to at most 2, or raise max_staleness to 3",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_way_out(options, message):
    with pytest.raises(ConfigError, match=message):
        Schedule(**options)


@pytest.mark.parametrize("most", range(1, 15))
def test_the_lag_advised_for_a_max_staleness_is_accepted(most):
    with pytest.raises(ConfigError) as refused:
        Schedule(lag=8, max_staleness=most)
    advised = int(str(refused.value).split("lower pipeline.lag to ")[1].split(",")[0])
    assert most - 1 <= Schedule(lag=advised, max_staleness=most).bound <= most


@pytest.mark.parametrize(
    ("options", "bound", "slots"),
    [
        ({"regime": "sync", "lag": 2, "updates_per_batch": 2}, 1, 3),
        ({"lag": 4, "updates_per_batch": 2}, 7, 12),
        ({"regime": "fully-async", "lag": 1, "max_staleness": 0}, 0, 3),
        ({"regime": "fully-async", "lag": 1, "max_staleness": 3, "window": 4}, 3, 8),
        ({"regime": "fully-async", "lag": 2, "updates_per_batch": 2, "max_staleness": 6}, 5, 9),
    ],
)
def test_reuse_and_the_window_are_part_of_the_bound(options, bound, slots):
    schedule = Schedule(prompts_per_step=3, **options)
    assert (schedule.bound, schedule.slots) == (bound, slots)
    least = -(-(schedule.slots + schedule.window) // 3)
    assert schedule.bound == schedule.updates_per_batch * least - 1
