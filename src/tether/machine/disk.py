"""Can runs be written, and flushed to disk?"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tether.machine.finding import Finding, Status, gib, reason_of
from tether.machine.surroundings import Surroundings

SECTION: Final = "disk"
TOO_LITTLE: Final = 100 * 2**20
"""Bytes without which not even the quickstart's run is sure to end."""
LITTLE: Final = 2 * 2**30
"""Bytes; one checkpoint of a model of 135 M weights with Adam's two moments, in float32, is 1.6 GB."""
SLOW_S: Final = 0.5
"""Seconds of one flush from which every checkpoint is felt."""
BLOCK: Final = b"tether" * 2**17


def look(here: Surroundings) -> Iterator[Finding]:
    """Where runs go, and the temporary folder."""
    yield _folder(here, "runs", here.runs.absolute(), "choose another place with --out")
    try:
        temp = Path(here.temp())
    except OSError as error:
        way_out = "name a folder that can be written: export TMPDIR=FOLDER"
        yield Finding(section=SECTION, name="temporary", status="fail", value=reason_of(error), way_out=way_out)
    else:
        yield _folder(here, "temporary", temp, "name another one: export TMPDIR=FOLDER")


def _folder(here: Surroundings, name: str, wanted: Path, elsewhere: str) -> Finding:
    """Free space, and a real write; of a folder that is not there yet, of the one that would hold it."""
    folder = next(place for place in (wanted, *wanted.parents) if place.is_dir())
    try:
        free = here.free_bytes(folder)
        flush_s = flush(folder)
    except OSError as error:
        value = f"{wanted} cannot be written: {error.strerror or error}"
        return Finding(section=SECTION, name=name, status="fail", value=value, way_out=elsewhere)
    status: Status = "ok"
    if free < LITTLE:
        status, elsewhere = ("fail" if free < TOO_LITTLE else "warn"), f"make room, or {elsewhere}"
    elif flush_s > SLOW_S:
        status, elsewhere = "warn", f"a network folder or a busy disk; {elsewhere}"
    value = f"{gib(free)} free in {wanted}, flushed in {flush_s * 1000:.0f} ms"
    return Finding(section=SECTION, name=name, status=status, value=value, way_out="" if status == "ok" else elsewhere)


def flush(folder: Path) -> float:
    """Seconds to write a file and see it on disk; it is gone afterwards."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".tether-doctor-") as file:
        file.write(BLOCK)
        file.flush()
        began = time.perf_counter()
        os.fsync(file.fileno())
        return time.perf_counter() - began
