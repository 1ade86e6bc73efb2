"""The operations of arithmetic, shared by the tasks that ask for them; a task is a file of its own."""

from __future__ import annotations


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
