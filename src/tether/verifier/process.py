"""One worker, seen from the process that asks it: started, asked about one pair at a time, ended."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import tether
from tether.errors import VerifierError
from tether.verifier.verdict import Verdict
from tether.verifier.worker import GARBLED, SPENT

START_S: Final = 120.0
"""Within which a worker must have imported what it needs, on a slow disk too."""
OVERSIGHT: Final = 5.0
"""A pair may take this many times its limit, and seconds more, on the clock: a child that does not even use its time
is stopped or swapped out."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is started for."""

    judge: str
    """The function that it calls, ``module:function``."""
    options: Mapping[str, object]
    """Arguments of that function beside answer and reference."""
    limit_s: float
    """Seconds of CPU time a pair."""
    memory: int
    """Bytes of address space."""


class WorkerGoneError(Exception):
    """The worker itself ended, or had to be ended: it must be replaced. ``verdict`` is what that cost its pair."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict)
        self.verdict = verdict


class WorkerProcess:
    """Starts at once and in the background; who asks first waits until it is ready."""

    def __init__(self, job: Job) -> None:
        self._job, self._is_ready, self._number, self._held = job, False, 0, bytearray()
        self._began_s = time.monotonic()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - held while the worker lives
        if not sys.executable:
            raise VerifierError("workers are started with sys.executable, which is not set in this process")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", "-m", "tether.verifier.worker"],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=_environment(),
                start_new_session=True,  # a Ctrl-C is for the process that asks
            )
        except OSError as error:
            self._errors.close()
            raise VerifierError(
                f"a worker of the verifier must start, and {sys.executable} gave {error}; see that processes and "
                "memory are left (ulimit -u, free -m)"
            ) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        options = base64.b64encode(pickle.dumps(dict(job.options))).decode()
        limits = {"limit_s": job.limit_s, "memory": job.memory}
        wanted = {"judge": job.judge, "options": options, "asker": os.getpid(), **limits}
        with contextlib.suppress(WorkerGoneError):  # it says so when it is asked
            self._send(wanted, time.monotonic() + START_S)

    @property
    def pid(self) -> int:
        """Of the process that watches over the child."""
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether it has said so, and was heard."""
        return self._is_ready

    def wait_ready(self) -> None:
        """Return when it can judge; ``VerifierError``, with what it said, if it never will."""
        if self._is_ready:
            return
        try:
            self._message(self._began_s + START_S)
        except WorkerGoneError as gone:
            self.kill()
            code = self._process.wait()
            fate = "it was not ready" if gone.verdict is LATE else f"it ended with exit code {code}"
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()[-2000:]
            self._close()
            raise VerifierError(
                f"a worker of the verifier must start within {START_S:.0f} s, and {fate}; see that {sys.executable} "
                f"can import what the mode needs and that memory is left; it said: {said or 'nothing'}"
            ) from gone
        self._is_ready = True

    def ask(self, answer: str, reference: str) -> Verdict:
        """The verdict on one pair, within its limits, of a worker that is ready."""
        self._number += 1
        until_s, is_begun = time.monotonic() + OVERSIGHT * (self._job.limit_s + 1), False
        self._send({"pair": self._number, "answer": answer, "reference": reference}, until_s)
        while True:
            message = self._message(until_s)
            is_begun |= message.get("begun") == self._number
            if message.get("done") == self._number:
                del message["done"]
                return Verdict(**message)  # type: ignore[arg-type]
            if message.get("died") == GARBLED:
                raise WorkerGoneError(DIED)
            if "ready" in message and is_begun:  # the next child; one that died before it began costs no pair
                return _OF_DEATH.get(int(str(message["died"])), CRASHED)

    def kill(self) -> None:
        """End it, with its child; whoever asks it hears of it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill it and close its pipes; for when nobody asks it."""
        self.kill()
        self._process.wait()
        self._close()

    def forget(self) -> None:
        """In a fork: it belongs to another process; only this one's copies of its pipes are closed."""
        self._process.returncode = 0
        self._close()

    def _close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()

    def _send(self, message: Mapping[str, object], until_s: float) -> None:
        rest = memoryview(json.dumps(message).encode() + b"\n")
        while rest:
            self._poll(self._to, select.POLLOUT, until_s)
            try:
                rest = rest[os.write(self._to, rest[:65536]) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise WorkerGoneError(DIED) from error

    def _message(self, until_s: float) -> dict[str, object]:
        """The next line."""
        while (end := self._held.find(b"\n")) < 0:
            self._poll(self._from, select.POLLIN, until_s)
            piece = os.read(self._from, 1 << 16)
            if not piece:
                raise WorkerGoneError(DIED)
            self._held += piece
        message: dict[str, object] = json.loads(self._held[:end])
        del self._held[: end + 1]
        return message

    def _poll(self, pipe: int, event: int, until_s: float) -> None:
        poll = select.poll()
        poll.register(pipe, event)
        if not poll.poll(max(0.0, until_s - time.monotonic()) * 1e3):
            raise WorkerGoneError(LATE)


LATE: Final = Verdict(status="timeout", extracted=None, stage="limit_s")
FULL: Final = Verdict(status="timeout", extracted=None, stage="memory")
DIED: Final = Verdict(status="timeout", extracted=None, stage="worker died")
CRASHED: Final = Verdict(status="parse_error", extracted=None, stage="worker died")


_OF_DEATH = {-signal.SIGPROF: LATE, SPENT: FULL, -signal.SIGKILL: DIED, -signal.SIGABRT: DIED}
"""By what ended a child: its timer, its memory, or whoever gives up where there is none left; else it crashed."""


def _environment() -> dict[str, str]:
    """This process's own, so that the same tether is found; one thread, and the same order of sets in every worker."""
    home = str(Path(tether.__file__).resolve().parents[1])
    known = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([home, *known]),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
