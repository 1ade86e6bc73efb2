"""A worker of the verifier: ``python -m tether.verifier.worker``, started by ``tether.verifier.process``.

One process that has imported everything watches over a child that judges. A child that is used up (its time, its
memory, a crash) is succeeded by the next fork within milliseconds. Nothing but the protocol leaves this process: one
line of JSON a message, on what were its standard input and output; whatever a library prints goes nowhere.

    in:   {"judge", "options", "limit_s", "memory", "asker"}  once; the last is the pid of whoever started it
          {"pair": number, "answer", "reference"}             again and again
    out:  {"ready": pid, "died": signal or exit code}         from each child when it can judge, and what ended the last
          {"begun": number}                                   when a pair was read
          {"done": number, "status", "extracted", "stage", "policy"}

Nobody is left behind: a child ends at the end of its input, after its time even if no Python code runs any more (the
kernel's timer ends it), and with its parent; the parent ends with the process that started it.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pickle
import select
import signal
import sys
from collections.abc import Callable, Iterator

Judge = Callable[[str, str], dict[str, object]]
LOOKS_S = 1.0
"""How often a worker looks whether whoever started it is still there."""
END, SPENT, GARBLED = 10, 11, 12
"""Exit codes of a child: its input ended; its memory did; it could not read or write."""
EASY = (
    ("so \\boxed{\\frac{1}{2}}", "0.5"),
    ("The answer is $(x+1)^2$.", "\\boxed{1+2x+x^2}"),
    ("\\boxed{\\sqrt{8}}", "2\\sqrt{2}"),
    ("\\boxed{\\sum_{k=1}^{4} k}", "10"),
)
"""Judged before the first child begins, so that each has imported everything and parsers have built their tables."""


def main() -> None:
    """Take over input and output, import, then watch over one child after the other."""
    read_from, write_to, nowhere = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nowhere, standard)
    wanted = json.loads(_lines(read_from).__next__())
    started_by = int(str(wanted["asker"]))
    judge = _made(wanted)
    for pair in EASY:
        judge(*pair)
    os.dup2(nowhere, 2)
    gc.collect()
    gc.freeze()  # what was imported stays shared with every child
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends a child, whatever it is doing
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    died = 0
    while died != END and os.getppid() == started_by:
        watched, life = os.pipe()
        child = os.fork()
        if not child:
            try:
                _work(judge, read_from, write_to, wanted, died)
            except BrokenPipeError:  # whoever asked is gone, and a successor would have nobody to tell either
                os._exit(END)
            except BaseException:  # no line of theirs arrived whole
                os._exit(GARBLED)
            os._exit(END)
        os.close(life)  # the child's is the only one
        died = _watch(child, watched, started_by)
        os.close(watched)


def _watch(child: int, watched: int, started_by: int) -> int:
    """Wait for a child's end: the signal that ended it, negative, or its exit code."""
    while not select.select([watched], [], [], LOOKS_S)[0]:
        if os.getppid() != started_by:
            os.kill(child, signal.SIGKILL)
            os._exit(END)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _made(wanted: dict[str, object]) -> Judge:
    """The function that judges, with its options: importing it is what takes time."""
    module, _, name = str(wanted["judge"]).partition(":")
    function = getattr(importlib.import_module(module), name)
    options = pickle.loads(base64.b64decode(str(wanted["options"])))  # of our own parent

    def judge(answer: str, reference: str) -> dict[str, object]:
        verdict = function(answer, reference, **options)
        return {key: getattr(verdict, key) for key in ("status", "extracted", "stage", "policy")}

    return judge


def _work(judge: Judge, read_from: int, write_to: int, wanted: dict[str, object], died: int) -> None:
    """In the child: judge until the input ends."""
    _die_with_parent()
    _hold(int(str(wanted["memory"])))
    limit_s = float(str(wanted["limit_s"]))
    _say(write_to, {"ready": os.getpid(), "died": died})
    for line in _lines(read_from):
        pair = json.loads(line)
        _say(write_to, {"begun": pair["pair"]})
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        try:
            told = judge(pair["answer"], pair["reference"])
        except MemoryError:
            signal.setitimer(signal.ITIMER_PROF, 0)
            os._exit(SPENT)
        except BaseException as error:  # a library that calls sys.exit must not end the worker either
            told = {"status": "parse_error", "extracted": None, "stage": f"raised {type(error).__name__}", "policy": ""}
        signal.setitimer(signal.ITIMER_PROF, 0)
        _say(write_to, {"done": pair["pair"], **told})


def _lines(read_from: int) -> Iterator[bytes]:
    """Whole lines as they come; a part of a line without its end is none."""
    held = bytearray()
    while piece := os.read(read_from, 1 << 16):
        held += piece
        if piece.endswith(b"\n"):  # one message at a time
            yield bytes(held)
            held.clear()


def _say(write_to: int, message: dict[str, object]) -> None:
    rest = memoryview(json.dumps(message).encode() + b"\n")
    while rest:
        rest = rest[os.write(write_to, rest) :]


def _die_with_parent() -> None:
    """Where the kernel can: with the process that watches over this one."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() == 1:
        os._exit(END)


def _hold(memory: int) -> None:
    """No core files, and no more address space than that where the platform can refuse it."""
    import resource

    for kind, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, memory)):
        with contextlib.suppress(ValueError, OSError):  # macOS has no limit of address space
            hard = resource.getrlimit(kind)[1]
            resource.setrlimit(kind, (most if hard < 0 else min(most, hard), hard))


if __name__ == "__main__":
    main()
