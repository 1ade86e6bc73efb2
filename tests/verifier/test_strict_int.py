"""The strict-int mode: one integer from 0 to 999, and nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.verifier.strict_int import judge_strict_int

SPELLINGS = [
    *("{}", "{:03d}", "{:05d}", "${}$", "+{}", " {} ", "x={}", "\\text{{{}}}", "\\mathbf{{{}}}"),
    *("{}^\\circ", "{}^{{\\circ}}", "{}°", "{}\\%", "{}\\text{{ cm}}", "{}\\,\\text{{cm}}", "{}\\ \\mathrm{{cm}}"),
]
NOT_INTEGERS = [
    *(
        "204.0",
        "2,04",
        "204,",
        "1/2",
        "2^3",
        "408/2",
        "2e2",
        "20\\,4",
        "two",
        "204 or 205",
        "204, 205",
        "(204)",
    ),
    *(
        "{204}",
        "204_10",
        "204!",
        "\u0662\u0660\u0664",
        "\\frac{408}{2}",
        "x",
        "-",
        "204x",
        "I",
        "__import__('os')",
        "0xcc",
    ),
]


@pytest.mark.parametrize("number", [0, 7, 42, 204, 999])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_leading_zeros_dollars_and_units_do_not_matter(number, spelling):
    verdict = judge_strict_int("so \\boxed{" + spelling.format(number) + "}", str(number))
    assert (verdict.status, verdict.stage) == ("correct", "boxed:integer")


@pytest.mark.parametrize("reference", ["25", "025", "$25$", " 25 ", "0025"])
def test_a_reference_may_carry_leading_zeros(reference):
    assert judge_strict_int("\\boxed{25}", reference).is_correct


@pytest.mark.parametrize("answer", NOT_INTEGERS)
def test_what_is_not_one_integer_is_wrong(answer):
    verdict = judge_strict_int(f"\\boxed{{{answer}}}", "204")
    assert (verdict.status, verdict.stage) == ("wrong", "boxed:not-an-integer")


@pytest.mark.parametrize("answer", ["1000", "0001000", "-1", "-204", "9" * 5000])
def test_what_is_out_of_range_is_wrong(answer):
    verdict = judge_strict_int(f"\\boxed{{{answer}}}", "204")
    assert (verdict.status, verdict.stage) == ("wrong", "boxed:out-of-range")


def test_a_reference_out_of_range_is_met_by_nothing():
    assert judge_strict_int("\\boxed{204}", "1000").stage == "reference:out-of-range"
    assert judge_strict_int("\\boxed{1000}", "1000").status == "wrong"


def test_no_later_step_of_upstream_is_taken():
    for answer, reference in [("2", "200"), ("200", "2"), ("204.01", "204"), ("20400", "204")]:
        assert not judge_strict_int(f"\\boxed{{{answer}}}", reference).is_correct


def test_an_open_box_is_wrong():
    assert judge_strict_int("so \\boxed{204", "204").status == "wrong"


def test_the_answer_is_found_as_upstream_finds_it():
    assert judge_strict_int("The answer is 12. Next we check 13.", "12").stage == "answer:integer"
    assert judge_strict_int("204", "204").stage == "whole:integer"
    assert judge_strict_int("I think 204", "204").status == "wrong"
    assert judge_strict_int("\\boxed{204}. The answer is 205", "205").is_correct
    assert judge_strict_int("\\boxed{3} \\boxed{4}", "4").is_correct


@pytest.mark.parametrize("reference", ["0.5", "1/2", "(1,2)", "2\\sqrt{2}", "x", "", "25.."])
def test_a_reference_that_is_no_integer_is_a_parse_error(reference):
    verdict = judge_strict_int("\\boxed{25}", reference)
    assert (verdict.status, verdict.stage) == ("parse_error", "reference:not-an-integer")


@pytest.mark.parametrize("answer", ["The answer is 204.", "The answer: $204$.", "\\boxed{204.}", "So it is 204."])
def test_a_full_stop_belongs_to_the_sentence(answer):
    assert judge_strict_int(answer, "204").is_correct


def test_nothing_is_no_answer():
    assert judge_strict_int("", "5").status == "no_answer"


@given(answer=st.text(alphabet=st.characters(), max_size=80), reference=st.integers(0, 999))
def test_any_text_gets_a_verdict_and_always_the_same(answer, reference):
    assert judge_strict_int(answer, str(reference)) == judge_strict_int(answer, str(reference))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["~", "{", "\\boxed{", "9", "0", "\\,", "\\text{", "$", "is "])
def test_a_million_letters_get_a_verdict(text):
    assert not judge_strict_int(text * (1_000_000 // len(text)), "5").is_correct


def test_sympy_is_not_even_imported():
    lines = (
        "import sys",
        "from tether.verifier.strict_int import judge_strict_int",
        "assert judge_strict_int('5', '5').is_correct",
        "assert 'sympy' not in sys.modules",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
