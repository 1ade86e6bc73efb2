"""Being asked to stop: after the step under way, or now; and a moment in which nobody can."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, and what ``timeout``, containers, schedulers and closed terminals send."""


class Stopped(KeyboardInterrupt):
    """A run that was stopped by a signal, after it closed its books."""

    def __init__(self, number: signal.Signals, message: str = "") -> None:
        super().__init__(message or number.name)
        self.exit_code = 128 + int(number)
        """The shell's convention."""


@dataclass(slots=True)
class StopRequest:
    """A wish to stop, heard between two steps.

    >>> stop = StopRequest()
    >>> stop.check(3, saved=True)
    >>> stop.asked_by = signal.SIGINT
    >>> stop.is_asked
    True
    """

    asked_by: signal.Signals | None = None

    @property
    def is_asked(self) -> bool:
        """Whether somebody wants the run to stop after its step."""
        return self.asked_by is not None

    def check(self, step: int, *, saved: bool) -> None:
        """Stop if that was asked for."""
        if self.asked_by is not None:
            raise Stopped(self.asked_by, f"interrupted after step {step}" + ("" if saved else ", nothing to save yet"))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C and its like until the block ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
