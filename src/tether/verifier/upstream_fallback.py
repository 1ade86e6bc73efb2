r"""Step 6 of the ``upstream`` mode: numbers to a part in ten thousand, also a hundred times as large or as small, and
texts with fewer brackets.

The original goes on to parse both sides with SymPy. In verl as published that part always fails before it begins and
says "not equal" (its time limit is a decorator that is used as a context manager), so there is none here.
"""

from __future__ import annotations

import math
import re
from typing import TypeAlias

from .upstream_expression import Call, Chain, Name, Negative, Node, Number, Power, UnreadableError, read_expression
from .upstream_structure import Compared

TOLERANCE = 1e-4
SCALES = (0.01, 1.0, 100.0)
"""An answer may be the reference, or it in percent, or the reference may be in percent."""
LONGEST = 1000
"""Letters of an answer that are compared; the rest is cut off."""
PI = "\\pi"
PIS = (math.pi, 3.14)
DOLLARS = re.compile(r"\$\d+(\.\d+)?")
PERCENT = re.compile(r"\d+(\.\d+)?\\?%\n?")
INTERVAL = re.compile(r"Interval(?P<kind>|\.Ropen|\.Lopen|\.open)\((?P<ends>.*)\)\n?")
ENDS = {"": ("[", "]"), ".Ropen": ("[", ")"), ".Lopen": ("(", "]"), ".open": ("(", ")")}
MOST_DIGITS = 300

Value: TypeAlias = str | int | float


class FailedError(ValueError):
    """The original raises an exception here, and scores it as not right."""


def compare_by_fallback(answer: str, reference: str) -> Compared:
    r"""The last word on an answer that no earlier step took; both as extracted, not normalised.

    >>> compare_by_fallback("12.0005", "12"), compare_by_fallback("2", "200").is_equal
    (Compared(is_equal=True, by='number'), True)
    >>> compare_by_fallback("2\\pi", "6.2832"), compare_by_fallback("1,2", "(1,2)").by
    (Compared(is_equal=True, by='number'), 'brackets')
    >>> compare_by_fallback("x_1", "5")
    Compared(is_equal=None, by='failed')
    """
    pis = PIS if PI in answer or PI in reference else PIS[:1]
    try:
        said = [compare(answer, reference, pi) for pi in pis]
    except (FailedError, RecursionError):
        return Compared(None, "failed")
    return next((one for one in said if one.is_equal), said[0])


def compare(answer: str, reference: str, pi: float = math.pi) -> Compared:
    """One comparison, with this value of pi."""
    got, wanted = normalised(answer, pi), normalised(reference, pi)
    if isinstance(got, str):
        got = got[:LONGEST]
        if isinstance(wanted, str) and (
            got.strip().lower() == wanted.strip().lower() or got.replace(" ", "") == wanted.replace(" ", "")
        ):
            return Compared(True, "text")
    numbers = as_number(got), as_number(wanted)
    if numbers[0] is not None and numbers[1] is not None:
        return Compared(
            any(math.isclose(numbers[1] * scale, numbers[0], rel_tol=TOLERANCE) for scale in SCALES), "number"
        )
    if got == "":
        return Compared(False, "text")
    return compare_texts(with_brackets(str(got).strip()), str(wanted).strip())


def compare_texts(got: str, wanted: str) -> Compared:
    """Texts that are not both numbers: without their brackets, then element by element."""
    if without_brackets(got, wanted):
        return Compared(True, "brackets")
    if (
        got
        and wanted
        and got[0] in "(["
        and got[-1] in ")]"
        and (got[0], got[-1]) == (wanted[0], wanted[-1])
        and all_equal(got[1:-1].split(","), wanted[1:-1].split(","))
    ):
        return Compared(True, "elements")
    if "," in got and "," in wanted:
        parts = [part.strip() for part in got.split(",")], [part.strip() for part in wanted.split(",")]
        if len(parts[0]) == len(parts[1]):
            return Compared(all_equal(*parts), "elements")
    if got.startswith("Point"):
        if not wanted:
            raise FailedError("the reference is empty")
        if wanted[0] == "(" and wanted[-1] == ")":
            inside = got[got.find("(") + 1 : -1]
            if all_equal(inside.split(","), wanted[1:-1].split(",")):
                return Compared(True, "elements")
    return Compared(None, "unread")


