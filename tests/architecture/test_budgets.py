"""Small files, short functions, few parameters, names that say something. An exception needs a reason."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .tree import Function, functions, python_files, relative

MODULE_LINES = 400
RULE_LINES = 120
FUNCTION_LINES = 60
PARAMETERS = 6
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "shared", "stuff"}

# What may exceed a budget, and why: "src/tether/room/file.py" or "src/tether/room/file.py::Class.method".
ALLOWED: dict[str, str] = {}


def module_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def function_lines(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def parameters(node: Function) -> int:
    """How many a caller may give; ``self`` and ``cls`` are not given."""
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    bound = bool(names) and names[0] in ("self", "cls")
    variadic = (node.args.vararg is not None) + (node.args.kwarg is not None)
    return len(names) - bound + len(node.args.kwonlyargs) + variadic


def modules_over_budget() -> Iterator[tuple[str, str]]:
    for path in python_files("src"):
        budget = RULE_LINES if path.parent.name == "rules" else MODULE_LINES
        if (lines := module_lines(path)) > budget:
            yield relative(path), f"{lines} lines; a file here has at most {budget}"


def functions_over_budget(measure: Callable[[Function], int], budget: int, what: str) -> Iterator[tuple[str, str]]:
    for path in python_files("src"):
        for name, node in functions(path):
            if (size := measure(node)) > budget:
                yield f"{relative(path)}::{name}", f"line {node.lineno}: {size} {what}; at most {budget}"


def over_budget() -> dict[str, str]:
    return dict(
        [
            *modules_over_budget(),
            *functions_over_budget(function_lines, FUNCTION_LINES, "lines"),
            *functions_over_budget(parameters, PARAMETERS, "parameters"),
        ]
    )


def test_everything_is_within_its_budget_or_on_the_list_of_exceptions() -> None:
    offenders = {where: why for where, why in over_budget().items() if where not in ALLOWED}
    assert not offenders, "\n".join(f"{where}: {why}" for where, why in offenders.items())


def test_the_list_of_exceptions_holds_only_what_exceeds_a_budget() -> None:
    assert not ALLOWED.keys() - over_budget().keys()


def test_every_exception_has_a_reason() -> None:
    assert all(reason.strip() for reason in ALLOWED.values())


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert not [relative(path) for path in python_files("src", "tests", "benchmarks") if path.stem in EMPTY_NAMES]


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("def f(): ...", 0),
        ("def f(a, /, b, *, c): ...", 3),
        ("def f(self, a): ...", 1),
        ("def f(cls, *many, **named): ...", 2),
    ],
)
def test_parameters_are_counted_as_a_caller_sees_them(source: str, count: int) -> None:
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef)
    assert parameters(node) == count
