"""Random numbers of this process, which are the trainer's too, left as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put the global generators of Python, numpy and torch back afterwards.

    vLLM seeds them all when it starts, and draws from torch's for every row of every step, also where each row has a
    generator of its own.

    >>> before = torch.get_rng_state()
    >>> with undisturbed():
    ...     _ = torch.rand(3)
    >>> bool(torch.equal(before, torch.get_rng_state()))
    True
    """
    ours = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(ours[0])
        np.random.set_state(ours[1])
        torch.set_rng_state(ours[2])
