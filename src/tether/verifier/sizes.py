"""How large the value of a formula is, told from how large its parts are: by logarithms, never by the value itself."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

MOST_DIGITS_WRITTEN: Final = 4_000
"""Of one number as it stands there; Python reads 4300."""
MOST_DIGITS: Final = 1e5
"""Of a value, numerator and denominator together: ``2004!`` has 5750, ``2^{65536}`` 19729."""
MOST_DEGREE: Final = 1e4
"""Of a power with letters in it, ``x^{10000}`` being the last one."""
MOST_TERMS: Final = 1e5
"""Of a power of a sum, multiplied out."""


class TooLargeError(Exception):
    """Seen enough."""


class Size(NamedTuple):
    """What is known of the value of a piece of text."""

    value: float
    """About, every letter counted as 1; ``inf`` where a float cannot hold it."""
    digits: float = 0.0
    """Of the exact value."""
    degree: float = 0.0
    """In the letters; 0 where there are none."""
    terms: int = 1
    """Summands, as it stands there."""


ONE: Final = Size(1.0)
LETTER: Final = Size(1.0, degree=1.0)


def checked(size: Size) -> Size:
    """The size itself; ``TooLargeError`` if it has more than ``MOST_DIGITS``."""
    if not size.digits <= MOST_DIGITS:
        raise TooLargeError
    return size


def written(token: str) -> Size:
    """A number as it stands there."""
    mantissa, _, exponent = token.replace(",", "").lower().partition("e")
    written = len(mantissa.replace(".", ""))
    if written > MOST_DIGITS_WRITTEN or len(exponent) > 8:
        raise TooLargeError
    value = float(f"{mantissa}e{exponent or 0}")
    if exponent or "." in mantissa:
        return checked(Size(value, written + abs(int(exponent or 0))))
    return Size(value, math.log10(max(value, 1.0)) if value < math.inf else written)


def added(one: Size, other: Size) -> Size:
    """A sum, which has about as many digits as its longer part."""
    value, digits = one.value + other.value, max(one.digits, other.digits)
    return Size(value, digits, max(one.degree, other.degree), one.terms + other.terms)


def multiplied(one: Size, other: Size, is_over: bool) -> Size:
    """A product, or a fraction with ``is_over``, which has the digits of both."""
    if one is ONE and not is_over:
        return other
    value = one.value / (other.value or 1.0) if is_over else one.value * other.value
    return checked(Size(value, one.digits + other.digits, one.degree + other.degree))


def raised(base: Size, exponent: Size) -> Size:
    """A power; whatever is raised has as many times its digits, or its degree where letters are in it."""
    if exponent is ONE:
        return base
    times = abs(exponent.value) if exponent.value == exponent.value else math.inf
    if not base.degree and base.value in (0.0, 1.0, -1.0):
        return Size(base.value)
    if base.degree:
        degree = max(base.degree, 1.0) * times
        if not degree <= MOST_DEGREE or not _expanded(base.terms, times) <= math.log(MOST_TERMS):
            raise TooLargeError
    size = checked(Size(0.0, max(base.digits, 0.1) * times if not base.degree else base.digits * times))
    try:
        value = math.pow(abs(base.value), exponent.value)
    except OverflowError:
        value = math.inf
    except ValueError:  # a negative power of zero, which letters may be
        value = 1.0
    return Size(value, size.digits, max(base.degree * times, exponent.degree))


def _expanded(terms: int, times: float) -> float:
    """Logarithm of the number of summands in a power of a sum: ``C(times + terms - 1, terms - 1)``."""
    return math.lgamma(times + terms) - math.lgamma(times + 1) - math.lgamma(terms)


def factorial(size: Size, marks: int) -> Size:
    """``n!``, or ``n!!``, of about half as many digits."""
    number = abs(size.value)
    if not number <= MOST_DIGITS:
        raise TooLargeError
    logarithm = math.lgamma(number + 1) / marks
    value = math.exp(logarithm) if logarithm < 700 else math.inf
    return checked(Size(value, logarithm / math.log(10), size.degree))


def chosen(above: Size, below: Size) -> Size:
    """``C(n, k)``, of at most ``min(k, n - k) log10(n + 1)`` digits."""
    number, chosen = abs(above.value), abs(below.value)
    if not number < math.inf or not chosen < math.inf:
        raise TooLargeError
    chosen = min(chosen, number - chosen) if chosen <= number else chosen
    digits = chosen * math.log10(number + 1)
    value = math.pow(10, digits) if digits < 300 else math.inf
    return checked(Size(value, digits, above.degree + below.degree))
