"""Judges for the pool's tests: each answer says what is to happen to the process that judges it."""

from __future__ import annotations

import os
import signal
import sys
import time

from tether.verifier.verdict import Verdict

JUDGE = "tests.verifier.standins:judge"
BROKEN = "tests.verifier.standins:broken"
OF_ANOTHER_KIND = "tests.verifier.standins:missing"


def judge(answer: str, reference: str, mode: str = "robust", policies: object = None) -> Verdict:
    acts = {
        "spin": spin,
        "deaf": deaf,
        "power": lambda: 7 ** (7**12),
        "sleep": lambda: time.sleep(3600),
        "nap": lambda: time.sleep(0.5),
        "eat": lambda: bytearray(1 << 36),
        "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "leave": lambda: sys.exit(3),
        "die": lambda: os._exit(0),
        "raise": lambda: 1 // 0,
        "print": lambda: (print("{}\n" * 10_000), os.write(1, b"x" * 100_000), os.write(2, b"y" * 100_000)),
        "read": lambda: sys.stdin.read(),
    }
    if answer in acts:
        acts[answer]()
    status = "correct" if answer == reference else "wrong"
    return Verdict(status=status, extracted=answer[-100:], stage=mode, policy=str(os.getpid()))


def spin() -> None:
    while True:
        pass


def deaf() -> None:
    """As a library that catches everything."""
    while True:
        try:
            spin()
        except BaseException:
            continue


def broken(answer: str, reference: str, mode: str = "robust", policies: object = None) -> Verdict:
    raise ImportError("no module named sympy: install it")
