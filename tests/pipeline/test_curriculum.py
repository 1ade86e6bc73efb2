"""What a curriculum asks: every index once or counted; the retired rest and come again; a state goes on exactly."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.errors import ConfigError, DataError
from tether.pipeline.curriculum import MOST_PASSED, Curriculum, CurriculumOptions
from tether.records import Grade, Group, Judgement, Prompt

from .making import completion_of, group_of, rollout_of

OPTIONS = st.builds(
    CurriculumOptions,
    retire_above=st.sampled_from([None, 0.75, 1.0]),
    retire_below=st.sampled_from([None, 0.0, 0.25]),
    least_groups=st.sampled_from([0.5, 1.0, 1.5]),
    half_life=st.sampled_from([1.0, 8.0, 100.0]),
    rest=st.integers(1, 20),
    least=st.sampled_from([None, 0.2]),
    most=st.sampled_from([None, 0.9]),
    order=st.sampled_from(["uniform", "easy-first", "medium-first"]),
    choices=st.integers(1, 4),
    most_skipped=st.integers(8, 12),
)
STORIES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 4)), max_size=40)
"""For each prompt: how many right of four, how many updates are made before, how long its group takes."""
SKIPPED = ("skipped_easy", "skipped_hard", "skipped_given")


class Source:
    """A few problems again and again, with the updates made so far."""

    def __init__(self, size: int = 6, *, has_keys: bool = True, rates: bool = False) -> None:
        self.size, self.updates = size, 0
        self._has_keys, self._rates = has_keys, rates

    def __call__(self, index: int) -> Prompt:
        number = index % self.size
        return Prompt(
            id=f"p/{index}",
            text="?",
            token_ids=(3,),
            reference="!",
            problem=f"p/{number}" if self._has_keys else "",
            pass_rate=number / (self.size - 1) if self._rates else None,
        )

    def open(self, options: CurriculumOptions) -> Curriculum:
        return Curriculum(options, self, lambda: self.updates)


def answered(prompt: Prompt, right: int, version: int = 0, *, answers: int = 4) -> Group:
    rollouts = [
        replace(
            rollout_of(f"g0/{n}", (3,), completion_of([5, 6], version=version)),
            prompt=prompt,
            judgement=Judgement(reward=0.0, grades={"it": Grade(value=0.0)}, is_right=n < right),
        )
        for n in range(answers)
    ]
    return group_of(0, rollouts)


def told(curriculum: Curriculum) -> dict[str, float]:
    return {name.removeprefix("curriculum/"): metric.value for name, metric in curriculum.take().items()}


def live(source: Source, curriculum: Curriculum, story) -> list[int]:
    """Ask and answer; the source indices that were asked."""
    asked, under_way = [], list[tuple[int, Prompt, int, int]]()
    for number, (right, updates, takes) in enumerate(story):
        source.updates += updates
        prompt = curriculum.next()
        asked.append(int(prompt.id.partition("/")[2]))
        under_way.append((number + takes, prompt, right, source.updates))
        for over in [one for one in under_way if one[0] <= number]:
            under_way.remove(over)
            curriculum.learn(answered(over[1], over[2], over[3]))
    return asked


@given(OPTIONS, STORIES, st.booleans())
def test_every_index_is_asked_once_or_counted_as_skipped_or_still_waits(options, story, rates):
    source = Source(rates=rates)
    curriculum = source.open(options)
    asked = live(source, curriculum, story)
    counts, state = told(curriculum), curriculum.state()
    assert len(asked) == len(set(asked)) == len(story)
    assert len(asked) + len(state.window) + sum(counts[name] for name in SKIPPED) == state.cursor
    assert not set(asked) & {index for index, _ in state.window}


@given(OPTIONS, STORIES, STORIES, st.booleans())
def test_a_curriculum_goes_on_from_its_state_as_if_it_had_never_stopped(options, before, after, rates):
    source, other = Source(rates=rates), Source(rates=rates)
    curriculum, again = source.open(options), other.open(options)
    live(source, curriculum, before)
    again.restore(curriculum.state())
    other.updates = source.updates
    assert again.state() == curriculum.state()
    assert live(other, again, after) == live(source, curriculum, after)
    assert told(again) == told(curriculum)


@given(st.sampled_from([{}, {"order": "easy-first", "choices": 1}]), STORIES)
def test_nothing_is_skipped_or_put_off_when_it_is_off(options, story):
    source = Source()
    curriculum = source.open(CurriculumOptions(**options))
    assert CurriculumOptions(**options).is_off
    assert live(source, curriculum, story) == list(range(len(story)))


@given(st.sampled_from(["easy-first", "medium-first"]), st.integers(2, 5), STORIES)
def test_an_order_skips_nothing_and_nobody_waits_for_ever(order, choices, story):
    source = Source()
    curriculum = source.open(CurriculumOptions(order=order, choices=choices))
    asked = live(source, curriculum, story)
    assert all(abs(place - index) <= (MOST_PASSED + 1) * choices for place, index in enumerate(asked))
    assert not any(told(curriculum)[name] for name in SKIPPED)


@pytest.mark.parametrize(("order", "expected"), [("easy-first", ["p/3", "p/2"]), ("medium-first", ["p/1", "p/2"])])
def test_an_order_takes_the_one_that_is_worth_most(order, expected):
    source = Source(size=4)
    curriculum = source.open(CurriculumOptions(order=order, choices=4))
    for number, right in enumerate((0, 2, 3, 4)):
        curriculum.learn(answered(source(number), right))
    assert [curriculum.next().problem for _ in range(2)] == expected


def test_what_is_not_measured_is_ordered_by_the_data_and_an_old_measure_goes_back_to_it():
    source = Source(size=4, rates=True)
    curriculum = source.open(CurriculumOptions(order="easy-first", choices=4, half_life=1.0))
    curriculum.learn(answered(source(0), 4))
    state = curriculum.state()
    assert curriculum.next().problem == "p/3", "the data say 1, and 4 of 4 with one answer at 0 mixed in is less"
    curriculum.restore(state)
    curriculum.learn(answered(source(3), 0))
    assert curriculum.next().problem == "p/0"
    curriculum.restore(state)
    curriculum.learn(answered(source(3), 0))
    source.updates = 40
    assert curriculum.next().problem == "p/3"


def test_a_problem_that_is_always_right_rests_and_is_asked_again():
    source = Source(size=3)
    curriculum = source.open(CurriculumOptions(retire_above=1.0, least_groups=1.5, rest=10))
    assert [curriculum.next().problem for _ in range(3)] == ["p/0", "p/1", "p/2"]
    curriculum.learn(answered(source(0), 4))
    assert curriculum.next().problem == "p/0", "one group is not evidence enough"
    curriculum.learn(answered(source(0), 4))
    assert [curriculum.next().problem for _ in range(4)] == ["p/1", "p/2", "p/1", "p/2"]
    counts = told(curriculum)
    assert (counts["skipped_easy"], counts["retired_easy"], counts["retired_hard"]) == (1, 1, 0)
    source.updates = 10
    assert curriculum.next().problem == "p/0"
    assert told(curriculum)["retired_easy"] == 0


def test_a_problem_that_is_never_right_rests_and_one_right_answer_wakes_it():
    source = Source(size=2)
    curriculum = source.open(CurriculumOptions(retire_below=0.0, least_groups=1.0, rest=1000))
    curriculum.learn(answered(source(0), 0))
    assert [curriculum.next().problem for _ in range(2)] == ["p/1", "p/1"]
    curriculum.learn(answered(source(0), 1))  # of one that was under way
    assert curriculum.next().problem == "p/0"


def test_evidence_of_old_weights_does_not_retire():
    for version, expected in ((8, "p/1"), (0, "p/0")):
        source = Source(size=2)
        source.updates = 8
        curriculum = source.open(CurriculumOptions(retire_above=1.0, least_groups=1.0, half_life=8.0))
        curriculum.learn(answered(source(0), 4, version))
        assert curriculum.next().problem == expected


def test_the_oldest_token_says_which_weights_it_was():
    source = Source(size=2)
    source.updates = 8
    curriculum = source.open(CurriculumOptions(retire_above=1.0, least_groups=1.0, half_life=8.0))
    group = answered(source(0), 4, 8)
    mixed = replace(group.rollouts[0], completion=completion_of([5, 6], version=[0, 8]))
    curriculum.learn(replace(group, rollouts=(mixed, *group.rollouts[1:])))
    assert curriculum.next().problem == "p/0"


def test_where_all_are_retired_the_one_that_rested_longest_is_asked():
    source = Source(size=3)
    curriculum = source.open(CurriculumOptions(retire_above=1.0, least_groups=0.5, rest=100, most_skipped=6))
    for number in (1, 2, 0):
        curriculum.learn(answered(source(number), 4))
        source.updates += 1
    assert [curriculum.next().id for _ in range(2)] == ["p/1", "p/7"]
    counts = told(curriculum)
    assert (counts["skipped_easy"], counts["woken"]) == (10, 2)


def test_a_source_without_a_problem_in_range_stops_with_the_settings_that_say_so():
    source = Source(rates=True)
    curriculum = source.open(CurriculumOptions(least=0.3, most=0.35, most_skipped=12))
    with pytest.raises(DataError, match=r"curriculum\.least = 0\.3 and most = 0\.35; the last 12 prompts .*'p/11'"):
        curriculum.next()


def test_rates_of_the_data_count_until_one_is_measured():
    source = Source(size=6, rates=True)
    curriculum = source.open(CurriculumOptions(least=0.3, most=0.7))
    assert [curriculum.next().problem for _ in range(4)] == ["p/2", "p/3", "p/2", "p/3"]
    curriculum.learn(answered(source(5), 2))
    assert [curriculum.next().problem for _ in range(3)] == ["p/5", "p/2", "p/3"]


def test_rollouts_that_failed_do_not_count_as_wrong():
    source = Source(size=2)
    curriculum = source.open(CurriculumOptions(retire_above=1.0, least_groups=0.5))
    curriculum.learn(answered(source(0), 2, answers=2))  # of four: two failed
    assert curriculum.next().problem == "p/1"
    assert told(curriculum)["pass_rate_mean"] == 1.0


def test_problems_without_a_key_are_never_measured():
    source = Source(has_keys=False)
    curriculum = source.open(CurriculumOptions(retire_above=0.5, least_groups=0.5))
    for index in range(5):
        assert curriculum.next().id == f"p/{index}"
        curriculum.learn(answered(source(index), 4))
    assert told(curriculum)["known"] == 0


def test_what_is_told_adds_up_and_is_told_once():
    source = Source(size=4)
    curriculum = source.open(CurriculumOptions(retire_above=1.0, retire_below=0.0, least_groups=0.5))
    for number, right in enumerate((0, 1, 3, 4)):
        curriculum.learn(answered(source(number), right))
    assert [curriculum.next().problem for _ in range(4)] == ["p/1", "p/2", "p/1", "p/2"]
    counts = told(curriculum)
    histogram = {name: count for name, count in counts.items() if name.startswith("pass_rate/")}
    assert histogram == Counter(
        {"pass_rate/0": 1, "pass_rate/0.25-0.5": 1, "pass_rate/0.75-1": 1, "pass_rate/1": 1}
    ) | dict.fromkeys(("pass_rate/0-0.25", "pass_rate/0.5-0.75"), 0)
    assert counts["pass_rate_mean"] == 0.5
    assert (counts["skipped_easy"], counts["skipped_hard"], counts["retired_easy"], counts["known"]) == (1, 2, 1, 4)
    assert "pass_rate_mean" not in told(curriculum)


def test_what_has_faded_leaves_the_state():
    source = Source(size=1000)
    curriculum = source.open(CurriculumOptions(retire_above=1.0, half_life=1.0, rest=1))
    for index in range(200):
        curriculum.learn(answered(source(index), 4, index))
        source.updates += 1
    assert len(curriculum.state().known) <= 12
    assert len(curriculum.state().resting) <= 2


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"retire_above": 1.5}, r"curriculum\.retire_above must be a pass rate in 0 \.\. 1; got 1\.5"),
        ({"half_life": 0.5}, r"curriculum\.half_life must be at least 1; got 0\.5"),
        ({"least_groups": 0.0}, r"curriculum\.least_groups must be at least 0\.01; got 0\.0"),
        ({"most_skipped": 0}, r"curriculum\.most_skipped must be at least 1; got 0"),
        ({"least": 0.5, "most": 0.4}, r"curriculum\.least must not be above most = 0\.4"),
        ({"retire_below": 0.5, "retire_above": 0.5}, r"retire_below must lie below retire_above = 0\.5"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        CurriculumOptions(**settings)
