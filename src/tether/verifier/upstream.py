r"""The ``upstream`` mode: verdicts as those of verl's ``prime_math`` score, with all its quirks, for parity of rewards.

The score came with PRIME (arXiv 2502.01456). Six steps: the answer is found; compared in Hendrycks' spelling; as
PRM800K's plain text; by structure; by SymPy, where the expressions are small; and at last by numbers, loosely. Nothing
of the model's text is evaluated.
"""

from __future__ import annotations

from .gate import too_large
from .hendrycks import hendrycks
from .prm800k import prm800k
from .upstream_extraction import extract
from .upstream_fallback import compare_by_fallback
from .upstream_structure import Compared, compare_by_structure
from .upstream_symbolic import symbolically_equal
from .verdict import Status, Verdict


def judge_upstream(answer: str, reference: str) -> Verdict:
    r"""Whether the prime_math score is 1 for this response.

    The stage is where the answer was found, and the step that decided: ``hendrycks``, ``prm800k``; ``brackets``,
    ``length``, ``fraction``, ``integer`` (structure); ``sympy``; ``number``, ``text``, ``elements`` (the last step).
    A step that only failed to read says so: ``unread``, ``guard``, ``failed``. Such an answer scores 0 as upstream, and
    is a ``parse_error`` where no step could compare it.

    >>> judge_upstream(r"so \boxed{\frac{1}{2}}", "0.5")
    Verdict(status='correct', extracted='\\frac{1}{2}', stage='boxed:hendrycks', policy='')
    >>> judge_upstream(r"\boxed{2}", "200").stage, judge_upstream("I think 204", "204").status
    ('boxed:number', 'wrong')
    >>> judge_upstream(r"\boxed{2/4}", "1/2").stage, judge_upstream(r"\boxed{2/4}", "0.5").stage
    ('boxed:fraction', 'boxed:sympy')
    """
    found = extract(answer)
    status, stage = graded(found.text, reference)
    return Verdict(
        status=status,
        extracted=found.text if found.text.strip() else None,
        stage=f"{found.place}:{stage}" if stage else "",
    )


def graded(answer: str, reference: str) -> tuple[Status, str]:
    """What becomes of an extracted answer, and by which step."""
    if hendrycks(reference) == hendrycks(answer):
        return "correct", "hendrycks"
    wanted, got = prm800k(reference), prm800k(answer)
    if wanted == got:
        return "correct", "prm800k"
    said = compare_by_structure(wanted, got, compare_symbols) if got.strip() else None
    if said is not None and said.is_equal:
        return "correct", said.by
    last = compare_by_fallback(answer, reference)
    if last.is_equal:
        return "correct", last.by
    if said is None:
        return "no_answer", ""
    return refused(said, last)


def refused(said: Compared, last: Compared) -> tuple[Status, str]:
    """Why an answer is not right: by the last step that could compare it, or because none could."""
    if last.is_equal is False:
        return "wrong", last.by
    if said.is_equal is False and last.by != "failed":
        return "wrong", said.by
    if said.by == "too-large":
        return "too_large", said.by
    return "parse_error", last.by if last.by == "failed" else said.by


def compare_symbols(reference: str, answer: str) -> Compared:
    """Step 5, behind the gate."""
    if too_large(reference) or too_large(answer):
        return Compared(None, "too-large")
    return symbolically_equal(reference, answer)
