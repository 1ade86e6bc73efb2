"""Whether a publication follows the one that an engine holds: none may be missed, none may come out of turn."""

from __future__ import annotations

from tether.errors import ModelError
from tether.ports import Publication


def check_follows(held: Publication | None, publication: Publication) -> None:
    """Refuse a publication that is neither the next one after ``held`` nor ``held`` itself; the first may be any.

    >>> first = Publication(version=0, fingerprint="a", num_bytes=1, number=4)
    >>> check_follows(None, first)
    >>> check_follows(first, first)
    >>> check_follows(first, Publication(version=8, fingerprint="b", num_bytes=1, number=5))
    >>> check_follows(first, Publication(version=16, fingerprint="c", num_bytes=1, number=6))
    Traceback (most recent call last):
    tether.errors.ModelError: publications must come one by one; this engine holds number 4 (version 0) and was given \
number 6 (version 16): a version was missed; load those between first, or open the engine anew
    """
    if held is None or publication.number == held.number + 1 or is_same(held, publication):
        return
    told = f"holds number {held.number} (version {held.version}) and was given number {publication.number} (version "
    if publication.number > held.number:
        what = "a version was missed; load those between first"
    elif publication.number == held.number:
        what = "two publications have one number; take both from one store"
    else:
        what = "it is older; publish what is to come back anew"
    raise ModelError(
        f"publications must come one by one; this engine {told}{publication.version}): {what}, or open the engine anew"
    )


def is_same(held: Publication | None, publication: Publication) -> bool:
    """Whether it is the one that is held, come again."""
    return held is not None and (held.number, held.fingerprint) == (publication.number, publication.fingerprint)
