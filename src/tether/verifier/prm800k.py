r"""The normalisation of PRM800K's grader: a mathematical answer as plain lower-case text.

From Let's Verify Step by Step (arXiv 2305.20050); step 3 of the ``upstream`` mode.
"""

from __future__ import annotations

import re

from .latex_text import UnconvertibleError, latex_text

ENCLOSING_TEXT = re.compile(r"^\\text\{(.+?)\}$")
SWAPS = (
    ("\\%", "%"),
    ("\\$", "$"),
    ("$", ""),
    ("%", ""),
    (" or ", " , "),
    (" and ", " , "),
    ("million", "*10^6"),
    ("billion", "*10^9"),
    ("trillion", "*10^12"),
)
UNITS = (
    "degree",
    "cm",
    "centimeter",
    "meter",
    "mile",
    "second",
    "minute",
    "hour",
    "day",
    "week",
    "month",
    "year",
    "foot",
    "feet",
    "inch",
    "yard",
    "liter",
)
UNIT_PATTERNS = [re.compile(rf"{unit}(?:es)?s? *(?:\^[0-9]+)?") for unit in UNITS]
SIGNS = (("√", "sqrt"), ("π", "pi"), ("∞", "inf"), ("\u222a", "U"), ("·", "*"), ("\u00d7", "*"))
THOUSANDS = re.compile(r"(?<=\d),(?=\d\d\d(?:$|\D))")
MIXED = re.compile(r"([0-9]) +([0-9])")


def prm800k(answer: str) -> str:
    r"""The answer as the text that is compared.

    >>> prm800k(r"\boxed{204"), prm800k("1,000"), prm800k("025"), prm800k("7 3/4"), prm800k(r"12\text{ cm}")
    ('204', '1000', '25', '7+3/4', '12')
    >>> prm800k(r"\frac{x+1}{2}"), prm800k("3 or 5"), prm800k("2 million"), prm800k("20\\,4")
    ('x+1/2', '3 , 5', '2 *10^6', '20+4')
    """
    text = answer
    if enclosed := ENCLOSING_TEXT.search(text):
        text = enclosed.group(1)
    for old, new in SWAPS:
        text = text.replace(old, new)
    for unit in UNIT_PATTERNS:
        text = unit.sub("", text)
    text = re.sub(r"\^ *\\circ", "", text)
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    text = re.sub(r",\\! *", "", text)
    if (number := as_float(text)) is not None and is_integral(number):
        text = str(round(number))
    if "\\" in text:
        text = plain(text)
    text = re.sub("- *", "-", text)
    text = MIXED.sub(r"\1+\2", text).lower()
    return str(int(float(text.replace(",", "")))) if is_integer(text) else text


def plain(text: str) -> str:
    """LaTeX as text; itself where it cannot be converted."""
    spaced = text.replace("\\tfrac", "\\frac").replace("\\dfrac", "\\frac").replace("\\frac", " \\frac")
    try:
        out = latex_text(spaced)
    except UnconvertibleError:
        return text
    for old, new in SIGNS:
        out = out.replace(old, new)
    return out.strip()


def is_integer(text: str) -> bool:
    """Whether this is a number that is whole, its thousands separated or not.

    >>> is_integer("1,000"), is_integer("12.0"), is_integer("1,2"), is_integer("x")
    (True, True, False, False)
    """
    number = as_float(without_thousands(text))
    return number is not None and is_integral(number)


def without_thousands(text: str) -> str:
    """Without the commas that stand between a digit and exactly three more.

    >>> without_thousands("(1,234, 5)"), without_thousands("1,2"), without_thousands("1,2345")
    ('(1234, 5)', '1,2', '1,2345')
    """
    while (out := THOUSANDS.sub("", text)) != text:
        text = out
    return text


def as_float(text: str) -> float | None:
    """The number that Python reads here; none where it reads none."""
    try:
        return float(text)
    except ValueError:
        return None


def is_integral(number: float) -> bool:
    """Whether a number is an integer, to 1e-7; infinities and not-a-number are none."""
    try:
        return abs(number - round(number)) <= 1e-7
    except (OverflowError, ValueError):
        return False
