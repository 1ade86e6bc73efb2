"""What the questions look at, in one object, so that a test can ask them of a machine that is not there."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

DISTRIBUTION: Final = "tether-rl"
"""The package's name for pip."""


def version_of(distribution: str) -> str | None:
    """The installed version of a distribution, from its metadata: nothing is imported."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def asked_for() -> tuple[str, ...]:
    """What tether asks for, ``python`` among it, as lines of pip; empty if tether was not installed by pip."""
    try:
        metadata = importlib.metadata.metadata(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return ()
    python = metadata["Requires-Python"] or ""
    return (f"python{python}", *(importlib.metadata.requires(DISTRIBUTION) or ()))


def usable_cores() -> int | None:
    """Cores that this process may be scheduled on; ``None`` where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def load_average() -> float | None:
    """Processes that wanted to run over the last minute; ``None`` where the system does not count them."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The machine as it is; every part can be replaced.

    >>> Surroundings(variables={"OMP_NUM_THREADS": "4"}).variables["OMP_NUM_THREADS"]
    '4'
    """

    root: Path = Path("/")
    """Where ``proc``, ``sys`` and ``dev`` lie."""
    runs: Path = Path("runs")
    """Where ``tether train`` puts its runs."""
    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)
    python: str = field(default_factory=lambda: ".".join(map(str, sys.version_info[:3])))
    encoding: str = field(default_factory=lambda: getattr(sys.stdout, "encoding", None) or "utf-8")
    """Of the terminal."""
    requirements: tuple[str, ...] = field(default_factory=asked_for)
    version_of: Callable[[str], str | None] = version_of
    load: Callable[[str], Any] = importlib.import_module
    """Imports a module; whatever that raises is a finding."""
    num_cores: Callable[[], int | None] = os.cpu_count
    usable_cores: Callable[[], int | None] = usable_cores
    load_average: Callable[[], float | None] = load_average
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free
    temp: Callable[[], str] = tempfile.gettempdir

    def torch(self) -> Any | None:
        """The module ``torch``; ``None`` where it is missing or broken, which the versions tell."""
        try:
            return self.load("torch")
        except Exception:  # a broken torch raises what it likes
            return None

    def text(self, path: str) -> str:
        """A file below the root; empty if it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
