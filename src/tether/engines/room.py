"""Memory of vLLM's key-value cache."""

from __future__ import annotations

import math
from typing import Final

from tether.errors import ConfigError

MOST_GIB: Final = 10**5
ON_PROCESSORS_GIB: Final = 1.0
"""Without a limit vLLM asks for nine tenths of the machine's memory, and does not start where less is free."""


def check_room(gib: float) -> None:
    """Raise ``ConfigError`` if no cache can be of that size."""
    if not 0 <= gib <= MOST_GIB:
        raise ConfigError(f"engine.kv_cache_gib must be 0 (the default) or at most {MOST_GIB}; got {gib}")


def cache_bytes(gib: float, *, on_cpu: bool) -> int | None:
    """How large the cache is to be; ``None``: as much of a GPU as vLLM takes by itself.

    >>> cache_bytes(0.5, on_cpu=False), cache_bytes(0.0, on_cpu=True), cache_bytes(0.0, on_cpu=False)
    (536870912, 1073741824, None)
    """
    wanted = gib or (ON_PROCESSORS_GIB if on_cpu else 0.0)
    return math.ceil(wanted * 2**30) or None
