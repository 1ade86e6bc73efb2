"""Which part of a response is its final answer."""

from __future__ import annotations

import pytest

from tether.verifier.extraction import bare_reference, boxes, extract
from tether.verifier.policies import Policies


@pytest.mark.parametrize(
    ("response", "text", "place"),
    [
        (r"First \boxed{2}, wait no. So \boxed{3}", "3", "boxed"),
        (r"I think \boxed{1}. The reason why it is \boxed{1} …", "1", "boxed"),
        (r"\boxed{\boxed{\frac{1}{2}}}", r"\frac{1}{2}", "boxed"),
        (r"\boxed{x = \boxed{5}}", "5", "boxed"),
        (r"\fbox{5}", "5", "boxed"),
        (r"\boxed 42", "42", "boxed"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}", "boxed"),
        (r"\boxed{$5$}", "5", "boxed"),
        (r"text \boxed{41} <answer>\boxed{42}</answer>", "42", "boxed"),
        (r"<answer>1</answer> <answer> 2 </answer> \boxed{3}", "2", "tag"),
        ("<answer>the answer is 42.</answer>", "42", "marked"),
        ("437 + 2*234 = 905. Final Answer: **73**", "73", "marked"),
        ("**Final Answer**\n\n73", "73", "marked"),
        ("**Final Answer:** 73", "73", "marked"),
        ("The answer is 12. Next we check 13.", "12", "marked"),
        ("The answer is 1. No: the answer is 2", "2", "marked"),
        ("the answer is $x = 5$ because 5 is prime", "x = 5", "marked"),
        ("the answer is $5$ cm.", "5 cm", "marked"),
        ("the answer is $5$ or $6$.", "$5$ or $6$", "marked"),
        ("the answer is $2$ times $3$", "$2$ times $3$", "marked"),
        ("The answer is 0.5 since half of it is gone", "0.5", "marked"),
        ("6 * 7 = 42\n#### 42", "42", "marked"),
        ("So it is\n\n**73**", "73", "marked"),
        ("**73**", "73", "whole"),
        ("$73$.", "73", "whole"),
        (r"\[ 73 \]", "73", "whole"),
        ("I don't know.", "I don't know", "whole"),
        (r"<think>\boxed{1}</think> \boxed{2}", "2", "boxed"),
        ("<think>the answer is 1</think> 2", "2", "whole"),
        (r"I gave up \boxed{4 here. Then: \boxed{5}", "5", "boxed"),
    ],
)
def test_the_last_marked_answer_of_the_narrowest_scope_is_the_answer(response: str, text: str, place: str) -> None:
    found = extract(response)
    assert (found.text, found.place) == (text, place)


@pytest.mark.parametrize(
    "response",
    [
        *(
            "",
            "   ",
            "\n",
            r"\boxed{}",
            r"\boxed{ }",
            r"\boxed{$$}",
            r"\boxed{204",
            r"\boxed{3} then \boxed{",
            r"\boxed",
        ),
        *(r"\boxed{x = \boxed{5}", r"\boxed{\frac{1}{2}", "<think>\\boxed{5}", "<think>5", "<think>a</think>"),
        *("the answer is", "####", "<answer></answer>", "<answer>4", r"5 <think>\boxed{6}</think>"),
    ],
)
def test_an_empty_a_truncated_and_a_merely_thought_answer_is_none(response: str) -> None:
    assert extract(response).text is None


@pytest.mark.parametrize("between", ["", " ", ", ", " and ", "$ or $"])
def test_boxes_side_by_side_are_the_last_or_a_list_by_policy(between: str) -> None:
    response = rf"\boxed{{1}}{between}\boxed{{2}}"
    assert extract(response).text == "2"
    assert extract(response, Policies(adjacent_boxes="list")).text == "1, 2"
    assert extract(response).policy == "adjacent_boxes"


def test_boxes_apart_are_never_a_list() -> None:
    found = extract(r"\boxed{1} is wrong, so \boxed{2}", Policies(adjacent_boxes="list"))
    assert (found.text, found.policy) == ("2", "")


def test_braces_balance_and_escaped_ones_do_not_count() -> None:
    text = r"a } \boxed{\frac{1}{\sqrt{2}}} { \boxed{\}}"
    assert [text[box.inside] for box in boxes(text) if box.inside] == [r"\frac{1}{\sqrt{2}}", r"\}"]


@pytest.mark.parametrize(
    "reference",
    ["42", "$42$", r"\boxed{42}", r"$\boxed{42}$", "6 * 7 = 42\n#### 42", "42.", r"\(42\)", r"so \boxed{42}."],
)
def test_a_reference_is_read_without_what_is_around_it(reference: str) -> None:
    assert bare_reference(reference) == "42"
