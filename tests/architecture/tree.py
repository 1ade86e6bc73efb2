"""The repository as the architecture tests see it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "tether"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def relative(path: Path) -> str:
    """``src/tether/rules/sat.py``, from anywhere."""
    return path.relative_to(ROOT).as_posix()


def python_files(*folders: str) -> list[Path]:
    """Every Python file under these folders of the repository, sorted."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@functools.cache
def parse(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def functions(path: Path) -> Iterator[tuple[str, Function]]:
    """Every function of a file with its qualified name, methods and nested ones too."""

    def below(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield prefix + child.name, child
            if isinstance(child, Function | ast.ClassDef):
                yield from below(child, f"{prefix}{child.name}.")
            else:
                yield from below(child, prefix)

    return below(parse(path), "")


def plugin_files(room: str) -> list[Path]:
    """The files of a room that register a plug-in: ``@SOMETHING.register("name")``."""

    def registers(node: ast.AST) -> bool:
        return isinstance(node, ast.ClassDef) and any(
            isinstance(decorator, ast.Call)
            and isinstance(decorator.func, ast.Attribute)
            and decorator.func.attr == "register"
            for decorator in node.decorator_list
        )

    return [path for path in sorted((SRC / room).glob("*.py")) if any(map(registers, ast.walk(parse(path))))]
