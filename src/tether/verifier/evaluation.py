"""What an expression is worth: exactly where it is rational, else to a precision that tells neighbours apart."""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from tether.verifier.expressions import Call, Node, Number, Symbol, TooLarge

MOST_BITS = 2_000_000
"""Of an exact value."""
LARGEST_FACTORIAL = 20_000
"""That is multiplied out."""
LARGEST_MAGNITUDE = 2500
"""Decimal digits before or after the point of what occurs in a value that is not rational."""


class NotExact(ValueError):  # noqa: N818
    """The value is not rational, or not seen to be."""


class Undefined(ValueError):  # noqa: N818
    """There is no value: a division by zero, a logarithm of zero."""


Point = Mapping[str, Fraction]


def exact(node: Node, point: Point | None = None) -> Fraction:
    """Its rational value; letters are worth what ``point`` says.

    >>> exact(Call("pow", (Number(Fraction(2)), Number(Fraction(-3)))))
    Fraction(1, 8)
    """
    if isinstance(node, Number):
        return node.value
    if isinstance(node, Symbol):
        if point is None or node.name not in point:
            raise NotExact(node.name)
        return point[node.name]
    if (operation := EXACT.get(node.name)) is None:
        raise NotExact(node.name)
    value = operation(*_checked(node, [exact(arg, point) for arg in node.args]))
    if value.numerator.bit_length() + value.denominator.bit_length() > MOST_BITS:
        raise TooLarge(f"a value of more than {MOST_BITS} bits")
    return value


def _checked(node: Call, args: list[Fraction]) -> list[Fraction]:
    if node.name in ARITY and len(args) != ARITY[node.name]:
        raise Undefined(f"{node.name} of {len(args)} values")
    return args


def _sum(*args: Fraction) -> Fraction:
    return sum(args, Fraction(0))


def _quotient(top: Fraction, bottom: Fraction) -> Fraction:
    if bottom == 0:
        raise Undefined("a division by zero")
    return top / bottom


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise NotExact("a root")
    if base == 0 and exponent <= 0:
        raise Undefined("a power of zero")
    if abs(base) == 1 or base == 0:
        return base ** int(exponent % 2) if base else base
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits * abs(exponent.numerator) > MOST_BITS:
        raise TooLarge(f"a power of more than {MOST_BITS} bits")
    return Fraction(base ** int(exponent))


def _root(value: Fraction, degree: Fraction) -> Fraction:
    if degree != 2 or value < 0:
        raise NotExact("a root")
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > 4000:
        raise NotExact("a root")
    top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
    if top * top != value.numerator or bottom * bottom != value.denominator:
        raise NotExact("a root")
    return Fraction(top, bottom)


def _factorial(value: Fraction) -> Fraction:
    if value.denominator != 1 or value < 0:
        raise NotExact("a factorial of what is no natural number")
    if value > LARGEST_FACTORIAL:
        raise TooLarge(f"the factorial of {float(min(value, Fraction(10**300))):.3g}")
    return Fraction(math.factorial(int(value)))


def _binomial(n: Fraction, k: Fraction) -> Fraction:
    if n.denominator != 1 or k.denominator != 1 or n < 0 or k < 0:
        raise NotExact("a binomial coefficient of what are no natural numbers")
    if min(k, n - k) > LARGEST_FACTORIAL or (k <= n and min(k, n - k) * n.numerator.bit_length() > MOST_BITS):
        raise TooLarge("a binomial coefficient")
    return Fraction(math.comb(int(n), int(k)))


def _integers(*args: Fraction) -> list[int]:
    if any(arg.denominator != 1 for arg in args):
        raise NotExact("a divisor of what is no integer")
    return [int(arg) for arg in args]


EXACT: dict[str, Callable[..., Fraction]] = {
    "add": _sum,
    "mul": lambda a, b: a * b,
    "div": _quotient,
    "neg": lambda a: -a,
    "pow": _power,
    "root": _root,
    "abs": abs,
    "factorial": _factorial,
    "binom": _binomial,
    "floor": lambda a: Fraction(math.floor(a)),
    "ceil": lambda a: Fraction(math.ceil(a)),
    "max": lambda *a: max(a),
    "min": lambda *a: min(a),
    "gcd": lambda *a: Fraction(math.gcd(*_integers(*a))),
    "lcm": lambda *a: Fraction(math.lcm(*_integers(*a))),
}
ARITY = {"mul": 2, "div": 2, "neg": 1, "pow": 2, "root": 2, "abs": 1, "factorial": 1, "binom": 2, "floor": 1, "ceil": 1}

_contexts = threading.local()


def _context() -> Any:
    """A context of mpmath for this thread alone: its global one has one precision for all."""
    if not hasattr(_contexts, "mp"):
        from mpmath import MPContext  # type: ignore[import-untyped, unused-ignore]

        _contexts.mp = MPContext()
    return _contexts.mp


