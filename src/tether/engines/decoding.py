"""Rows decoded together: they join, draw tokens in blocks, and leave.

Inside a block nothing is read back from the device; at its end the new tokens are copied to the host, rows that ended
are found, and the cache is cut down to those still alive when enough have ended. Between two blocks the whole state can
be saved. Time, weights and versions are the engine's business, not this module's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tether.engines.drawn import Block, Draft, on_host
from tether.engines.routes import hand_out
from tether.engines.rows import Decodable, DeviceRows
from tether.engines.sampling import Sampled, joined, uniforms
from tether.errors import NonFiniteError
from tether.models.routers import Routers
from tether.ports import GenerationRequest

_COMPACT_AT = 0.8
"""Share of rows alive at which the cache is cut down; a cut copies the cache once, as a decoded token does."""


class Advance(NamedTuple):
    """What one block brought."""

    num_passes: int
    """Forward passes that it took, one after the other."""
    ended: list[Draft]
    """Those that ended in it, in the order in which they joined."""


class RowBatch:
    """Completions in the making, in the order in which they joined, each at a position of its own.

    The first drafts are the rows of the device; those after them have not been read yet: they are new, or their cache
    is to be computed anew.
    """

    def __init__(self, loaded: Decodable, routers: Routers | None = None) -> None:
        self._loaded = loaded
        self._routers = routers
        self._eos = np.array(loaded.eos_ids)
        self._drafts: list[Draft] = []
        self._device: DeviceRows | None = None
        self._is_recomputing = False

    @classmethod
    def of(cls, loaded: Decodable, requests: Sequence[GenerationRequest], routers: Routers | None = None) -> RowBatch:
        """A batch that begins with these requests."""
        batch = cls(loaded, routers)
        batch.join(requests)
        return batch

    @property
    def drafts(self) -> list[Draft]:
        """Those that have not ended."""
        return [draft for draft in self._drafts if not draft.is_done]

    def join(self, requests: Sequence[GenerationRequest]) -> None:
        """Let these be read in the next block, together."""
        self._leave()
        shape = None if self._routers is None else self._routers.shape
        self._drafts += [Draft(request, shape) for request in requests]

    def recompute(self) -> None:
        """Forget the caches of all rows: the next block computes them anew, at the cost of a pass."""
        self._leave()
        self._device, self._is_recomputing = None, bool(self._drafts)

    def clear(self) -> None:
        """Forget all rows."""
        self._drafts, self._device, self._is_recomputing = [], None, False

    @torch.inference_mode()
    def advance(self, version: int, most: int) -> Advance:
        """Draw up to ``most`` tokens a row with the weights as they are, which have this version."""
        drafts, num_read = self._drafts, self._num_read
        steps = min(most, max(draft.num_left for draft in drafts if not draft.is_done))
        if self._routers is None or all(draft.experts is None for draft in drafts):
            drawn = self._draw(steps)
        else:
            with self._routers.recording() as chosen:
                drawn = self._draw(steps)
            hand_out(chosen, drafts[:num_read], drafts[num_read:])
        for draft in drafts[num_read:]:
            draft.cached = version
        ended = self._take(on_host(drawn), version)
        passes, self._is_recomputing = steps + self._is_recomputing, False
        self._compact()
        return Advance(passes, ended)

    def state(self) -> dict[str, Any]:
        """Everything that ``restore`` needs: numbers, strings, host tensors, requests and completions."""
        return {
            "drafts": [
                {
                    "request": replace(draft.request, so_far=draft.completion() if draft.count else None),
                    "cached": draft.cached,
                    "has_stopped": draft.has_stopped,
                    "has_left": draft.has_left,
                }
                for draft in self._drafts
            ],
            "device": None if self._device is None else self._device.state(),
            "is_recomputing": self._is_recomputing,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the batch that ``state`` was taken from: with the same weights it goes on to the same bits."""
        self.clear()
        self.join([saved["request"] for saved in state["drafts"]])
        for draft, saved in zip(self._drafts, state["drafts"], strict=True):
            for name in ("cached", "has_stopped", "has_left"):
                setattr(draft, name, saved[name])
        self._device = None if state["device"] is None else DeviceRows.restore(self._loaded, state["device"])
        self._is_recomputing = bool(state["is_recomputing"])

    @property
    def _num_read(self) -> int:
        return 0 if self._device is None else len(self._device)

    def _draw(self, steps: int) -> list[Sampled]:
        """``steps`` tokens a row. Rows that are read now draw their first apart from the others, then they join."""
        drafts, num_read = self._drafts, self._num_read
        seeds = np.array([draft.seed for draft in drafts], dtype=np.uint64)
        numbers = uniforms(seeds, np.array([draft.count for draft in drafts]), steps)
        asked = max(draft.request.alternatives for draft in drafts), any(draft.reports_kept for draft in drafts)
        unread = drafts[num_read:]
        if not unread:
            assert self._device is not None, "rows stand on the device or are read now"
            return self._device.decode(numbers, asked)
        fresh = DeviceRows(self._loaded, [draft.prefix for draft in unread], [draft.request for draft in unread])
        if self._device is None:
            self._device = fresh
            return fresh.decode(numbers, asked)
        first = self._device.decode(numbers[:num_read, :1], asked) + fresh.decode(numbers[num_read:, :1], asked)
        self._device.join(fresh)
        return [joined(first), *self._device.decode(numbers[:, 1:], asked)]

    def _take(self, block: Block, version: int) -> list[Draft]:
        """Give every draft its tokens: up to its limit, or an end-of-sequence id; those that ended."""
        steps = block.ids.shape[1]
        alive = np.array([not draft.is_done for draft in self._drafts])
        room = np.array([min(draft.num_left, steps) for draft in self._drafts])
        ends: NDArray[np.bool_] = np.isin(block.ids, self._eos) & (np.arange(steps) < room[:, None])
        has_end: NDArray[np.bool_] = np.asarray(ends.any(axis=1))
        count = np.where(alive, np.where(has_end, ends.argmax(axis=1) + 1, room), 0)
        wrong = np.argwhere((np.arange(steps) < count[:, None]) & ~np.isfinite(block.logp))
        if len(wrong):
            raise self._not_finite(int(wrong[0, 0]), int(wrong[0, 1]), version)
        for row in np.flatnonzero(alive).tolist():
            draft = self._drafts[row]
            draft.take(block, row, int(count[row]), version)
            draft.has_stopped = bool(has_end[row])
        return [self._drafts[row] for row in np.flatnonzero(alive).tolist() if self._drafts[row].is_done]

    def _not_finite(self, row: int, step: int, version: int) -> NonFiniteError:
        draft = self._drafts[row]
        return NonFiniteError(
            f"logits must be finite; request {draft.request.id!r} has NaN or infinity at position "
            f"{draft.count + step} of its completion, made by version {version}: "
            "look at the weights published last, or lower the learning rate",
            rollout_id=draft.request.id,
        )

    def _compact(self) -> None:
        """Let those that ended leave when they are enough."""
        num_alive = sum(not draft.is_done for draft in self._drafts)
        if num_alive <= _COMPACT_AT * len(self._drafts):
            self._leave()

    def _leave(self) -> None:
        """Let all that ended leave."""
        kept = [row for row, draft in enumerate(self._drafts) if not draft.is_done]
        if len(kept) == len(self._drafts):
            return
        rows = [row for row in kept if row < self._num_read]
        if not rows:
            self._device = None
        elif self._device is not None and len(rows) < len(self._device):
            self._device.keep(np.array(rows))
        self._drafts = [self._drafts[row] for row in kept]
        self._is_recomputing = self._is_recomputing and bool(kept)
