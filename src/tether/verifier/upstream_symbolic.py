"""Step 5 of the ``upstream`` mode: whether SymPy simplifies a difference to zero, asked of small expressions only."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import sympy

from .sizes import TooLargeError
from .upstream_expression import Call, Chain, Name, Negative, Node, Number, Power, UnreadableError, read_expression
from .upstream_structure import Compared

MOST_LETTERS = 2
REFUSED = (re.compile(r"\^[{(]"), re.compile(r"\^[0-9]+\^"), re.compile(r"\^[0-9][0-9]+"))
CONSTANTS: Mapping[str, Any] = {"pi": sympy.pi, "oo": sympy.oo, "zoo": sympy.zoo, "nan": sympy.nan}
FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "sqrt": sympy.sqrt,
    "ln": sympy.log,
    "csc": sympy.csc,
    "re": sympy.re,
    "im": sympy.im,
    "factorial": sympy.factorial,
    "factorial2": sympy.factorial2,
}
"""Those whose names have no more than two letters besides those of ``sqrt``; the limit of letters refuses the rest."""
WHOLE_NAMES = frozenset({"mu", "nu", "xi"})
LARGEST_EXPONENT = 1000
LARGEST_FACTORIAL = 1000
MOST_BITS = 20_000


def symbolically_equal(reference: str, answer: str) -> Compared:
    """Whether ``simplify(reference - answer) == 0``.

    Unread, and hence not equal, where the two have more than two different letters (``sqrt`` and ``frac`` do not
    count, ``pi`` does), or ``^{``, ``^(``, a chained exponent or one of two digits; or where the small language cannot
    read one of them.

    >>> symbolically_equal("2sqrt(2)", "sqrt(8)"), symbolically_equal("(x+1)^2", "x^2+1").is_equal
    (Compared(is_equal=True, by='sympy'), False)
    >>> symbolically_equal("x^12", "x^6*x^6"), symbolically_equal("x=3", "y").by
    (Compared(is_equal=None, by='guard'), 'unread')
    """
    both = f"({reference})-({answer})"
    if num_letters(both) > MOST_LETTERS or any(pattern.search(both) for pattern in REFUSED):
        return Compared(None, "guard")
    try:
        return Compared(is_zero(to_sympy(reference) - to_sympy(answer)), "sympy")
    except TooLargeError:
        return Compared(None, "too-large")
    except UnreadableError:
        return Compared(None, "unread")
    except MemoryError:  # the worker's limit, which the worker names
        raise
    except Exception:  # SymPy raises of every kind; the stage says so, and upstream scores it 0
        return Compared(None, "failed")


def num_letters(text: str) -> int:
    """How many different letters there are, those of ``sqrt`` and ``frac`` left out."""
    return len({letter for letter in text.replace("sqrt", "").replace("frac", "") if letter.isalpha()})


def is_zero(difference: Any) -> bool:
    """Whether SymPy finds that this is zero. One value that is far from zero says no without simplifying."""
    if difference == 0:
        return True
    places = {
        symbol: sympy.Rational(7 + 6 * at, 11) for at, symbol in enumerate(sorted(difference.free_symbols, key=str))
    }
    value = difference.subs(places).evalf(15)
    if value.is_Float or value.is_Rational:
        return bool(abs(value) < 1e-6) and bool(sympy.simplify(difference) == 0)
    return bool(sympy.simplify(difference) == 0)


def to_sympy(text: str) -> Any:
    """The SymPy object of a normalised text."""
    return built(read_expression(text.replace("^", "**"), functions=frozenset(FUNCTIONS), implicit=True))


def built(node: Node) -> Any:
    """The SymPy object of a tree."""
    match node:
        case Number(text):
            return number(text)
        case Name(text):
            return name(text)
        case Negative(value):
            return -built(value)
        case Power(base, exponent):
            return power(built(base), built(exponent))
        case Call(function, argument):
            return call(function, built(argument))
        case Chain(first, rest):
            out = built(first)
            for sign, value in rest:
                out = combined(out, sign, built(value))
            return out


def combined(left: Any, sign: str, right: Any) -> Any:
    """One operation."""
    match sign:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case _:
            return left / right


def number(text: str) -> Any:
    """A literal: whole ones exact, others in binary floating point, ``j`` imaginary."""
    imaginary = text[-1] in "jJ"
    digits = (text[:-1] if imaginary else text).replace("_", "")
    mantissa, _, exponent = digits.lower().partition("e")
    if len(exponent) > 4:
        raise TooLargeError(f"an exponent of {len(exponent)} digits")
    value = sympy.Float(digits) if exponent or "." in mantissa else sympy.Integer(digits)
    return value * sympy.I if imaginary else value


def name(text: str) -> Any:
    """A constant, a symbol, or letters and numbers that are multiplied."""
    if text in CONSTANTS:
        return CONSTANTS[text]
    if "_" in text or text in WHOLE_NAMES:
        return sympy.Symbol(text)
    parts = re.findall(r"\d+|\D", text)
    return sympy.Mul(*(sympy.Integer(part) if part.isdigit() else sympy.Symbol(part) for part in parts))


def power(base: Any, exponent: Any) -> Any:
    """A power whose size is bounded."""
    if exponent.is_number and exponent.is_real:
        size = abs(float(exponent)) if abs(exponent) < 1e9 else math.inf
        bits = math.log2(abs(float(base)) + 2) if base.is_number and base.is_real and abs(base) < 1e300 else 1000
        if size > (MOST_BITS / bits if base.is_number else LARGEST_EXPONENT):
            raise TooLargeError("a power with a large exponent")
    return base**exponent


def call(function: str, argument: Any) -> Any:
    """A function's value; a factorial of bounded size."""
    if function.startswith("factorial") and argument.is_number and not abs(argument) <= LARGEST_FACTORIAL:
        raise TooLargeError(f"a factorial of more than {LARGEST_FACTORIAL}")
    return FUNCTIONS[function](argument)
