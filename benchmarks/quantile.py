"""The exact quantile of |d| at the size of a large run's step: integer counts against a sort, and over two ranks.

A sort and ``torch.kthvalue`` need all values in one place; counts are added up over micro-batches and ranks, so two
ranks exchange their histograms alone. All give the same bits, which is checked. ``torch.quantile`` refuses 64 M values
and is shown at 4 M.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from _measure import in_turns, median, print_machine, ratio
from torch import Tensor

from tether.core.statistics import AbsoluteQuantile, Gather, measure
from tether.core.tokens import TokenBatch

LEVEL = 0.9
GOAL = 3.0
"""Times as fast as a sort."""
SIZES = {4_000_000: 3, 64_000_000: 1}
"""Values, and turns."""
RANKS = 2
MOST_OF_QUANTILE = 1 << 24
"""Elements that ``torch.quantile`` takes."""


def drawn(size: int) -> Tensor:
    """Log-ratios of a stale step."""
    return 0.05 * torch.randn(size, generator=torch.Generator().manual_seed(0))


def tokens_like(d: Tensor) -> TokenBatch:
    """All trainable; what a quantile does not read takes no memory."""
    nothing, first = torch.zeros(1).expand(len(d)), torch.zeros(1, dtype=torch.int64).expand(len(d))
    return TokenBatch(
        logp_behavior=nothing,
        logp_proximal=nothing,
        advantage=nothing,
        trainable=torch.ones(len(d), dtype=torch.bool),
        sequence=first,
        group=first,
        staleness=first,
    )


def counted(d: Tensor, tokens: TokenBatch, across: Gather | None = None) -> float:
    """By integer counts, in the same class that SAT uses."""
    statistic = AbsoluteQuantile(LEVEL)
    return measure([(d, tokens)], [statistic], across)[statistic].item()


def compare(d: Tensor, rounds: int) -> float:
    """Print the times; the answer."""
    tokens, rank = tokens_like(d), int(np.ceil(LEVEL * len(d) - 1e-9))
    ways: dict[str, Callable[[], float]] = {
        "counts": lambda: counted(d, tokens),
        "sort": lambda: d.abs().sort().values[rank - 1].item(),
        "kthvalue": lambda: d.abs().kthvalue(rank).values.item(),
    }
    if len(d) <= MOST_OF_QUANTILE:
        ways["quantile"] = lambda: torch.quantile(d.abs(), LEVEL, interpolation="higher").item()
    answers: dict[str, float] = {}
    works = {name: lambda name=name, way=way: answers.update({name: way()}) for name, way in ways.items()}
    costs = in_turns(works, rounds, warm=rounds > 1)
    if len({answers[name] for name in ("counts", "sort", "kthvalue")}) > 1:
        raise SystemExit(f"the answers differ: {answers}")
    print(f"{len(d):,} values, the {LEVEL}-quantile of |d|, medians of {rounds} turn(s)")
    for name in works:
        against = f"  {ratio(costs[name], costs['counts']):5.1f} x counts" if name != "counts" else ""
        print(f"  {name:22s} {median(costs[name])}{against}")
    found = ratio(costs["sort"], costs["counts"])
    print(f"  sort / counts          {found:.1f}x   goal >= {GOAL:.0f}x: {'met' if found >= GOAL else 'missed'}")
    return answers["counts"]


def compare_ranks(d: Tensor, wanted: float) -> None:
    """The same values on two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "d.npy", d.numpy())
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--folder", folder, "--rank", str(rank)], stdout=subprocess.PIPE
            )
            for rank in range(RANKS)
        ]
        outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit("a rank failed")
    found = [json.loads(output) for output in outputs]
    if any(one["answer"] != wanted for one in found):
        raise SystemExit(f"the ranks' answers differ from {wanted}: {found}")
    sent, values = max(one["bytes"] for one in found), d.nbytes // RANKS
    print(f"{RANKS} ranks of {len(d) // RANKS:,} values each, gloo: the same bits as in one place")
    for one in found:
        print(
            f"  rank {one['rank']}                 {one['cpu_s'] * 1e3:8.1f} ms CPU {one['wall_s'] * 1e3:8.1f} ms wall"
        )
    print(
        f"  a rank sends           {sent:,} bytes of counts; all its values would be {values:,} ({values / sent:.0f}x)"
    )


def rank_of(folder: Path, rank: int) -> None:
    """One rank: its share of the values, the counts of both; prints what it took."""
    store = dist.FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=120))
    share = np.array_split(np.load(folder / "d.npy", mmap_mode="r"), RANKS)[rank]
    d = torch.from_numpy(np.array(share))
    tokens, sent = tokens_like(d), 0

    def all_gather(here: Tensor) -> list[Tensor]:
        nonlocal sent
        sent += here.nbytes
        shares = [torch.empty_like(here) for _ in range(RANKS)]
        dist.all_gather(shares, here)
        return shares

    dist.barrier()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    answer = counted(d, tokens, all_gather)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    print(json.dumps({"rank": rank, "answer": answer, "bytes": sent, "cpu_s": cpu_s, "wall_s": wall_s}))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.folder is not None:
        rank_of(asked.folder, asked.rank)
        return
    print_machine()
    for size, rounds in SIZES.items():
        d = drawn(size)
        answer = compare(d, rounds)
    compare_ranks(d, answer)


if __name__ == "__main__":
    main()
