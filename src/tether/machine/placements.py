"""Where the parts of a run can live here: in one process, or in several on Ray."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tether.machine.finding import Finding, gib, reason_of
from tether.machine.surroundings import DISTRIBUTION, Surroundings

SECTION: Final = "placements"
LITTLE_SHM: Final = 2**30
"""Bytes of shared memory under which Ray keeps its objects on disk; docker grants 64 MiB unless told."""
SHM: Final = "dev/shm"


def look(here: Surroundings) -> Iterator[Finding]:
    """``inline``, ``ray``, and the shared memory through which weights travel under ``ray``."""
    yield _inline(here)
    has_ray = here.version_of("ray") is not None
    yield _ray(here, has_ray)
    if (here.root / SHM).is_dir():
        yield _shared_memory(here, has_ray)


def _inline(here: Surroundings) -> Finding:
    try:
        here.load("tether.placement.inline")
    except Exception as error:
        is_windows = not isinstance(error, ImportError)  # it has no SIGUSR2
        way_out = "tether needs Linux or macOS; on Windows use WSL" if is_windows else "mend it first, see versions"
        return Finding(section=SECTION, name="inline", status="fail", value=reason_of(error), way_out=way_out)
    return Finding(section=SECTION, name="inline", status="ok", value="one process, virtual time")


def _ray(here: Surroundings, has_ray: bool) -> Finding:
    pip = f"pip install '{DISTRIBUTION}[ray]'"
    if not has_ray:
        return Finding(section=SECTION, name="ray", status="ok", value="optional, not installed", way_out=pip)
    try:
        here.load("ray")
    except Exception as error:  # it loads libraries of its own
        value = f"installed, but cannot be imported: {reason_of(error)}"
        return Finding(section=SECTION, name="ray", status="warn", value=value, way_out=f"{pip} --force-reinstall")
    value = f"{here.version_of('ray')}, trainer, engines and rewards in own processes"
    return Finding(section=SECTION, name="ray", status="ok", value=value)


def _shared_memory(here: Surroundings, has_ray: bool) -> Finding:
    free = here.free_bytes(here.root / SHM)
    if has_ray and free < LITTLE_SHM:
        value = f"{gib(free)} free in /{SHM}: Ray would keep its objects on disk, and publish slowly"
        way_out = "start the container with --shm-size=2g (docker, podman), or remove old files there"
        return Finding(section=SECTION, name="shared memory", status="warn", value=value, way_out=way_out)
    return Finding(section=SECTION, name="shared memory", status="ok", value=f"{gib(free)} free in /{SHM}")
