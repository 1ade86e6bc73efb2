"""Rows decoded together: one key-value cache, left padding, and a look at the tokens only now and then.

``RowBatch`` decodes in blocks of a few tokens. Inside a block nothing is read back from the device; at its end the new
tokens are copied to the host, finished rows are found, and the cache is cut down to the rows still alive when enough
have finished. Time, weights and versions are the engine's business, not this module's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tether.engines.attention import NAME as GROUPED
from tether.engines.sampling import Sampled, sample, uniforms
from tether.errors import NonFiniteError
from tether.ports import GenerationRequest
from tether.records import Completion

_COMPACT_AT = 0.8
"""Share of rows alive at which the cache is cut down; a cut copies the cache once, as a decoded token does."""


@runtime_checkable
class Decodable(Protocol):
    """What decoding needs of a loaded model."""

    @property
    def model(self) -> Any:
        """A causal language model of transformers."""
        ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Any of these ends a completion."""
        ...

    @property
    def pad_id(self) -> int:
        """Fills the left of shorter prompts; may equal an end-of-sequence id."""
        ...

    @property
    def context(self) -> int:
        """Most positions of prompt and completion together."""
        ...


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
        self._device = _DeviceRows(loaded, requests)
        self._host = _HostTokens(len(requests), int(self._limits.max()), max(r.top_k for r in requests))

    @property
    def is_finished(self) -> bool:
        """Whether every row has ended."""
        return bool(self._done.all())

    @torch.inference_mode()
    def advance(self, version: int, most: int) -> int:
        """Decode up to ``most`` tokens a row with the weights as they are; return how many forward passes that took."""
        first, steps = self._step, min(most, int(self._limits[~self._done].max()) - self._step)
        drawn = self._device.decode(uniforms(self._seeds[self._rows], first, steps), self._host.top_k)
        self._step += steps
        self._host.take(self._rows, first, version, drawn)
        self._find_finished(first)
        self._check_finite(first)
        self._compact()
        return steps

    def completions(self) -> list[Completion]:
        """What was sampled, in the order of the requests."""
        return [
            self._host.completion(row, int(self._lengths[row]), bool(self._stopped[row]), request.top_k)
            for row, request in enumerate(self._requests)
        ]

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


