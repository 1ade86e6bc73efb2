"""What every protocol reads out of a server's answer, and how every protocol is spoken."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from tether.ports import EngineCapabilities, GenerationRequest, InFlight


class Span(NamedTuple):
    """Tokens ``start .. end - 1`` of an answer, and the label of the weights that made them."""

    label: str
    start: int
    end: int


class Piece(NamedTuple):
    """Some tokens of an answer: those that came after the pieces before."""

    ids: Sequence[int]
    logp: Sequence[float | None]
    """Of each id; ``None`` where the server said nothing or no number."""
    alternatives: Sequence[Sequence[tuple[int, float]]] | None = None
    """Of each id, the most probable ones and their log-probs, where asked for; at least as many as asked for."""
    kept: Sequence[Sequence[int]] | None = None
    """Of each id, what it was sampled among, where asked for."""
    prompt_ids: Sequence[int] | None = None
    """What the server took for the prompt, where it says so."""
    finish: str | None = None
    """``stop``, ``length`` or ``abort``, at the end; what else a server says is an error."""
    spans: Sequence[Span] | None = None
    """Of all tokens so far, where the server says so."""


@runtime_checkable
class Speech(Protocol):
    """How one kind of server is spoken to."""

    @property
    def capabilities(self) -> EngineCapabilities:
        """What such a server can do."""
        ...

    def question(self, request: GenerationRequest, name: str, salt: str) -> tuple[str, Mapping[str, Any]]:
        """Path and body that ask for the rest of a completion, under a name; cached prefixes are shared by questions
        with one salt only."""
        ...

    def piece(self, message: Mapping[str, Any], count: int) -> Piece:
        """What a message of the answer adds to the ``count`` tokens before; ``KeyError``, ``TypeError`` or
        ``ValueError`` if it is no such message."""
        ...

    async def drop(self, name: str) -> None:
        """End a question that nobody waits for."""
        ...

    async def hold(self, way: InFlight) -> None:
        """Stop sampling. What is under way is frozen with its cache (``keep``) or without (``recompute``), or comes
        back as it is (``restart``); nothing is under way where the way is ``finish``."""
        ...

    async def take(self, folder: Path, label: str, way: InFlight) -> None:
        """Read the weights of a folder, all of them, and label every token made with them."""
        ...

    async def go_on(self) -> None:
        """Sample again."""
        ...

    async def is_alive(self) -> bool:
        """Whether the server is there and well."""
        ...


def seed_of(request: GenerationRequest, bits: int) -> int:
    """The request's seed for a server's own generator; another one for the rest of a completion, for servers begin
    their numbers anew, and the rest would be drawn with those that its beginning was drawn with.

    >>> one = GenerationRequest(id="a", prompt_ids=(1,), seed=7, max_tokens=2, temperature=1.0)
    >>> seed_of(one, 31) == seed_of(one, 31), seed_of(one, 63) < 2**63
    (True, True)
    """
    count = 0 if request.so_far is None else len(request.so_far)
    digest = hashlib.blake2b(f"{request.seed} {count}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - bits)
