"""The quantile across processes, and beyond the sizes where float counts and ``torch.quantile`` give up."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import torch

from tether.core.statistics import AbsoluteQuantile, measure
from tether.core.tokens import TokenBatch

from . import gloo_quantile


def test_two_processes_give_the_bits_of_one(tmp_path):
    """Ranks of different sizes, one of them empty too."""
    ranks = [
        subprocess.Popen(
            [sys.executable, gloo_quantile.__file__, str(tmp_path), str(rank)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            _, errors = rank.communicate(timeout=90)
            assert rank.returncode == 0, errors
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    whole = [gloo_quantile.answers(gloo_quantile.drawn(sum(sizes))) for sizes in gloo_quantile.SIZES]
    for rank in range(2):
        assert tmp_path.joinpath(f"{rank}.txt").read_text() == gloo_quantile.written(whole)


def many(d: torch.Tensor) -> TokenBatch:
    """A batch of that size that takes hardly any memory."""
    nothing = torch.zeros(1, dtype=torch.int8).expand(len(d))
    return TokenBatch(
        logp_behavior=d,
        logp_proximal=d,
        advantage=d,
        trainable=torch.ones(1, dtype=torch.bool).expand(len(d)),
        sequence=nothing,
        group=nothing,
        staleness=nothing,
    )


def test_quantile_is_exact_beyond_two_to_the_24_elements():
    """2^24 + 1 zeros, then the smallest numbers there are: float32 counts would not tell the last 0 from the first."""
    zeros = (1 << 24) + 1
    bits = torch.arange(600_000, dtype=torch.int32)
    d = torch.cat([torch.zeros(zeros), bits[1:].view(torch.float32)])
    for level in (*((zeros + i) / len(d) for i in range(4)), 0.99):
        rank = int(np.ceil(level * len(d) - 1e-9))
        got = measure([(d, many(d))], [AbsoluteQuantile(level)])[AbsoluteQuantile(level)]
        assert int(got.view(torch.int32)) == max(0, rank - zeros)
