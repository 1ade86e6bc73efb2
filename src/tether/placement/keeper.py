"""The last one out: a small process that tidies up after a controller that could not do it itself.

It reads pids from its standard input, a line each, until that ends, because the controller closed it or is dead;
then it kills those that are still the same processes, and whatever else of Ray's has a file open in the session's
folder, for a controller may die before it knows whom Ray has started. At last it removes the folder. It is started as
a script, without site packages, and imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

ROUNDS, PAUSE_S = 50, 0.1
"""How often it looks whether anybody is left, and how long it waits in between; what starts up late is met, too."""
CALM = 3
"""Rounds without anybody after which it is done."""
OF_RAY = (b"ray::", b"/ray/", b"raylet", b"gcs_server")
"""What stands on their command lines."""


class Keeper:
    """A keeper of one folder."""

    def __init__(self, folder: str) -> None:
        command = [sys.executable, "-I", "-S", __file__, folder]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def watch(self, pid: int) -> None:
        """A process that must not outlive this one."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody killed the keeper
            self._process.stdin.write(f"{pid}\n".encode())
            self._process.stdin.flush()

    def close(self) -> None:
        """Have it tidy up now, and wait until it has."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def birth_of(pid: int) -> str:
    """When a process was born, in ticks of the kernel; empty if that cannot be told, or it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def users_of(folder: str) -> Iterator[int]:
    """Processes of Ray's that have a file open in a folder."""
    for pid in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with contextlib.suppress(OSError):
            links = (os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
            if any(link.startswith(f"{folder}/") for link in links):
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    command = file.read()
                if any(name in command for name in OF_RAY):
                    yield int(pid)


def main() -> None:
    """Keep until the input ends."""
    folder, spared = sys.argv[1], {os.getpid(), os.getppid()}
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    born = {}
    for line in sys.stdin:
        pid = int(line)
        born[pid] = birth_of(pid)
    for pid, birth in born.items():
        if birth_of(pid) == birth:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    calm = 0
    for _ in range(ROUNDS):
        left = set(users_of(folder)) - spared
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
        calm = 0 if left or os.path.exists(folder) else calm + 1
        if calm == CALM:
            return
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
