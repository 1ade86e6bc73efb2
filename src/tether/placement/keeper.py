"""The last one out: a small process that tidies up after a controller that could not do it itself.

It reads pids from its standard input, a line each, until that ends, because the controller closed it or is dead;
then it kills those that are still the same processes, and removes a folder. It is started as a script, without site
packages, and imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys


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


def main() -> None:
    """Keep until the input ends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    born = {}
    for line in sys.stdin:
        pid = int(line)
        born[pid] = birth_of(pid)
    for pid, birth in born.items():
        if birth_of(pid) == birth:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
