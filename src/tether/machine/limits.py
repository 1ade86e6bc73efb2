"""What this process may use: cores by affinity and quota, memory by what is there and what the cgroup grants.

``os.cpu_count()`` and the machine's memory know nothing of a container's limits, and neither does torch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from tether.machine.surroundings import Surroundings

CGROUPS = "sys/fs/cgroup"
UNLIMITED = 2**60
"""cgroup v1 writes no limit as a number near 2^63."""


class Cores(NamedTuple):
    """Cores, by who grants them; ``None`` where nobody limits or tells."""

    present: int | None
    affinity: int | None
    quota: float | None
    """Of the cgroup, in cores' worth of time."""

    @property
    def usable(self) -> float:
        """The least of them.

        >>> Cores(64, 8, 1.5).usable
        1.5
        """
        return min((float(n) for n in self if n), default=1.0)

    @property
    def num_threads(self) -> int:
        """Threads that can really run at once; at least 1.

        >>> Cores(64, 8, 1.5).num_threads
        2
        """
        return max(1, math.ceil(self.usable))


class Memory(NamedTuple):
    """Bytes; ``None`` where the system does not tell."""

    total: int | None
    available: int | None
    limit: int | None
    """Of the cgroup."""


def cores(here: Surroundings) -> Cores:
    """Cores that this process may use."""
    quotas = [quota for folder in _cgroups(here, "cpu") if (quota := _quota(here, folder)) is not None]
    return Cores(here.num_cores(), here.usable_cores(), min(quotas, default=None))


def memory(here: Surroundings) -> Memory:
    """Memory that this process may use."""
    table = dict(line.split(":", 1) for line in here.text("proc/meminfo").splitlines() if ":" in line)
    total, available = (_kib(table.get(name, "")) for name in ("MemTotal", "MemAvailable"))
    if total is None:
        total = _physical()
    limits = [pair for folder in _cgroups(here, "memory") if (pair := _memory_limit(here, folder)) is not None]
    for limit, used in limits:
        room = max(0, limit - used)
        available = room if available is None else min(available, room)
    return Memory(total, available, min((limit for limit, _ in limits), default=None))


def _cgroups(here: Surroundings, controller: str) -> Iterator[str]:
    """The folders that limit this process, its own first, then those around it; v2 and v1."""
    for line in here.text("proc/self/cgroup").splitlines() or ["0::/"]:
        _, names, path = line.split(":", 2) if line.count(":") >= 2 else ("", "", "/")
        if names and controller not in names.split(","):
            continue
        base = f"{CGROUPS}/{controller}" if names else CGROUPS
        own = PurePosixPath(path)
        for folder in (own, *own.parents):
            yield f"{base}/{folder.relative_to('/') if folder.is_absolute() else folder}"


def _quota(here: Surroundings, folder: str) -> float | None:
    words = here.text(f"{folder}/cpu.max").split()
    if not words:  # v1
        words = [here.text(f"{folder}/cpu.cfs_{kind}_us").strip() for kind in ("quota", "period")]
    quota, period = (_whole(word) for word in (*words, "", "")[:2])
    return quota / period if quota and period and quota > 0 else None


def _memory_limit(here: Surroundings, folder: str) -> tuple[int, int] | None:
    """Limit and what counts against it, less what the kernel gives back when asked."""
    limit = _whole(here.text(f"{folder}/memory.max")) or _whole(here.text(f"{folder}/memory.limit_in_bytes"))
    if limit is None or limit >= UNLIMITED:
        return None
    used = _whole(here.text(f"{folder}/memory.current")) or _whole(here.text(f"{folder}/memory.usage_in_bytes")) or 0
    rows = (line.split() for line in here.text(f"{folder}/memory.stat").splitlines())
    cache = {row[0]: _whole(row[1]) or 0 for row in rows if len(row) == 2}
    return limit, max(0, used - cache.get("inactive_file", cache.get("total_inactive_file", 0)))


def _whole(text: str) -> int | None:
    try:
        return int(text.strip())
    except ValueError:
        return None


def _kib(text: str) -> int | None:
    number = _whole(text.replace("kB", ""))
    return None if number is None else number * 1024


def _physical() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