class _DeviceRows:
    """Rows on the device: their last tokens, their cache, and what each may see."""

    def __init__(self, loaded: Decodable, requests: Sequence[GenerationRequest]) -> None:
        """Lay the prompts out, padded on the left; a position counts real tokens only."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        self._model = loaded.model
        self._context = loaded.context
        device = loaded.model.device
        self._width = width = max(len(r.prompt_ids) for r in requests)
        ids = np.full((len(requests), width), loaded.pad_id, dtype=np.int64)
        seen = np.ones((len(requests), width + max(r.max_tokens for r in requests)), dtype=bool)
        for row, request in enumerate(requests):
            padding = width - len(request.prompt_ids)
            ids[row, padding:] = request.prompt_ids
            seen[row, :padding] = False
        self._seen = torch.from_numpy(seen).to(device)
        self._tokens = torch.from_numpy(ids).to(device)
        self._positions = (self._seen[:, :width].long().cumsum(1) - 1).clamp(min=0)
        self._temperature = torch.tensor([r.temperature for r in requests], dtype=torch.float32, device=device)
        self._cache = DynamicCache(config=self._model.config)
        self._takes_square_masks = self._model.config._attn_implementation in ("sdpa", GROUPED) and all(
            type(layer) is DynamicLayer for layer in self._cache.layers
        )

    def decode(self, uniform: NDArray[np.float64], top_k: int) -> list[Sampled]:
        """Draw a token a row for every column of ``uniform [B, n]``; nothing is read back."""
        numbers = torch.from_numpy(uniform).to(self._temperature.device)
        drawn: list[Sampled] = []
        for step in range(numbers.shape[1]):
            drawn.append(sample(self._forward(), self._temperature, numbers[:, step], top_k))
            self._tokens = drawn[-1].ids[:, None]
        return drawn

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Forget all other rows."""
        kept = torch.from_numpy(rows).to(self._seen.device)
        self._cache.batch_select_indices(kept)
        self._seen, self._tokens, self._positions, self._temperature = (
            t[kept] for t in (self._seen, self._tokens, self._positions, self._temperature)
        )

    def _forward(self) -> Tensor:
        """Logits ``[B, V]`` of the next token of every row."""
        out = self._model(
            input_ids=self._tokens,
            attention_mask=self._attention_mask(),
            position_ids=self._positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._width += 1
        # A row that has ended runs on until the block ends; the clamp keeps it inside a table of learned positions.
        self._positions = (self._positions[:, -1:] + 1).clamp(max=self._context - 1)
        logits: Tensor = out.logits[:, -1]
        return logits

    def _attention_mask(self) -> Tensor:
        """Which keys each query sees.

        Models with full attention take the finished ``[B, 1, Q, K]`` mask: theirs would be built anew each token and
        looks at the padding, which waits for the device. Others (sliding windows, other kernels) get ``[B, K]``.
        """
        keys = self._seen[:, : self._width]
        if not self._takes_square_masks:
            return keys.long()
        if self._tokens.shape[1] == 1:
            return keys[:, None, None, :]
        earlier = torch.ones(self._width, self._width, dtype=torch.bool, device=keys.device).tril()
        return earlier & keys[:, None, None, :]


class _HostTokens:
    """The tokens of a batch on the host, ``[N, L]`` with a row for every request."""

    def __init__(self, num_rows: int, num_tokens: int, top_k: int) -> None:
        self.top_k = top_k
        self.ids: NDArray[np.int32] = np.zeros((num_rows, num_tokens), dtype=np.int32)
        self.logp: NDArray[np.float32] = np.zeros((num_rows, num_tokens), dtype=np.float32)
        self.entropy: NDArray[np.float32] = np.zeros((num_rows, num_tokens), dtype=np.float32)
        self.versions: NDArray[np.int32] = np.zeros(num_tokens, dtype=np.int32)
        self.top_k_ids: NDArray[np.int32] = np.zeros((num_rows, num_tokens, top_k), dtype=np.int32)
        self.top_k_logp: NDArray[np.float32] = np.zeros((num_rows, num_tokens, top_k), dtype=np.float32)

    def take(self, rows: NDArray[np.int64], first: int, version: int, drawn: Sequence[Sampled]) -> None:
        """Copy one block of tokens of the given rows from the device."""
        window = slice(first, first + len(drawn))
        self.versions[window] = version
        self.ids[rows, window] = torch.stack([d.ids for d in drawn], dim=1).cpu().numpy()
        self.logp[rows, window] = torch.stack([d.logp for d in drawn], dim=1).cpu().numpy()
        self.entropy[rows, window] = torch.stack([d.entropy for d in drawn], dim=1).cpu().numpy()
        if self.top_k:
            self.top_k_ids[rows, window] = torch.stack([_known(d.top_k_ids) for d in drawn], dim=1).cpu().numpy()
            self.top_k_logp[rows, window] = torch.stack([_known(d.top_k_logp) for d in drawn], dim=1).cpu().numpy()

    def completion(self, row: int, length: int, stopped: bool, top_k: int) -> Completion:
        """One row, cut to its length and to the alternatives its request asked for."""
        return Completion(
            token_ids=self.ids[row, :length].copy(),
            logp=self.logp[row, :length].copy(),
            entropy=self.entropy[row, :length].copy(),
            version=self.versions[:length].copy(),
            finish="stop" if stopped else "length",
            top_k_ids=self.top_k_ids[row, :length, :top_k].copy() if top_k else None,
            top_k_logp=self.top_k_logp[row, :length, :top_k].copy() if top_k else None,
        )


def _known(tensor: Tensor | None) -> Tensor:
    assert tensor is not None, "alternatives were asked for"
    return tensor
