"""A completion in the making: what vLLM has sampled of it, token by token."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from tether.engines.vllm.core import Made
from tether.engines.vllm.routes import Routed
from tether.models.routers import RoutingShape
from tether.ports import GenerationRequest
from tether.records import NO_EXPERT, Completion, Experts, Finish, Ints, KeptSets

_EMPTY: Ints = np.empty(0, np.int32)


class Draft:
    """Its request, its tokens so far, and where they came from."""

    def __init__(self, request: GenerationRequest, routing: RoutingShape | None) -> None:
        self.request = request
        self._routing = routing
        self._routed: list[Routed] = []
        self.cached = -1
        """Version that computed the oldest entry of its cache; -1: there is none yet."""
        self.has_stopped = False
        self.has_left = False
        """Whether nobody waits for it any more."""
        self._ids: list[int] = []
        self._logp: list[float] = []
        self._version: list[int] = []
        self._cached: list[int] = []
        self._top_ids: list[Any] = []
        self._top_logp: list[Any] = []
        self._kept: list[Ints] = []
        if request.so_far is not None:
            self._begin_with(request.so_far)

    @property
    def count(self) -> int:
        """Tokens so far."""
        return len(self._ids)

    @property
    def num_left(self) -> int:
        """Most tokens that may still come."""
        return self.request.max_tokens - self.count

    @property
    def is_done(self) -> bool:
        """Whether nothing more is drawn for it."""
        return self.has_stopped or self.has_left or self.num_left == 0

    @property
    def prefix(self) -> tuple[int, ...]:
        """Everything the next token follows."""
        return (*self.request.prompt_ids, *self._ids)

    @property
    def wants_kept(self) -> bool:
        """Whether its completion says what each token was sampled among."""
        return self.request.kept and not self.request.truncation.is_none

    def sampling(self) -> dict[str, Any]:
        """How what is left of it is sampled, in vLLM's words."""
        asked, cut = self.request, self.request.truncation
        return {
            "temperature": asked.temperature,
            "seed": seed_at(asked.seed, self.count),
            "max_tokens": self.num_left,
            "logprobs": asked.alternatives,
            "top_k": cut.top_k,
            "top_p": cut.top_p,
            "min_p": cut.min_p,
        }

    def take(self, made: Made, version: int) -> None:
        """One more token."""
        self._ids.append(made.id)
        self._logp.append(made.logp)
        self._version.append(version)
        self._cached.append(self.cached)
        if k := self.request.alternatives:
            self._top_ids.append(made.top_ids[:k])
            self._top_logp.append(made.top_logp[:k])
        if self.wants_kept:
            self._kept.append(_EMPTY if made.kept is None else made.kept)
        self.has_stopped = made.has_stopped

    def route(self, routed: Routed) -> None:
        """Experts of some of its tokens. What is known of one stays: the route that it was sampled with, not that of a
        cache computed anew."""
        if self.request.routing:
            self._routed.append(routed)

    def completion(self) -> Completion:
        """The tokens so far; ``interrupted`` unless it has ended by itself."""
        finish: Finish = "stop" if self.has_stopped else "interrupted" if self.num_left else "length"
        shape = (self.count, self.request.alternatives)
        sizes = [0, *map(len, self._kept)]
        return Completion(
            token_ids=np.array(self._ids, np.int32),
            logp=np.array(self._logp, np.float32),
            version=np.array(self._version, np.int32),
            finish=finish,
            cached_version=np.array(self._cached, np.int32) if self._cached != self._version else None,
            top_k_ids=np.array(self._top_ids, np.int32).reshape(shape) if shape[1] else None,
            top_k_logp=np.array(self._top_logp, np.float32).reshape(shape) if shape[1] else None,
            kept=KeptSets(ids=np.concatenate([_EMPTY, *self._kept]), starts=np.cumsum(sizes, dtype=np.int64))
            if self.wants_kept
            else None,
            experts=self._experts(),
        )

    def _experts(self) -> Experts | None:
        if not self.request.routing or self._routing is None:
            return None
        experts = self._routing.unknown(len(self.request.prompt_ids) + self.count)
        for start, rows in reversed(self._routed):  # the first to be told is the last to be laid, over all others
            into = experts[start : start + len(rows)]
            np.copyto(into, rows[: len(into)], casting="unsafe", where=rows[: len(into)] != NO_EXPERT)
        if self.count:  # its route, if it has one, is of a cache that is being computed anew
            experts[-1] = NO_EXPERT
        return experts

    def _begin_with(self, made: Completion) -> None:
        self._ids, self._logp, self._version = made.token_ids.tolist(), made.logp.tolist(), made.version.tolist()
        self._cached = list(self._version) if made.cached_version is None else made.cached_version.tolist()
        if (k := self.request.alternatives) and made.top_k_ids is not None and made.top_k_logp is not None:
            self._top_ids, self._top_logp = list(made.top_k_ids[:, :k]), list(made.top_k_logp[:, :k])
        if made.experts is not None:
            self.route(Routed(0, made.experts))
        if self.wants_kept:
            self._kept = [_EMPTY if made.kept is None else made.kept.of(token) for token in range(len(made))]


def seed_at(seed: int, count: int) -> int:
    """The seed of a row that goes on after ``count`` tokens: it draws other numbers than it began with.

    >>> seed_at(7, 0) == seed_at(7, 0), seed_at(7, 0) == seed_at(7, 1)
    (True, False)
    """
    digest = hashlib.blake2b(f"{seed} {count}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
