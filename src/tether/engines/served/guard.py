"""Runs a server, and ends all of it when whoever wanted it is gone. A program of its own, of the standard library.

A process that is killed cannot end its children; so this one stands between, and looks whether its parent is still the
one that started it. A second one looks after the first: Ray kills the children of a process that it ends. Called with
the parent's process id, two folders that go with the parent, and the command.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

_LOOK_S = 0.2
_PR_SET_PDEATHSIG = 1
_TERM_S = 5.0
"""Seconds that a server has to end by itself."""
_LAST_S = 30.0
"""Seconds that a parent may take to follow a guard that was killed."""


def guard(parent: int, folders: Sequence[str], command: list[str]) -> int:
    """Run the command until it ends, or the parent does, or this process is told to; its exit status."""
    server = subprocess.Popen(command, start_new_session=True, preexec_fn=_die_with_parent)
    second = _look_after(os.getpid(), server.pid, parent, folders)
    try:
        while server.poll() is None and os.getppid() == parent:
            time.sleep(_LOOK_S)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end(server)
        _signal(second, signal.SIGKILL)
        if os.getppid() != parent:  # else they are the parent's
            _remove(folders)
    return server.returncode


def _look_after(first: int, server: int, parent: int, folders: Sequence[str]) -> int:
    """Start a process that does the work of a guard that is killed; its id."""
    if second := os.fork():
        return second
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while os.getppid() == first:
        time.sleep(_LOOK_S)
    _signal(server, signal.SIGTERM)
    until = time.monotonic() + _TERM_S
    while _is_there(server) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    _signal(server, signal.SIGKILL)
    until = time.monotonic() + _LAST_S
    while (lives := _is_there(parent)) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    if not lives:
        _remove(folders)
    os._exit(0)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _remove(folders: Sequence[str]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _die_with_parent() -> None:
    """Between fork and exec: have Linux end the server if this guard is killed, which can guard nothing then."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server's process group: its workers too, which may outlive it."""
    _signal(server.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(_TERM_S)
    _signal(server.pid, signal.SIGKILL)
    server.wait()


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _told(*_: object) -> None:
    sys.exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _told)
    sys.exit(guard(int(sys.argv[1]), sys.argv[2:4], sys.argv[4:]))
