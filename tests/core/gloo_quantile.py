"""One rank of the quantile over processes; run by test_quantile as ``python gloo_quantile.py FOLDER RANK``.

Every rank draws the same numbers, keeps its own stretch of them as two micro-batches, and writes the answers' bits.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from tether.core.examples import tokens_of
from tether.core.statistics import AbsoluteQuantile, measure

LEVELS = (0.5, 0.9, 0.99)
SIZES = ([301, 118], [157, 0], [0, 12], [1, 1])
"""Tokens on each rank, case by case."""


def drawn(size: int) -> Tensor:
    """The whole step's log-ratios, with ties."""
    d = 0.1 * torch.randn(size, generator=torch.Generator().manual_seed(5))
    return torch.where(torch.arange(size) % 7 == 0, (20 * d).round() / 20, d)


def answers(d: Tensor, across=None) -> list[float]:
    """The quantiles of these numbers, measured as two micro-batches."""
    parts = []
    for piece in (d[: len(d) // 3], d[len(d) // 3 :]):
        tokens, logp = tokens_of(log_ratio=piece.tolist(), advantage=[1.0] * len(piece))
        parts.append((logp.detach(), tokens))
    stats = measure(parts, [AbsoluteQuantile(level) for level in LEVELS], across)
    return [stats[AbsoluteQuantile(level)].item() for level in LEVELS]


def all_gather(share: Tensor) -> list[Tensor]:
    """Every rank's share."""
    shares = [torch.empty_like(share) for _ in range(dist.get_world_size())]
    dist.all_gather(shares, share)
    return shares


def written(results: list[list[float]]) -> str:
    """Answers as text that keeps every bit."""
    return "\n".join(" ".join(x.hex() for x in case) for case in results)


def main(folder: Path, rank: int) -> None:
    """Join the group, measure every case, write ``rank.txt``."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    own = [torch.split(drawn(sum(sizes)), sizes)[rank] for sizes in SIZES]
    folder.joinpath(f"{rank}.txt").write_text(written([answers(d, all_gather) for d in own]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
