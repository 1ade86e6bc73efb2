"""Rewards for the form of an answer: what fits, and what is wrong with what does not."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.errors import ConfigError
from tether.records import Answer, Grade, Prompt
from tether.registry import REWARDS
from tether.rewards.boxed import Boxed
from tether.rewards.tags import Tags

PROMPT = Prompt(id="p", text="?", token_ids=(1,), reference="3")
WORDS = st.text(alphabet=st.characters(blacklist_characters="<>\\{}"), max_size=20)
FILLED = WORDS.filter(str.strip)


def status(reward, text):
    grade = reward(PROMPT, Answer(text))
    assert grade.value == float(grade.status == "fits")
    return grade.status


@pytest.mark.parametrize(
    ("text", "told", "extracted"),
    [
        (r"\boxed{3}", "fits", "3"),
        (r"so $\boxed{ \frac{1}{2} }$.", "fits", r"\frac{1}{2}"),
        (r"\boxed {3}", "fits", "3"),
        ("\\boxed{三\n}", "fits", "三"),
        (r"\boxed{\{1, 2\}}", "fits", r"\{1, 2\}"),
        (r"\boxed{a\}}", "fits", r"a\}"),
        (r"\boxed{\\}", "fits", r"\\"),
        (r"\boxed{}", "empty", None),
        (r"\boxed{ }", "empty", None),
        ("", "missing", None),
        ("3", "missing", None),
        (r"\boxed 3", "missing", None),
        (r"boxed{3}", "missing", None),
        (r"\boxed{3", "unclosed", None),
        (r"\boxed{{3}", "unclosed", None),
        (r"\boxed{3\}", "unclosed", None),
        (r"\boxed{1}\boxed{2}", "several", None),
        (r"\boxed{\boxed{2}}", "several", None),
        (r"\boxed{1}\boxed{", "several", None),
    ],
)
def test_a_box_is_there_once_closed_and_not_empty(text, told, extracted):
    assert status(Boxed(), text) == told
    assert Boxed()(PROMPT, Answer(text)).extracted == extracted


def test_more_boxes_may_be_allowed_and_then_each_must_be_whole():
    two = Boxed(most=2)
    assert two(PROMPT, Answer(r"\boxed{1} no, \boxed{2}")).extracted == "2"
    assert status(two, r"\boxed{\boxed{2}}") == "fits"
    assert status(two, r"\boxed{} \boxed{2}") == "empty"
    assert status(two, r"\boxed{1} \boxed{2") == "unclosed"
    assert status(two, r"\boxed{1 \boxed{2}") == "unclosed"
    assert status(two, r"\boxed{1}" * 3) == "several"


@given(WORDS, FILLED, WORDS)
def test_whatever_stands_around_a_box_does_not_count(before, inside, behind):
    grade = Boxed()(PROMPT, Answer(f"{before}\\boxed{{{inside}}}{behind}"))
    assert grade == Grade(value=1.0, status="fits", extracted=inside.strip())


@pytest.mark.parametrize("reward", [Boxed(), Boxed(most=100), Tags(), Tags(text_outside=True)])
@pytest.mark.parametrize("text", ["\\boxed{", "{", "\\", "<think>", "<", "\\boxed" + " " * 99])
def test_a_long_answer_full_of_beginnings_is_judged_at_once(reward, text):
    began = time.perf_counter()
    assert reward(PROMPT, Answer(text * (200_000 // len(text)))).value == 0.0
    assert time.perf_counter() - began < 2.0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<think>a</think><answer>b</answer>", "fits"),
        ("\n<think>\nж щ\n</think>\n\n<answer> 三 </answer>\n", "fits"),
        ("<think>a < b</think><answer><b>1</b></answer>", "fits"),
        ("", "missing"),
        ("<think>a</think>", "missing"),
        ("<think>a</think><answer>b", "missing"),
        ("<Think>a</Think><answer>b</answer>", "missing"),
        ("<think >a</think><answer>b</answer>", "missing"),
        ("<think>a</think><think>c</think><answer>b</answer>", "several"),
        ("<think>a</think><answer>b</answer><answer>c</answer>", "several"),
        ("<think>a<answer>b</answer></think>", "order"),
        ("<answer>b</answer><think>a</think>", "order"),
        ("</think>a<think><answer>b</answer>", "order"),
        ("<think> </think><answer>b</answer>", "empty"),
        ("<think>a</think><answer></answer>", "empty"),
        ("So: <think>a</think><answer>b</answer>", "outside"),
        ("<think>a</think> hence <answer>b</answer>", "outside"),
        ("<think>a</think><answer>b</answer>!", "outside"),
    ],
)
def test_tags_are_there_once_each_in_order_and_filled(text, told):
    assert status(Tags(), text) == told


def test_text_outside_of_the_tags_may_be_allowed():
    loose = Tags(text_outside=True)
    assert status(loose, "So: <think>a</think> hence <answer>b</answer>!") == "fits"
    assert status(loose, "So: <think> </think> hence <answer>b</answer>!") == "empty"


def test_a_tag_that_the_prompt_opened_is_not_opened_again():
    begun = Tags(is_begun=True)
    assert status(begun, "a</think><answer>b</answer>") == "fits"
    assert status(begun, "<think>a</think><answer>b</answer>") == "several"
    assert status(begun, "</think><answer>b</answer>") == "empty"
    assert status(begun, "") == "missing"


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5, unique=True), st.data())
def test_any_names_in_their_order_fit_and_the_last_is_extracted(names, data):
    inside = [data.draw(FILLED) for _ in names]
    text = " ".join(f"<{name}>{words}</{name}>" for name, words in zip(names, inside, strict=True))
    assert Tags(names=tuple(names))(PROMPT, Answer(text)) == Grade(
        value=1.0, status="fits", extracted=inside[-1].strip()
    )
    assert Tags(names=tuple(names[::-1]))(PROMPT, Answer(text)).value == float(len(names) == 1)


@pytest.mark.parametrize("names", [(), ("a", "a"), ("a b",), ("",), ("<a>",), ("/a",)])
def test_names_that_are_no_tags_are_refused(names):
    with pytest.raises(ConfigError, match="names of the reward 'tags' must be different words"):
        Tags(names=names)


@pytest.mark.parametrize("most", [0, 101])
def test_a_number_of_boxes_that_makes_no_sense_is_refused(most):
    with pytest.raises(ConfigError, match=r"most of the reward 'boxed' must lie in 1 .. 100 boxes"):
        Boxed(most=most)


def test_they_are_found_by_name_and_judge_a_cut_answer_as_it_is():
    for name in ("boxed", "tags"):
        reward = REWARDS.build(name)
        assert not getattr(reward, "needs_end", False)
        assert reward(PROMPT, Answer("", is_cut=True)).status == "missing"
