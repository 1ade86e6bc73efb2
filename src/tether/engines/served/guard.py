"""Runs a server, and ends all of it when whoever wanted it is gone. A program of its own, of the standard library.

A process that is killed cannot end its children; so this one stands between, and looks whether its parent is still the
one that started it. Called with the parent's process id, a folder that goes with the parent, and the command.
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

_LOOK_S = 0.2
_PR_SET_PDEATHSIG = 1
_TERM_S = 5.0
"""Seconds that a server has to end by itself."""


def guard(parent: int, folder: str, command: list[str]) -> int:
    """Run the command until it ends, or the parent does, or this process is told to; its exit status."""
    server = subprocess.Popen(command, start_new_session=True, preexec_fn=_die_with_parent)
    try:
        while server.poll() is None and os.getppid() == parent:
            time.sleep(_LOOK_S)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end(server)
        if os.getppid() != parent:  # else it is the parent's
            shutil.rmtree(folder, ignore_errors=True)
    return server.returncode


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
    sys.exit(guard(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
