"""The command ``tether`` as a shell would call it, in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from tests.e2e.quick import SMALL
from tether.cli import app


class Told(NamedTuple):
    code: int
    out: str
    err: str


@contextmanager
def arguments(*words: object) -> Iterator[None]:
    before = sys.argv
    sys.argv = ["tether", *map(str, words)]
    try:
        yield
    finally:
        sys.argv = before


def tether(capsys: pytest.CaptureFixture[str], *words: object) -> Told:
    """Exit code, output and errors of one call."""
    capsys.readouterr()
    code = 0
    with arguments(*words):
        try:
            app.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    said = capsys.readouterr()
    return Told(code, said.out, said.err)


def small(*settings: str) -> Sequence[str]:
    """``--set`` for each setting of a small quickstart, then for those given."""
    return [word for setting in (*SMALL, *settings) for word in ("--set", setting)]
