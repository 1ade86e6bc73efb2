"""Rows decoded together: one key-value cache, left padding, and a look at the tokens only now and then.

``RowBatch`` decodes in blocks of a few tokens. Inside a block nothing is read back from the device; at its end the new
tokens are copied to the host, finished rows are found, and the cache is cut down to the rows still alive when enough
have finished. Between two blocks its whole state can be saved. Time, weights and versions are the engine's business,
not this module's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tether.engines.drawn import HostTokens
from tether.engines.routes import HostRoutes
from tether.engines.rows import Decodable, DeviceRows
from tether.engines.sampling import uniforms
from tether.errors import DataError, NonFiniteError
from tether.ports import GenerationRequest
from tether.records import Completion

_COMPACT_AT = 0.8
"""Share of rows alive at which the cache is cut down; a cut copies the cache once, as a decoded token does."""

_ARRAYS = ("lengths", "stopped", "done", "rows")


class RowBatch:
    """Completions of a few requests in the making; all rows are at the same position of their completion."""

    def __init__(self, loaded: Decodable, requests: Sequence[GenerationRequest]) -> None:
        self._requests = tuple(requests)
        self._eos = np.array(loaded.eos_ids)
        self._seeds = np.array([r.seed & 0xFFFF_FFFF_FFFF_FFFF for r in requests], dtype=np.uint64)
        self._limits = np.array([r.max_tokens for r in requests])
        self._lengths = np.zeros(len(requests), dtype=np.int64)
        self._stopped = np.zeros(len(requests), dtype=bool)
        self._done = np.zeros(len(requests), dtype=bool)
        self._rows = np.arange(len(requests))  # which request stands in which row of the device
        self._step = 0
        self._device = DeviceRows(loaded, requests)
        self._host = HostTokens(len(requests), int(self._limits.max()), max(r.top_k for r in requests))
        self._routes = HostRoutes(loaded.model, requests) if any(r.routing for r in requests) else None

    @property
    def is_finished(self) -> bool:
        """Whether every row has ended."""
        return bool(self._done.all())

    @torch.inference_mode()
    def advance(self, version: int, most: int) -> int:
        """Decode up to ``most`` tokens a row with the weights as they are; return how many forward passes that took."""
        first, steps = self._step, min(most, int(self._limits[~self._done].max()) - self._step)
        numbers = uniforms(self._seeds[self._rows], first, steps)
        if self._routes is None:
            drawn = self._device.decode(numbers, self._host.top_k)
        else:
            with self._routes.recording(self._rows, first):
                drawn = self._device.decode(numbers, self._host.top_k)
        self._step += steps
        self._host.take(self._rows, first, version, drawn)
        self._find_finished(first)
        self._check_finite(first)
        self._compact()
        return steps

    def completions(self) -> list[Completion]:
        """What was sampled, in the order of the requests."""
        done = []
        for row, request in enumerate(self._requests):
            length = int(self._lengths[row])
            completion = self._host.completion(row, length, bool(self._stopped[row]), request.top_k)
            if request.routing and self._routes is not None:
                completion = replace(completion, experts=self._routes.of(row, length))
            done.append(completion)
        return done

    def state(self) -> dict[str, Any]:
        """Everything that ``restore`` needs, as host tensors, numbers and strings: what ``torch.save`` can hold and
        ``torch.load(weights_only=True)`` gives back."""
        arrays = {name: torch.from_numpy(getattr(self, f"_{name}").copy()) for name in _ARRAYS}
        routes = {} if self._routes is None else {"routes": self._routes.state()}
        return {
            "requests": [r.id for r in self._requests],
            "step": self._step,
            **arrays,
            **routes,
            "host": self._host.state(),
            "device": self._device.state(),
        }

    @classmethod
    def restore(cls, loaded: Decodable, requests: Sequence[GenerationRequest], state: Mapping[str, Any]) -> RowBatch:
        """The batch that ``state`` was taken from: with the same weights it goes on to the same bits.

        ``requests`` are those it was made with, in their order.
        """
        batch = cls(loaded, requests)
        if [r.id for r in requests] != state["requests"]:
            raise DataError(
                f"a saved batch continues with the requests it was made of; it has {len(state['requests'])}, from "
                f"{state['requests'][0]!r} on, and was given {len(requests)}, from {requests[0].id!r} on: "
                "give those of the checkpoint"
            )
        batch._step = int(state["step"])
        for name in _ARRAYS:
            setattr(batch, f"_{name}", state[name].numpy().copy())
        batch._host.restore(state["host"])
        batch._device.restore(state["device"])
        if batch._routes is not None:
            batch._routes.restore(state["routes"])
        return batch

    def _find_finished(self, first: int) -> None:
        """Rows that sampled an end-of-sequence id, or reached their limit, in the tokens since ``first``."""
        rows = self._rows[~self._done[self._rows]]
        ended = np.isin(self._host.ids[rows, first : self._step], self._eos)
        ended &= np.arange(first, self._step)[None, :] < self._limits[rows, None]
        stopped = ended.any(axis=1)
        length = np.where(stopped, first + ended.argmax(axis=1) + 1, np.minimum(self._step, self._limits[rows]))
        self._lengths[rows] = length
        self._stopped[rows] = stopped
        self._done[rows] = stopped | (length >= self._limits[rows])

    def _check_finite(self, first: int) -> None:
        """Refuse tokens drawn from logits that are not numbers, naming the first; what follows an end is no token."""
        real = np.arange(first, self._step)[None, :] < self._lengths[self._rows, None]
        wrong = real & ~np.isfinite(self._host.logp[self._rows, first : self._step])
        if not wrong.any():
            return
        row, step = np.argwhere(wrong)[0]
        asked = self._requests[self._rows[row]]
        raise NonFiniteError(
            f"logits must be finite; request {asked.id!r} has NaN or infinity at position "
            f"{first + step} of its completion, made by version {self._host.versions[first + step]}: "
            "look at the weights published last, or lower the learning rate",
            rollout_id=asked.id,
        )

    def _compact(self) -> None:
        """Drop finished rows from the device when enough have finished."""
        alive = ~self._done[self._rows]
        if alive.any() and alive.mean() <= _COMPACT_AT:
            self._device.keep(np.flatnonzero(alive))
            self._rows = self._rows[alive]
