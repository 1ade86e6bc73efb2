"""What was drawn, on the host: a block of tokens of all rows, and a completion in the making."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tether.engines.kept import listed, sets_of
from tether.engines.sampling import Sampled
from tether.models.routers import RoutingShape
from tether.ports import GenerationRequest
from tether.records import NO_EXPERT, Completion, Experts, Finish, Ints


class Block(NamedTuple):
    """Tokens of all rows, ``[B, n]``; alternatives are ``[B, n, k]``, bits of kept sets ``[B, n, V / 8]``."""

    ids: NDArray[np.int64]
    logp: NDArray[np.float32]
    entropy: NDArray[np.float32]
    top_k_ids: NDArray[np.int64] | None
    top_k_logp: NDArray[np.float32] | None
    kept: NDArray[np.uint8] | None


def on_host(drawn: Sequence[Sampled]) -> Block:
    """Copy what was drawn step by step from the device."""
    top_k = drawn[0].top_k_ids is not None
    return Block(
        _stacked([step.ids for step in drawn]),
        _stacked([step.logp for step in drawn]),
        _stacked([step.entropy for step in drawn]),
        _stacked([step.top_k_ids for step in drawn]) if top_k else None,
        _stacked([step.top_k_logp for step in drawn]) if top_k else None,
        _stacked([step.kept for step in drawn]) if drawn[0].kept is not None else None,
    )


class Draft:
    """A completion in the making: its request, its tokens so far, and where they came from."""

    def __init__(self, request: GenerationRequest, routing: RoutingShape | None) -> None:
        limit, length = request.max_tokens, len(request.prompt_ids)
        self.request = request
        self.seed = request.seed & 0xFFFF_FFFF_FFFF_FFFF
        self.count = 0
        self.cached = -1
        """Version that computed the oldest entry of its cache."""
        self.has_stopped = False
        self.has_left = False
        """Whether nobody waits for it any more."""
        self._ids: NDArray[np.int32] = np.empty(limit, np.int32)
        self._logp: NDArray[np.float32] = np.empty(limit, np.float32)
        self._entropy: NDArray[np.float32] = np.empty(limit, np.float32)
        self._version: NDArray[np.int32] = np.empty(limit, np.int32)
        self._cached: NDArray[np.int32] = np.empty(limit, np.int32)
        self._top_k_ids: NDArray[np.int32] = np.empty((limit, request.alternatives), np.int32)
        self._top_k_logp: NDArray[np.float32] = np.empty((limit, request.alternatives), np.float32)
        self._kept: list[Ints] = []
        self._num_kept: NDArray[np.int64] = np.zeros(limit, np.int64)
        self.experts: Experts | None = None
        """``[P + limit, layers, k]``, where the request asks; ``NO_EXPERT`` where none is known yet."""
        if request.routing and routing is not None:
            self.experts = routing.unknown(length + limit)
        if request.so_far is not None:
            self._begin_with(request.so_far)

    @property
    def num_left(self) -> int:
        """Most tokens that may still come."""
        return self.request.max_tokens - self.count

    @property
    def is_done(self) -> bool:
        """Whether nothing more is drawn for it."""
        return self.has_stopped or self.has_left or self.num_left == 0

    @property
    def reports_kept(self) -> bool:
        """Whether somebody wants to know what each token is sampled among, and it is not the whole vocabulary."""
        return self.request.kept and not self.request.truncation.is_none

    @property
    def prefix(self) -> tuple[int, ...]:
        """Everything the next token follows."""
        return (*self.request.prompt_ids, *self._ids[: self.count].tolist())

    def take(self, block: Block, row: int, count: int, version: int) -> None:
        """The first ``count`` tokens of a row of the block."""
        into = slice(self.count, self.count + count)
        self._ids[into] = block.ids[row, :count]
        self._logp[into] = block.logp[row, :count]
        self._entropy[into] = block.entropy[row, :count]
        self._version[into] = version
        self._cached[into] = self.cached
        if (k := self.request.alternatives) and block.top_k_ids is not None and block.top_k_logp is not None:
            self._top_k_ids[into] = block.top_k_ids[row, :count, :k]
            self._top_k_logp[into] = block.top_k_logp[row, :count, :k]
        if self.reports_kept and block.kept is not None:
            ids, self._num_kept[into] = listed(block.kept[row, :count])
            self._kept.append(ids)
        self.count += count

    def completion(self) -> Completion:
        """The tokens so far; ``interrupted`` unless it has ended by itself."""
        count, asked = self.count, self.request
        finish: Finish = "stop" if self.has_stopped else "interrupted" if self.num_left else "length"
        cached, version = self._cached[:count], self._version[:count]
        return Completion(
            token_ids=self._ids[:count].copy(),
            logp=self._logp[:count].copy(),
            entropy=self._entropy[:count].copy(),
            version=version.copy(),
            cached_version=cached.copy() if (cached != version).any() else None,
            finish=finish,
            top_k_ids=self._top_k_ids[:count].copy() if asked.alternatives else None,
            top_k_logp=self._top_k_logp[:count].copy() if asked.alternatives else None,
            kept=sets_of(self._kept, self._num_kept[:count]) if self.reports_kept else None,
            experts=self._routes(),
        )

    def _routes(self) -> Experts | None:
        if self.experts is None:
            return None
        experts = self.experts[: len(self.request.prompt_ids) + self.count].copy()
        if self.count:  # a row that ended inside a block ran on, and has read its last token; others have not
            experts[-1] = NO_EXPERT
        return experts

    def _begin_with(self, made: Completion) -> None:
        self.count = count = len(made)
        self._ids[:count], self._logp[:count], self._entropy[:count] = made.token_ids, made.logp, made.entropy
        self._version[:count] = made.version
        self._cached[:count] = made.version if made.cached_version is None else made.cached_version
        if (k := self.request.alternatives) and made.top_k_ids is not None and made.top_k_logp is not None:
            self._top_k_ids[:count], self._top_k_logp[:count] = made.top_k_ids[:, :k], made.top_k_logp[:, :k]
        if self.reports_kept and made.kept is not None:
            self._kept, self._num_kept[:count] = [made.kept.ids], np.diff(made.kept.starts)
        if self.experts is not None and made.experts is not None:
            self.experts[: len(made.experts)] = made.experts


def _stacked(steps: Sequence[Tensor | None]) -> NDArray[Any]:
    return torch.stack([step for step in steps if step is not None], dim=1).cpu().numpy()
