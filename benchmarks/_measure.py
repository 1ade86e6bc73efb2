"""What the benchmarks share: work measured in turns, so that a busy moment hits all of it, and one way to say it.

CPU seconds are those of this process, all threads together: on a machine with other work they move less than wall time.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

Work = Callable[[], object]


class Cost(NamedTuple):
    """Seconds that one piece of work took."""

    wall_s: float
    cpu_s: float

    def __str__(self) -> str:
        return f"{self.cpu_s * 1e3:8.1f} ms CPU {self.wall_s * 1e3:8.1f} ms wall"


def cost_of(work: Work) -> Cost:
    """Do it once."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - wall_s, time.process_time() - cpu_s)


def in_turns(works: Mapping[str, Work], rounds: int, *, warm: bool = True) -> dict[str, list[Cost]]:
    """Every work once to warm up, unless it is long, then ``rounds`` times one after the other."""
    for work in works.values() if warm else ():
        work()
    turns = [{name: cost_of(work) for name, work in works.items()} for _ in range(rounds)]
    return {name: [turn[name] for turn in turns] for name in works}


def median(costs: Sequence[Cost]) -> Cost:
    """Of wall and of CPU seconds, each for itself."""
    return Cost(*(statistics.median(column) for column in zip(*costs, strict=True)))


def ratio(costs: Sequence[Cost], floor: Sequence[Cost]) -> float:
    """Median over the turns of CPU seconds against CPU seconds of the same turn."""
    return statistics.median(a.cpu_s / b.cpu_s for a, b in zip(costs, floor, strict=True))


def verdict(value: float, most: float) -> str:
    """A ratio beside its goal; missing it is no error, for these are no timed tests."""
    return f"{value:.2f}x   goal <= {most:.2f}x: {'met' if value <= most else 'missed'}"


def print_machine() -> None:
    """Date, processor, cores and load: a figure without them says nothing."""
    import os

    import torch

    load = os.getloadavg()[0]
    print(
        f"{date.today()}, {_processor()}, {os.cpu_count()} cores, load {load:.1f}, "
        f"torch {torch.__version__} with {torch.get_num_threads()} thread(s)"
    )


def _processor() -> str:
    """Name, family and model where Linux tells them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return f"{facts.get('model name', platform.machine())} (family {facts.get('cpu family', '?')})"