class Evaluation:
    """The value of expressions at one point, to a number of digits. Values are mpmath's, real or complex.

    >>> str(Evaluation(30).value(Call("root", (Number(Fraction(2)), Number(Fraction(2))))))[:12]
    '1.4142135623'
    """

    def __init__(self, digits: int, point: Point | None = None) -> None:
        self.mp = _context()
        self.mp.dps = digits
        self.digits = digits
        self.point = point or {}
        self.magnitude = 0.0
        """Decimal digits before or after the point of the largest or smallest value, or written in a number, so far."""
        self.is_real = True
        """Whether nothing so far was complex."""

    def value(self, node: Node) -> Any:
        """Its value; ``Undefined`` where it has none."""
        if isinstance(node, Number):
            bits = node.value.numerator.bit_length() + node.value.denominator.bit_length()
            self.magnitude = max(self.magnitude, bits * 0.30103)
            return self.seen(self.of(node.value))
        if isinstance(node, Symbol):
            return self.of(self.point[node.name])
        if node.name in ("factorial", "binom", "gcd", "lcm"):
            try:
                return self.seen(self.of(exact(node, self.point)))
            except NotExact:
                pass
        args = [self.value(arg) for arg in node.args]
        try:
            return self.seen(self.call(node.name, args))
        except (ZeroDivisionError, ValueError, OverflowError, TypeError, self.mp.NoConvergence) as error:
            if isinstance(error, TooLarge):
                raise
            raise Undefined(f"{node.name}: {error}") from error

    def of(self, value: Fraction) -> Any:
        """A rational, to the digits of this evaluation."""
        return self.mp.mpf(value.numerator) / self.mp.mpf(value.denominator)

    def seen(self, value: Any) -> Any:
        """The value, after its size was noted; what is real but for rounding becomes real."""
        mp = self.mp
        if mp.isnan(value) or mp.isinf(value):
            raise Undefined("no finite value")
        if value != 0:
            self.magnitude = max(self.magnitude, abs(float(mp.mag(value))) * 0.30103)
            if self.magnitude > LARGEST_MAGNITUDE:
                raise TooLarge(f"a value of 10^{self.magnitude:.0f} that is not rational")
        if isinstance(value, mp.mpc):
            if abs(value.imag) <= abs(value.real) * mp.mpf(10) ** (10 - self.digits):
                return value.real
            self.is_real = False
        return value

    def call(self, name: str, args: list[Any]) -> Any:
        """An operation on values. A sum that is zero but for rounding is zero."""
        mp = self.mp
        if name == "add":
            total = mp.fsum(args)
            return mp.mpf(0) if abs(total) < max(map(abs, args)) * mp.mpf(10) ** (15 - self.digits) else total
        if name.startswith("apply:"):
            return self.opaque(name, args)
        if name in ARITY and len(args) != ARITY[name]:
            raise Undefined(f"{name} of {len(args)} values")
        if name in ("pow", "root"):
            return self.power(args[0], args[1] if name == "pow" else 1 / args[1])
        operations: dict[str, Callable[..., Any]] = {
            "mul": lambda a, b: a * b, "div": lambda a, b: a / b, "neg": lambda a: -a, "abs": abs,
            "pi": lambda: +mp.pi, "e": lambda: +mp.e, "i": lambda: mp.mpc(0, 1), "degree": lambda a: a * mp.pi / 180,
            "exp": lambda a: self.power(mp.e, a), "ln": mp.ln,
            "log": lambda a, b=10: mp.ln(a) / mp.ln(b), "sin": mp.sin, "cos": mp.cos, "tan": mp.tan,
            "cot": mp.cot, "sec": mp.sec, "csc": mp.csc, "arcsin": mp.asin, "arccos": mp.acos, "arctan": mp.atan,
            "sinh": mp.sinh, "cosh": mp.cosh, "tanh": mp.tanh, "coth": mp.coth, "floor": mp.floor, "ceil": mp.ceil,
            "max": max, "min": min, "factorial": lambda a: mp.gamma(a + 1), "binom": mp.binomial,
        }  # fmt: skip
        if name not in operations:
            raise Undefined(f"{name} of what is not rational")
        return self.bounded(name, args, operations[name])

    def bounded(self, name: str, args: list[Any], operation: Callable[..., Any]) -> Any:
        """Refused where the result alone would be beyond what is computed."""
        largest = LARGEST_MAGNITUDE * 3
        if name in ("sinh", "cosh", "factorial", "binom", "tanh", "coth") and any(abs(arg) > largest for arg in args):
            raise TooLarge(f"{name} of a large value")
        return operation(*args)

    def power(self, base: Any, exponent: Any) -> Any:
        """A power; odd roots of negative numbers are the real ones."""
        mp = self.mp
        if base == 0:
            if mp.re(exponent) <= 0:
                raise Undefined("a power of zero")
            return mp.mpf(0)
        if abs(exponent) * (abs(float(mp.mag(base))) + 1) > LARGEST_MAGNITUDE * 4:
            raise TooLarge("a power that is not rational")
        is_negative = not isinstance(base, mp.mpc) and base < 0
        if is_negative and not isinstance(exponent, mp.mpc) and (odd := self.odd_root(exponent)):
            return odd * mp.power(-base, exponent)
        return mp.power(base, exponent)

    def odd_root(self, exponent: Any) -> int:
        """The sign of the real power of a negative number by a/b with b odd and small; 0 where there is none."""
        for degree in (3, 5, 7, 9):
            top = exponent * degree
            if abs(top - self.mp.nint(top)) < self.mp.mpf(10) ** (20 - self.digits) and exponent != int(exponent):
                return -1 if int(self.mp.nint(top)) % 2 else 1
        return 0

    def opaque(self, name: str, args: list[Any]) -> Any:
        """A stand-in for a function that nobody defined: equal arguments have equal values, others do not."""
        seed = zlib.crc32(name.encode()) % 1009 + 2
        return self.mp.fsum(
            [self.mp.sin(arg * (seed + n)) + arg * arg / (seed + 2 * n + 1) for n, arg in enumerate(args)]
        )
