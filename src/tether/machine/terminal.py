"""Can the terminal show what tether prints? Told only where it cannot."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Final

from tether.machine.finding import Finding
from tether.machine.surroundings import Surroundings

SECTION: Final = "terminal"


def look(here: Surroundings) -> Iterator[Finding]:
    """An encoding that cannot hold every character of a prompt."""
    try:
        is_unicode = codecs.lookup(here.encoding).name.startswith("utf")
    except LookupError:
        is_unicode = False
    if not is_unicode:
        value = f"its encoding is {here.encoding}: tether show stops at the first character beyond it"
        way_out = "export PYTHONUTF8=1, or a UTF-8 locale: export LC_ALL=C.UTF-8"
        yield Finding(section=SECTION, name="encoding", status="warn", value=value, way_out=way_out)
