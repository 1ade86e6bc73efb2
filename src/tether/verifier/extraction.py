"""Which part of a response is its final answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tether.verifier.policies import Policies
from tether.verifier.spelling import unwrap

Place = Literal["boxed", "tag", "marked", "whole", "none"]
"""``tag``: all of an ``<answer>``; ``marked``: after words such as 'the answer is'; ``whole``: nothing was marked."""

OPENER = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
BRACES = re.compile(r"\\.|[{}]|\Z", re.DOTALL)
GAP = r"\s{0,20}"
MARKER = re.compile(
    rf"####|final\s{{1,20}}answers?{GAP}(?:\*\*)?{GAP}(?::|is\b|are\b|(?=\n))|\banswers?\s{{1,20}}(?:is|are)\b"
    rf"|\banswers?{GAP}(?:\*\*)?{GAP}:",
    re.IGNORECASE,
)
BOLD = re.compile(r"\*\*([^*\n]+)\*\*")
BARE = re.compile(r"[+-]?\w+(?:[.,/]\w+)*")
GIVEN_UP = re.compile(r"\n|\.\s")
UNIT = re.compile(r"\\?%|[A-Za-z]{2,12}(?: [A-Za-z]{2,12})?")
CLAUSE = re.compile(r"\. |,? (?:because|since|as|which|so|hence)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """A final answer and where it stood.

    >>> extract("First <think>5</think> the answer is 7.").text
    '7'
    """

    text: str | None
    """The answer without its marks; ``None`` where there is none."""
    place: Place
    policy: str = ""
    """The option that chose among several, if one did."""


@dataclass(frozen=True, slots=True)
class Box:
    """One ``\\boxed{...}``: where it starts and ends in the text, and where what it holds does."""

    start: int
    end: int
    inside: slice | None
    """``None`` if it never closes."""


def boxes(text: str) -> list[Box]:
    r"""All boxes in order of their start, nested ones too; one pass, whatever the depth.

    >>> text = r"\boxed{\frac{1}{2}} or \boxed 5 or \boxed{"
    >>> [text[box.inside] if box.inside else None for box in boxes(text)]
    ['\\frac{1}{2}', '5', None]
    """
    found: list[Box] = []
    openers = [(m.start(), m.end()) for m in OPENER.finditer(text)]
    if not openers:
        return found
    closes = _closing(text)
    for start, inside in openers:
        if inside >= len(text):
            found.append(Box(start, len(text), None))
        elif text[inside] == "{":
            end = closes.get(inside)
            found.append(Box(start, len(text), None) if end is None else Box(start, end + 1, slice(inside + 1, end)))
        elif (bare := BARE.match(text, inside)) is not None:
            found.append(Box(start, bare.end(), slice(*bare.span())))
    return found


def extract(answer: str, policies: Policies | None = None) -> Extracted:
    r"""The final answer of a response: last answer tag first, then last box, then last marker, else all of it.

    >>> extract(r"so \boxed{41} <answer>\boxed{42}</answer>")
    Extracted(text='42', place='boxed', policy='')
    >>> extract(r"\boxed{204").text is None
    True
    """
    scope, is_tagged, is_open = _scope(answer)
    found = boxes(scope)
    if found:
        return _boxed(scope, found, policies or Policies())
    if is_open:
        return Extracted(text=None, place="none")
    if (marked := _marked(scope)) is not None:
        marked = unwrap(marked)
        return Extracted(text=marked or None, place="marked" if marked else "none")
    text = unwrap(scope)
    if not text:
        return Extracted(text=None, place="none")
    last = text.rsplit("\n", 1)[-1].strip()
    if not is_tagged and (bold := BOLD.fullmatch(last)) is not None:
        return Extracted(text=unwrap(bold[1]) or None, place="marked")
    return Extracted(text=text, place="tag" if is_tagged else "whole")


def bare_reference(reference: str) -> str:
    r"""What a reference says, without its box, its dollar signs, or the solution before ``####``.

    >>> bare_reference(r"\boxed{\frac{1}{3}}"), bare_reference("6 * 7 = 42\n#### 42")
    ('\\frac{1}{3}', '42')
    """
    closed = [box.inside for box in boxes(reference) if box.inside is not None]
    if closed:
        return unwrap(reference[closed[-1]])
    return unwrap(reference.rsplit("####", 1)[-1])


def _closing(text: str) -> dict[int, int]:
    """For each opening brace that closes: where. Escaped braces do not count."""
    stack: list[int] = []
    closes: dict[int, int] = {}
    for m in BRACES.finditer(text):
        if m[0] == "{":
            stack.append(m.start())
        elif m[0] == "}" and stack:
            closes[stack.pop()] = m.start()
    return closes


def _scope(answer: str) -> tuple[str, bool, bool]:
    """The part that may hold the answer; whether it is all of a tag; whether that tag was never closed."""
    text = answer
    if "</think>" in text:
        text = text.rsplit("</think>", 1)[1]
    if "<think>" in text:
        text = text.split("<think>", 1)[0]
    start = text.rfind("<answer>")
    if start < 0:
        return text, False, False
    end = text.find("</answer>", start)
    inside = text[start + len("<answer>") :] if end < 0 else text[start + len("<answer>") : end]
    return inside, True, end < 0


def _boxed(text: str, found: list[Box], policies: Policies) -> Extracted:
    last = found[-1]
    cut = next((box for box in reversed(found) if box.inside is None), None)
    # a box that is open around the last one, as in "\boxed{x = \boxed{5}", is cut; one given up long before is not
    is_cut = cut is not None and not GIVEN_UP.search(text, cut.start, last.start)
    content = "" if is_cut or last.inside is None else unwrap(text[last.inside])
    if not content:
        return Extracted(text=None, place="none")
    run = [last]
    for box in reversed(found[:-1]):
        is_beside = box.inside is not None and box.end <= run[-1].start
        if not is_beside or text[box.end : run[-1].start].strip(" \t\n,;$") not in ("", "and", "or"):
            break
        run.append(box)
    if len(run) == 1:
        return Extracted(text=content, place="boxed")
    if policies.adjacent_boxes == "list":
        content = ", ".join(unwrap(text[box.inside]) for box in reversed(run) if box.inside is not None)
    return Extracted(text=content, place="boxed", policy="adjacent_boxes")


def _marked(text: str) -> str | None:
    """What follows the last marker: its line, or the next one where that is empty."""
    marks = list(MARKER.finditer(text))
    if not marks:
        return None
    rest = text[marks[-1].end() :].lstrip(" \t:*").lstrip()
    math = re.match(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\$([^$]+)\$(?!\s*(?:,|and\b|or\b)\s*\$)", rest, re.DOTALL)
    if math is not None:
        tail = " ".join(rest[math.end() :].split("\n", 1)[0].split())
        tail = CLAUSE.split(f" {tail}", maxsplit=1)[0].strip(" .*")
        inside = next(group for group in math.groups() if group is not None).strip()
        if not tail or tail[0] in ",;(":
            return inside
        if UNIT.fullmatch(tail):
            return f"{inside} {tail}"
    line = " ".join(rest.split("\n", 1)[0].split())
    if (bold := BOLD.match(line)) is not None:
        return bold[1]
    return CLAUSE.split(line, maxsplit=1)[0].strip().strip("*")
