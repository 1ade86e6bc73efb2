"""Which split a text belongs to, by the text alone: the same on every machine, whatever the seed."""

from __future__ import annotations

import hashlib

from tether.errors import ConfigError

_HELDOUT_SHARE = 8
_FEWEST = 100  # below it a split may hold nothing at all


def is_heldout(text: str) -> bool:
    """Whether a text belongs to the held-out split: one in eight, by its SHA-256.

    >>> [is_heldout(text) for text in ("2+2=", "1+5=")]
    [False, True]
    """
    return hash_number(text) % _HELDOUT_SHARE == 0


def hash_number(text: str) -> int:
    """A number below 2^64 that looks random and is the same for the same text everywhere.

    >>> hash_number("2+2=")
    2316042396133772017
    """
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def check_splittable(count: int, what: str, way_out: str) -> None:
    """Refuse a task with too few different problems (or whatever its split goes by) for two splits.

    >>> check_splittable(55, "answers", "raise symbols or max_length")
    Traceback (most recent call last):
    tether.errors.ConfigError: a task needs at least 100 different answers to be split; these settings make 55; \
raise symbols or max_length
    """
    if count < _FEWEST:
        raise ConfigError(
            f"a task needs at least {_FEWEST} different {what} to be split; these settings make {count}; {way_out}"
        )
