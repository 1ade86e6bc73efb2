"""Where users disagree, an option decides, and the verdict names it."""

from __future__ import annotations

import dataclasses

import pytest

from tether.verifier.policies import Policies
from tether.verifier.robust import judge_robust

DISPUTED = [
    # reference, answer, option, value that accepts, value that rejects
    (r"50\%", "50", "percent", "unit", "value"),
    ("0.5", r"50\%", "percent", "value", "unit"),
    (r"5\text{ cm}", "5", "units", "optional", "required"),
    ("5", r"\$5", "units", "optional", "required"),
    ("1,2,3", "3,1,2", "order", "any", "kept"),
    ("1,2", r"\{2,1\}", "set_braces", "optional", "required"),
    ("(1,2)", "1,2", "parentheses", "optional", "required"),
    ("33.3", r"\frac{100}{3}", "rounding", "reference", "exact"),
    ("0.667", "0.66667", "rounding", "reference", "exact"),
    ("B", r"\text{(B)}", "choice_letters", "loose", "exact"),
    ("B", "B) 42", "choice_letters", "loose", "exact"),
    ("12,345", "12, 345", "thousands", "loose", "strict"),
    ("3:2", "6:4", "ratio", "reduced", "exact"),
    ("3:2", r"\frac{3}{2}", "ratio", "reduced", "exact"),
    ("11_8", "11", "base_suffix", "optional", "required"),
    ("11_8", "9", "base_suffix", "required", "optional"),
    ("[0,1]", r"0 \le x \le 1", "intervals", "same", "distinct"),
    (r"(-\infty,1)\cup(2,\infty)", r"x<1 \text{ or } x>2", "intervals", "same", "distinct"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)", "vectors", "same", "distinct"),
    (r"\text{No solution}", "no solutions", "text", "plural", "case"),
    (r"\text{No}", "no", "text", "case", "exact"),
    ("x", r"\sqrt{x^2}", "positive_variables", True, False),
    (r"2\ln x", r"\ln x^2", "positive_variables", True, False),
    ("2", r"\boxed{1}\boxed{2}", "adjacent_boxes", "last", "list"),
    ("1,2", r"\boxed{1}\boxed{2}", "adjacent_boxes", "list", "last"),
    (r"\ln 2", r"\log 2", "logarithm", "natural", "ten"),
    ("2", r"\log 100", "logarithm", "ten", "natural"),
    ("5", "x=5", "names", "optional", "required"),
]


@pytest.mark.parametrize(("gold", "answer", "option", "accepts", "rejects"), DISPUTED)
def test_an_option_decides_and_is_named(
    gold: str, answer: str, option: str, accepts: str | bool, rejects: str | bool
) -> None:
    right = judge_robust(answer, gold, dataclasses.replace(Policies(), **{option: accepts}))
    wrong = judge_robust(answer, gold, dataclasses.replace(Policies(), **{option: rejects}))
    assert right.is_correct
    assert not wrong.is_correct
    assert option in (right.policy, wrong.policy)


def test_every_option_is_tried_under_two_values() -> None:
    assert {option for _, _, option, _, _ in DISPUTED} == {field.name for field in dataclasses.fields(Policies)}


@pytest.mark.parametrize(("gold", "answer", "option", "accepts", "rejects"), DISPUTED)
def test_no_option_makes_a_text_unequal_to_itself(
    gold: str, answer: str, option: str, accepts: str | bool, rejects: str | bool
) -> None:
    for value in (accepts, rejects):
        assert judge_robust(gold, gold, dataclasses.replace(Policies(), **{option: value})).is_correct


@pytest.mark.parametrize("answer", ["33.2", "33.4", r"\frac{67}{2}", "33", "0", "333", "-33.3", "33.35", "33.25"])
def test_rounding_accepts_only_what_rounds_to_the_reference(answer: str) -> None:
    is_right = answer in ("33.35", "33.25")
    assert judge_robust(answer, "33.3", Policies(rounding="reference")).is_correct is is_right
