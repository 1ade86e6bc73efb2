r"""Hendrycks' normalisation: how a mathematical answer is spelled before two spellings are compared as strings.

The grader of the MATH data set (arXiv 2103.03874) compares answers so; step 2 of the ``upstream`` mode.
"""

from __future__ import annotations

import re

ENCLOSING_TEXT = re.compile(r"^\\text\{(.+?)\}$")
DROPPED = ("\\left", "\\right", "^{\\circ}", "^\\circ", "\\$")


def hendrycks(answer: str) -> str:
    r"""The answer in the spelling that is compared.

    >>> hendrycks(r"x = \dfrac12"), hendrycks("0.5"), hendrycks("1/2"), hendrycks(r"\sqrt3"), hendrycks(".25")
    ('\\frac{1}{2}', '\\frac{1}{2}', '\\frac{1}{2}', '\\sqrt{3}', '0.25')
    >>> hendrycks(r"\text{204}"), hendrycks(r"12\text{ cm}"), hendrycks(r"50\%"), hendrycks(r"204^\circ")
    ('204', '12', '50', '204')

    What cannot be normalised - two units, a root of nothing - stays as it stands.
    """
    text = answer.strip()
    if enclosed := ENCLOSING_TEXT.search(text):
        text = enclosed.group(1).strip()
    return respelled(text)


def respelled(text: str) -> str:
    """The steps, in their order; the text itself where one of them does not apply."""
    out = text.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    out = out.replace("tfrac", "frac").replace("dfrac", "frac")
    for word in DROPPED:
        out = out.replace(word, "")
    if "\\text{ " in out:
        if out.count("\\text{ ") > 1:
            return text
        out = out.partition("\\text{ ")[0]
    out = out.replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.")
    if not out:
        return out
    out = "0" + out if out[0] == "." else out
    out = without_name(out)
    if (rooted := with_braced_roots(out)) is None:
        return text
    out = rooted.replace(" ", "")
    if (braced := with_braced_fractions(out)) is None:
        return text
    out = braced
    return as_fraction("\\frac{1}{2}" if out == "0.5" else out)


def without_name(text: str) -> str:
    """Without a short "x =" in front."""
    name, *values = text.split("=")
    return values[0] if len(values) == 1 and len(name) <= 2 else text


def with_braced_roots(text: str) -> str | None:
    r"""``\sqrt3`` as ``\sqrt{3}``; none where a root has nothing under it."""
    head, *roots = text.split("\\sqrt")
    if not all(roots):
        return None
    return head + "".join("\\sqrt" + (root if root[0] == "{" else "{" + root[0] + "}" + root[1:]) for root in roots)


def with_braced_fractions(text: str) -> str | None:
    r"""``\frac12`` as ``\frac{1}{2}``, ``\frac1{72}`` as ``\frac{1}{72}``. None where one has nothing at all behind it;
    with one sign behind it the whole text stays as it is."""
    head, *fractions = text.split("\\frac")
    if not all(fractions):
        return None
    out = head
    for rest in fractions:
        if rest[0] == "{":
            out += "\\frac" + rest
        elif len(rest) < 2:
            return text
        else:
            below = rest[1:] if rest[1] == "{" else "{" + rest[1] + "}" + rest[2:]
            out += "\\frac{" + rest[0] + "}" + below
    return out


def as_fraction(text: str) -> str:
    r"""``a/b`` of two plain integers as ``\frac{a}{b}``."""
    above, _, below = text.partition("/")
    return f"\\frac{{{above}}}{{{below}}}" if is_plain(above) and is_plain(below) else text


def is_plain(text: str) -> bool:
    """Whether this is an integer as Python writes it: no plus sign, no leading zero."""
    return re.fullmatch(r"0|-?[1-9][0-9]*", text) is not None
