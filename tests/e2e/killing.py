"""Runs in processes of their own that die by SIGKILL at a chosen point, where their writes and their work count."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

COUNTED = ("write", "fsync", "ftruncate", "rename", "replace", "mkdir", "unlink")
"""Calls of the operating system before which a process may die; in the middle of a ``write``, too."""


def _count(on_call: Callable[[str], bool]) -> None:
    """Have every counted call, every block of decoded tokens and every step ask whether this is the end."""
    from tether.engines.decoding import RowBatch
    from tether.pipeline.trainer import Trainer

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*args: Any, **kwargs: Any) -> Any:
            if on_call(name):
                if name == "write":
                    call(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return asked

    for name in COUNTED:
        setattr(os, name, counted(name, getattr(os, name)))
    RowBatch.advance = counted("advance", RowBatch.advance)  # type: ignore[method-assign]
    Trainer.step = counted("step", Trainer.step)  # type: ignore[method-assign]


def _work(out: Path, settings: Sequence[str], resume: bool, last: int, report: Path | None) -> None:
    import torch

    torch.set_num_threads(1)
    from tether.config.build import go_on, train
    from tether.config.recipe import load
    from tether.config.resume import plan

    calls = itertools.count(1)  # a checkpoint is written by another thread

    def on_call(name: str) -> bool:
        return next(calls) == last

    _count(on_call)
    if resume:
        go_on(plan(out, None, (), told=print))
    else:
        train(load(settings=settings), out)
    if report is not None:
        report.write_text(str(next(calls) - 1))


class Killer:
    """Starts processes that have everything imported and nothing done."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tether.config.build", "tether.config.resume", "tether.engines.torch"])

    def run(
        self,
        out: Path,
        settings: Sequence[str] = (),
        *,
        resume: bool = False,
        last: int = 0,
        report: Path | None = None,
    ) -> int:
        """Train or resume; killed at the counted call number ``last``. The exit code, -9 for a process that was."""
        process = self._context.Process(target=_work, args=(out, settings, resume, last, report))
        process.start()
        process.join(240)
        assert process.exitcode is not None, "a run that should have died or ended hangs"
        return process.exitcode
