"""Will the threads get in each other's way?

Two traps make a shared machine many times slower: more threads than cores that may really be used (torch counts the
machine's, not the container's), and OpenMP threads that spin while they wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tether.machine.finding import Finding
from tether.machine.limits import Cores, cores
from tether.machine.surroundings import Surroundings

SECTION: Final = "threads"
BUSY: Final = 1.5
"""Processes a usable core, over the last minute, from which timings say little."""


def look(here: Surroundings) -> Iterator[Finding]:
    """Number of threads, how they wait, and who else is at work."""
    found = cores(here)
    torch = here.torch()
    if torch is not None:
        yield _number(here, int(torch.get_num_threads()), found)
    yield _waiting(here)
    load = here.load_average()
    if load is not None:
        yield _busy(load, found)


def _number(here: Surroundings, number: int, found: Cores) -> Finding:
    asked = here.variables.get("OMP_NUM_THREADS")
    value = f"torch uses {number} (OMP_NUM_THREADS {'is not set' if asked is None else f'= {asked}'})"
    if number > found.num_threads:
        value += f", but {found.usable:g} cores are usable"
        way_out = f"export OMP_NUM_THREADS={found.num_threads}"
        return Finding(section=SECTION, name="number", status="warn", value=value, way_out=way_out)
    return Finding(section=SECTION, name="number", status="ok", value=value)


def _waiting(here: Surroundings) -> Finding:
    policy = here.variables.get("OMP_WAIT_POLICY", "")
    spins = here.variables.get("GOMP_SPINCOUNT", "0")
    if policy.upper() == "PASSIVE" and spins == "0":
        value = "threads sleep (OMP_WAIT_POLICY=PASSIVE)"
        return Finding(section=SECTION, name="waiting", status="ok", value=value)
    shown = f"OMP_WAIT_POLICY is {policy or 'not set'}" if spins == "0" else f"GOMP_SPINCOUNT={spins}"
    value = f"threads that wait spin ({shown}) and take the cores from whatever else runs"
    way_out = "before python starts: unset GOMP_SPINCOUNT; export OMP_WAIT_POLICY=PASSIVE"
    return Finding(section=SECTION, name="waiting", status="warn", value=value, way_out=way_out)


def _busy(load: float, found: Cores) -> Finding:
    value = f"load {load:.1f} on {found.usable:g} usable cores"
    if load > BUSY * found.usable:
        way_out = "other programs share the cores: figures below are slower than this machine; look with top"
        return Finding(section=SECTION, name="load", status="warn", value=value, way_out=way_out)
    return Finding(section=SECTION, name="load", status="ok", value=value)
