"""Several rewards as one: the sum, each grade apart, who decides, and what happens when one of them fails."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.errors import ConfigError, RewardError
from tether.records import Answer, Grade, Prompt
from tether.rewards.composition import Composition, Part, alone
from tether.rewards.exact import Exact
from tether.rewards.python import Python

from . import judges

PROMPT = Prompt(id="p", text="1+2=", token_ids=(1,), reference="3")
HERE = "tests.rewards.judges"
NUMBERS = st.floats(-1e3, 1e3)


def part(label, value, **more):
    return Part(label=label, reward=lambda prompt, answer: value, **more)


def failing(prompt, answer):
    raise LookupError("no judge")


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=5))
def test_the_reward_is_the_weighted_sum_and_every_grade_is_kept_before_its_weight(parts):
    composition = Composition(tuple(part(f"p{n}", value, weight=weight) for n, (value, weight) in enumerate(parts)))
    judgement = composition(PROMPT, Answer("3"))
    assert judgement.reward == pytest.approx(sum(value * weight for value, weight in parts))
    assert [grade.value for grade in judgement.grades.values()] == [value for value, _ in parts]


@pytest.mark.parametrize(("decides", "is_right"), [("", True), ("math", True), ("style", False)])
def test_one_part_decides_whether_an_answer_is_right_and_its_weight_does_not_count(decides, is_right):
    composition = Composition((part("math", 1.0, weight=0.1), part("style", 0.9, weight=9.0)), decides)
    assert composition(PROMPT, Answer("3")).is_right is is_right


@pytest.mark.parametrize(("value", "told"), [(1.0, {"math", "short", "any"}), (0.0, {"math", "blame", "any"})])
def test_a_part_for_right_or_wrong_answers_is_asked_about_no_others(value, told):
    asked = []

    def watching(label):
        return lambda prompt, answer: asked.append(label) or 1.0

    composition = Composition(
        (
            Part(label="short", reward=watching("short"), weight=10.0, when="right"),
            Part(label="blame", reward=watching("blame"), weight=-10.0, when="wrong"),
            Part(label="any", reward=watching("any")),
            part("math", value),
        ),
        "math",
    )
    judgement = composition(PROMPT, Answer("3"))
    assert set(judgement.grades) == told == {*asked, "math"}
    assert judgement.reward == (10.0 if value else -10.0) + 1.0 + value
    assert list(judgement.grades) == [p.label for p in composition.parts if p.label in told]


@pytest.mark.parametrize(
    ("parts", "decides", "message"),
    [
        ((), "", r"at least one part; add \[\[reward.parts\]\]"),
        ((part("a", 1), part("a", 2)), "", "two parts of the reward are called 'a'; give one of them another label"),
        ((part("a", 1), part("b", 2)), "c", "reward.decides is 'c', but the parts are a, b"),
        ((part("a", 1, when="wrong"), part("b", 2)), "", "part 'a' decides whether an answer is right, so it is asked"),
    ],
)
def test_a_composition_that_cannot_work_is_refused(parts, decides, message):
    with pytest.raises(ConfigError, match=message):
        Composition(parts, decides)


def test_a_cut_answer_is_0_by_a_reward_that_needs_an_end_and_judged_by_every_other():
    composition = Composition((Part(label="exact", reward=Exact()), part("other", 2.0)))
    cut, whole = composition.judge_all([(PROMPT, Answer("3", is_cut=True)), (PROMPT, Answer("3"))])
    assert (cut.grades["exact"], cut.grades["other"].value) == (Grade(value=0.0, status="cut"), 2.0)
    assert not cut.is_right
    assert whole.is_right


@pytest.mark.parametrize("value", [float("nan"), None, "1", float("inf"), 1e31])
@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_a_part_without_a_number_fails_the_answer_whatever_its_weight(value, weight):
    composition = Composition((part("fine", 1.0), part("bad", value, weight=weight)))
    with pytest.raises(RewardError, match="for rollout g3/1 of prompt p") as refused:
        composition(PROMPT, Answer("3", id="g3/1"))
    assert refused.value.rollout_id == "g3/1"


@pytest.mark.parametrize("place", [0, 1])
def test_a_part_that_raises_fails_its_answer_alone(place):
    def moody(prompt, answer):
        return failing(prompt, answer) if answer.text == "bad" else 1.0

    parts = [part("fine", 1.0)]
    parts.insert(place, Part(label="moody", reward=moody))
    told = Composition(tuple(parts)).judge_all([(PROMPT, Answer(text, id=text)) for text in ("good", "bad", "good")])
    assert [getattr(one, "reward", None) for one in told] == [2.0, None, 2.0]
    assert type(told[1]) is RewardError
    assert told[1].rollout_id == "bad"
    assert isinstance(told[1].__cause__, LookupError)


@pytest.mark.parametrize("field", ["status", "stage", "extracted"])
def test_a_grade_whose_words_are_no_text_is_refused_before_it_meets_the_journal(field):
    wrong = Grade(value=1.0)
    object.__setattr__(wrong, field, 7)  # the types of records are checked in tests alone
    reward = alone(lambda prompt, answer: wrong, "it")
    with pytest.raises(RewardError, match="status, stage and extracted of a Grade must be text; for rollout g3/1"):
        reward(PROMPT, Answer("3", id="g3/1"))


def test_one_that_gathers_is_asked_once_and_not_about_those_that_have_failed():
    judges.BATCHES.clear()

    def moody(prompt, answer):
        return failing(prompt, answer) if answer.text == "bad" else 1.0

    parts = (Part(label="moody", reward=moody), Part(label="sizes", reward=Python(f"{HERE}:sizes", batched=True)))
    composition = Composition(parts)
    told = composition.judge_all([(PROMPT, Answer(text)) for text in ("a", "bad", "abc")])
    assert composition.gathers
    assert judges.BATCHES == [["a", "abc"]]
    assert [getattr(one, "reward", None) for one in told] == [6.0, None, 8.0]
    assert not Composition(parts[:1]).gathers


def test_nothing_asked_is_nothing_told():
    judges.BATCHES.clear()
    assert alone(Python(f"{HERE}:sizes", batched=True), "it").judge_all([]) == []
    assert judges.BATCHES == []
