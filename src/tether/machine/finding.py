"""What one look at the machine found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]
"""``fail``: tether does not run, or gives wrong numbers; ``warn``: it runs, slower or with less than there could be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of ``tether doctor``.

    >>> Finding(section="disk", name="runs", status="ok", value="75 GiB free").way_out
    ''
    >>> Finding(section="disk", name="runs", status="fail", value="full")
    Traceback (most recent call last):
    AssertionError: a finding that is not ok has a way out
    """

    section: str
    name: str
    status: Status
    value: str
    """What was found, in words and figures."""
    way_out: str = ""
    """What to do about it; beside an ``ok``, how to have more."""

    def __post_init__(self) -> None:
        assert self.status == "ok" or self.way_out, "a finding that is not ok has a way out"


def reason_of(error: BaseException) -> str:
    """An exception on one line.

    >>> reason_of(OSError("libcudart.so.12: cannot open\\nsecond line"))
    'OSError: libcudart.so.12: cannot open'
    """
    said = str(error).strip()
    return f"{type(error).__name__}: {said.splitlines()[0]}" if said else type(error).__name__


def gib(num_bytes: int) -> str:
    """Bytes as people count them.

    >>> gib(3 * 2**30), gib(5 * 2**20)
    ('3.0 GiB', '5 MiB')
    """
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"
