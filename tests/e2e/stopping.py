"""A process of its own in which runs are stopped by signals, here and there; what it writes to stderr is looked at.

``python -m tests.e2e.stopping HOME SETTING...`` makes a run for every row of ``CASES``, in a folder with its name.
"""

from __future__ import annotations

import gc
import itertools
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CASES = {
    "one in a step": ("step", 1),
    "two in a step": ("step", 2),
    "one in a block of tokens": ("block", 1),
    "two in a block of tokens": ("block", 2),
    "three in a block of tokens": ("block", 3),
    "two in a reward": ("reward", 2),
    "two in a checkpoint": ("capture", 2),
}
"""Where so many signals come at once."""
AT = {"step": 2, "block": 8, "reward": 9, "capture": 2}
"""At the how manieth call."""


def places() -> dict[str, tuple[type, str]]:
    from tether.engines.decoding import RowBatch
    from tether.pipeline.learner import LocalLearner
    from tether.pipeline.rollouts import Reader
    from tether.pipeline.trainer import Trainer

    return {
        "step": (Trainer, "step"),
        "block": (RowBatch, "advance"),
        "reward": (Reader, "text"),
        "capture": (LocalLearner, "captured"),
    }


def raising(call: Callable[..., Any], at: int, count: int) -> Callable[..., Any]:
    """``call``, which is stopped by ``count`` signals when it has been called ``at`` times."""
    calls = itertools.count(1)

    def called(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == at:
            for _ in range(count):
                signal.raise_signal(signal.SIGINT)
        return call(*args, **kwargs)

    return called


def main(home: Path, settings: list[str]) -> None:
    import torch

    torch.set_num_threads(1)  # as the tests that compare do: the order of sums is another with two
    from tether.config.build import train
    from tether.config.recipe import load

    for case, (where, count) in CASES.items():
        owner, name = places()[where]
        call = getattr(owner, name)
        setattr(owner, name, raising(call, AT[where], count))
        try:
            train(load(settings=settings), home / case)
        except KeyboardInterrupt:
            print(f"stopped: {case}")
        finally:
            setattr(owner, name, call)
        gc.collect()  # a task that nobody awaited complains now


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