def all_equal(got: list[str], wanted: list[str]) -> bool:
    """Whether two lists are as long and agree in every element. All are compared, for one that fails fails them all."""
    if len(got) != len(wanted):
        return False
    said = [compare(one, other) for one, other in zip(got, wanted, strict=True)]
    return all(one.is_equal for one in said)


def without_brackets(got: str, wanted: str) -> bool:
    """Whether two texts are the same but for braces and parentheses, and square brackets around them."""
    if (got[:1] == "[" and got[-1:] == "]" and wanted[:1] != "(") or (
        got[:1] == "(" and got[-1:] == ")" and wanted[:1] != "["
    ):
        got, wanted = got.strip("[]()"), wanted.strip("[]()")
    bare = str.maketrans("", "", "{}()")
    return got.translate(bare) == wanted.translate(bare)


def with_brackets(text: str) -> str:
    """An interval as SymPy prints it in the usual brackets.

    >>> with_brackets("Interval.Lopen(0, 1)")
    '(0, 1]'
    """
    if found := INTERVAL.fullmatch(text):
        opening, closing = ENDS[found["kind"]]
        return opening + found["ends"] + closing
    return text


def normalised(text: str, pi: float) -> Value:
    r"""A text without a dollar sign in front or a percent sign behind, without its base, and with pi as a number.

    >>> normalised("$12", 3.14), normalised("50\\%", 3.14), normalised("11_8", 3.14), normalised("2\\pi", 3.14)
    ('12', '50', 11, 6.28)
    """
    if DOLLARS.match(text):
        return text[1:]
    if PERCENT.fullmatch(text):
        return text.replace("\\%", "").replace("%", "")
    if "_" in text:
        try:
            return int(float(text.partition("_")[0]))
        except (ValueError, OverflowError) as error:
            raise FailedError("what stands before a base is no number") from error
    return with_pi(text, pi) if PI in text else text


def with_pi(text: str, pi: float) -> Value:
    """A text with pi as a number in it; its value, where it is arithmetic of numbers."""
    head, *parts = text.split(PI)
    for part in parts:
        head += ("*" if head[-1:].isdigit() else "1*") + str(pi) + part
    try:
        return arithmetic(head)
    except (UnreadableError, ArithmeticError):
        return head


def arithmetic(text: str) -> Value:
    """The value of arithmetic; of a list with commas, the list of values as Python writes it.

    >>> arithmetic("2*3.14"), arithmetic("(1*3.14,2)"), arithmetic("1*3.14, 2/4")
    (6.28, '(3.14, 2)', '(3.14, 0.5)')
    """
    if "," not in text:
        return value_of(read_expression(text))
    bare = text.strip()
    ends = bare[0] + bare[-1]
    inside = bare[1:-1] if ends in ("()", "[]") else bare
    values = ", ".join(str(value_of(read_expression(part))) for part in inside.split(","))
    return f"[{values}]" if ends == "[]" else f"({values})"


def value_of(node: Node) -> int | float:
    """The value of arithmetic, by Python's numbers."""
    match node:
        case Number(text):
            return literal(text)
        case Negative(inner):
            return -value_of(inner)
        case Power(base, exponent):
            return raised(value_of(base), value_of(exponent))
        case Chain(first, rest):
            out = value_of(first)
            for sign, other in rest:
                value = value_of(other)
                match sign:
                    case "+":
                        out = out + value
                    case "-":
                        out = out - value
                    case "*":
                        out = out * value
                    case _:
                        out = out / value
            return out
        case Name() | Call():
            raise UnreadableError("a name is no number")


def literal(text: str) -> int | float:
    """A real number as Python reads it in a program."""
    if text[-1] in "jJ":
        raise UnreadableError(f"{text} is no real number in Python")
    try:
        return int(text) if re.fullmatch(r"[0-9_]+", text) else float(text)
    except ValueError as error:
        raise UnreadableError(f"{text} is no number") from error


def raised(base: int | float, exponent: int | float) -> int | float:
    """A real power of bounded size."""
    if isinstance(base, int) and isinstance(exponent, int) and abs(exponent) * len(str(abs(base))) > MOST_DIGITS:
        raise UnreadableError("a power with a large exponent")
    value = base**exponent
    if isinstance(value, complex):
        raise UnreadableError("a power that is not real")
    return value


def as_number(value: Value) -> float | None:
    """The number that this is, commas left out; none where it is none."""
    text = str(value)
    try:
        return float(text.replace("{,}" if "{,}" in text else ",", ""))
    except ValueError:
        return None
