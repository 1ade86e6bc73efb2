"""The mode ``robust`` on the pairs of the log, and on others of each of their kinds."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tether.verifier.policies import Policies
from tether.verifier.robust import judge_robust
from tether.verifier.verdict import Status

from .a15 import PAIRS, Pair
from .cases import CASES

PIECES = (
    *(
        r"\boxed{",
        r"\frac",
        r"\sqrt",
        r"\text{",
        r"\{",
        r"\}",
        r"\le",
        r"\ldots",
        r"\pm",
        r"\cup",
        r"\infty",
        "sin",
        "**",
    ),
    *(
        "####",
        "<think>",
        "</think>",
        "<answer>",
        "the answer is ",
        "and",
        "11_8",
        "1e-3",
        r"\%",
        "12,345",
        "½",
        "²",
        "\n",
    ),
)
WEIRD = (
    *(
        "",
        " ",
        "$$",
        r"\boxed{}",
        r"\boxed{204",
        "}",
        "{",
        "\\",
        "None",
        "nan",
        "inf",
        "-",
        "?",
        "...",
        "A",
        "E",
        "i",
        "e",
    ),
    *(
        "∅",
        "日本",
        r"\text{}",
        r"\text{Cannot be determined}",
        "x^",
        "4+",
        "((",
        r"\frac{1}{",
        "|",
        "1/0",
        r"\frac{0}{0}",
        "0^0",
    ),
    *(
        "12:00",
        "100000000!",
        "10^{10^{10}}",
        r"\begin{cases}1&x>0\\0&x<0\end{cases}",
        r"\{x\mid x>3\}",
        "a,b,c,...",
        r"\ldots",
    ),
)
REFERENCES = tuple(dict.fromkeys([gold for gold, _, _ in CASES] + [pair.gold for pair in PAIRS] + list(WEIRD)))
LONG = (
    r"\boxed{" * 1000, r"\boxed{" * 10_000 + "5" + "}" * 10_000, "{" * 10_000 + "1" + "}" * 10_000, "(" * 10_000,
    "9" * 1_000_000, " " * 1_000_000 + "x", "5" + ".;" * 300_000, "the answer is 5" + " " * 500_000 + "x",
    "answer" + " " * 1_000_000 + "x", r"\boxed{ " * 50_000 + r"\boxed{1}", "-" * 3000 + "x", "+".join(["x"] * 1500),
    "$a" * 200_000, "**a" * 300_000,
)  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)
def test_each_pair_of_the_log_gets_the_right_verdict(pair: Pair) -> None:
    assert judge_robust(pair.prediction, pair.gold).is_correct is pair.is_right


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair.policy], ids=lambda pair: pair.id)
def test_a_pair_on_which_users_disagree_is_decided_by_a_named_policy(pair: Pair) -> None:
    by_default = judge_robust(pair.prediction, pair.gold)
    turned = dataclasses.replace(Policies(), **{pair.policy: pair.other})
    other = judge_robust(pair.prediction, pair.gold, turned)
    assert other.is_correct is not by_default.is_correct
    assert pair.policy in (by_default.policy, other.policy)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)
def test_each_text_of_the_log_equals_itself(pair: Pair) -> None:
    assert judge_robust(pair.gold, pair.gold).is_correct


@pytest.mark.parametrize(("gold", "answer", "is_right"), CASES)
def test_pairs_of_the_same_kinds_are_judged_alike_bare_and_in_a_box(gold: str, answer: str, is_right: bool) -> None:
    assert judge_robust(answer, gold).is_correct is is_right
    boxed = judge_robust(rf"Hence we get $\boxed{{{answer}}}$.", rf"${gold}$" if "$" not in gold else gold)
    assert boxed.is_correct is is_right
    assert boxed.stage.startswith("boxed:") or boxed.status == "no_answer"


ONE_WAY = {("11_{8}", "9"), ("11", "11_8"), ("9", "11_8"), ("B", "B) 42")}
"""The suffix of a base and the text of a choice may be left out by one side alone."""


@pytest.mark.parametrize(("gold", "answer", "is_right"), [case for case in CASES if case[:2] not in ONE_WAY])
def test_verdicts_do_not_depend_on_which_side_is_the_reference(gold: str, answer: str, is_right: bool) -> None:
    assert judge_robust(gold, answer).is_correct is is_right


@pytest.mark.parametrize(
    "answer", ["Option B", "(B)42", r"(B)\ \text{increasing}", r"B) 2\text{ or }3", "B: 3x+1", "B"]
)
def test_a_letter_is_chosen_with_whatever_text_its_choice_has(answer: str) -> None:
    assert judge_robust(rf"\boxed{{{answer}}}", "B").is_correct


@pytest.mark.parametrize("answer", ["B or C", "B) C)", "B, (c)", "(B)(D)", "B/C", r"(B)\text{ or }(C)", "B. or A."])
def test_two_letters_are_no_choice(answer: str) -> None:
    assert not judge_robust(rf"\boxed{{{answer}}}", "B").is_correct


def test_there_are_enough_references_to_speak_of_self_consistency() -> None:
    assert len(REFERENCES) >= 150


@pytest.mark.parametrize("gold", REFERENCES)
def test_every_reference_equals_itself(gold: str) -> None:
    assert judge_robust(gold, gold).is_correct


def is_whole(text: str) -> bool:
    return bool(text.strip(" $\\")) and text.count("{") == text.count("}") and "boxed" not in text


@pytest.mark.parametrize("gold", [gold for gold in REFERENCES if is_whole(gold)])
def test_every_reference_equals_itself_in_dollars_and_in_a_box(gold: str) -> None:
    assert judge_robust(f"${gold}$", gold).is_correct
    assert judge_robust(rf"So \boxed{{{gold}}}", gold).is_correct


ALPHABET = st.sampled_from([*"0123456789xyznei.,;:+-*/^_=<>(){}[]|!%$ ", *PIECES])


@given(st.lists(ALPHABET, max_size=12).map("".join))
@settings(max_examples=300, deadline=None)
def test_any_text_equals_itself_and_none_raises(text: str) -> None:
    assert judge_robust(text, text).is_correct
    assert judge_robust(text, "17").status in get_args(Status)
    assert judge_robust("17", text).status in get_args(Status)


@given(st.text(max_size=40), st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_unicode_never_raises(answer: str, reference: str) -> None:
    assert judge_robust(answer, reference).status in get_args(Status)
    assert judge_robust(rf"\boxed{{{answer}}}", reference).status in get_args(Status)


@given(st.fractions(), st.fractions())
def test_two_fractions_are_equal_exactly_if_they_are(a: Fraction, b: Fraction) -> None:
    written = rf"\frac{{{a.numerator}}}{{{a.denominator}}}"
    assert judge_robust(rf"\boxed{{{written}}}", str(b)).is_correct is (a == b)
    assert judge_robust(rf"\boxed{{{written}}}", str(a)).is_correct


@pytest.mark.parametrize("value", [None, 3, 0.5, b"1", ["1"]])
def test_what_is_no_text_is_a_type_error_that_names_the_argument(value: object) -> None:
    with pytest.raises(TypeError, match="answer"):
        judge_robust(value, "1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="reference"):
        judge_robust("1", value)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", LONG, ids=lambda text: f"{text[:12]!r}...")
def test_long_and_deep_answers_are_judged_in_time(text: str) -> None:
    start = time.perf_counter()
    assert not judge_robust(text, "17").is_correct
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize(
    "bomb", ["10^{10^{10}}", "100000000!", "2^{2^{2^{2^{2^{2}}}}}", r"\sum_{k=1}^{10^9}\frac1k", "x^{10^9}", "((5!)!)!"]
)
def test_values_that_are_too_large_are_refused_unread(bomb: str) -> None:
    assert judge_robust(rf"\boxed{{{bomb}}}", "1").status == "too_large"
    assert judge_robust("1", bomb).status == "too_large"
    assert judge_robust(rf"\boxed{{{bomb}}}", bomb).is_correct


def test_plain_pairs_never_import_sympy() -> None:
    program = (
        "import sys; from tether.verifier.robust import judge_robust as j;"
        r"assert j(r'\boxed{\frac{1}{2}}', '0.5').is_correct; assert not j(r'\boxed{12}', '13').is_correct;"
        r"assert j('1,000', '1000').is_correct; assert j(r'\boxed{(1,2)}', '(1, 2)').is_correct;"
        "assert 'sympy' not in sys.modules and 'mpmath' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_verdict_is_the_same_in_a_thread() -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda case: judge_robust(case[1], case[0]).is_correct, CASES))
    assert found == [is_right for _, _, is_right in CASES]


def test_stage_says_where_the_answer_was_and_what_decided() -> None:
    assert judge_robust(r"\boxed{0.5}", r"\frac12").stage == "boxed:number"
    assert judge_robust("x^2 - 1", "(x-1)(x+1)").stage == "whole:symbolic"
    assert judge_robust("the answer is Paris.", "paris").stage == "marked:text"
    assert judge_robust("<answer>(1, 0.5)</answer>", r"(1, \frac{1}{2})").stage == "tag:structure"
    assert judge_robust(r"$\sum_{k=1}^{10} k$", "55").stage == "whole:library"


def test_statuses_tell_why_an_answer_is_not_right() -> None:
    assert judge_robust(r"\boxed{5}", "6").status == "wrong"
    assert judge_robust(r"\boxed{}", "6").status == "no_answer"
    assert judge_robust("", "6").status == "no_answer"
    assert judge_robust(r"\boxed{4\sqrt{}", "6").status == "no_answer"
    assert judge_robust(r"\boxed{4+}", "6").status == "parse_error"
    assert judge_robust(r"\boxed{\sqrt{2}^{10000!}}", "6").status == "too_large"
