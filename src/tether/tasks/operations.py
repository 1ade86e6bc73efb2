"""The operations of arithmetic, shared by the tasks that ask for them; a task is a file of its own."""

from __future__ import annotations

from tether.errors import ConfigError


def check_operators(operators: str) -> None:
    """Refuse what is not some of ``+-*``, each once."""
    if not operators or set(operators) - set("+-*") or len(set(operators)) != len(operators):
        raise ConfigError(f"operators must be some of '+-*', each once; got {operators!r}")


def apply(operator: str, left: int, right: int) -> int:
    """One operation on whole numbers.

    >>> apply("+", 4, 3), apply("-", 0, 2), apply("*", 3, 5)
    (7, -2, 15)
    """
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case _:
            return left * right
