"""Rows on the device: their last tokens, their key-value cache, and what each may see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tether.core.truncation import Limits
from tether.engines.attention import NAME as GROUPED
from tether.engines.cache import cache_state, cut_cache, host_copy, join_caches, refill_cache
from tether.engines.sampling import Sampled, sample
from tether.errors import ModelError
from tether.ports import GenerationRequest
from tether.records import Truncation


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


class DeviceRows:
    """Rows on the device: their last tokens, their cache, and what each may see.

    Row ``b`` sees the columns of the cache from ``starts[b]`` on: what lies left of that is padding. Its position is
    the number of columns it sees.
    """

    def __init__(
        self, loaded: Decodable, prefixes: Sequence[tuple[int, ...]], requests: Sequence[GenerationRequest]
    ) -> None:
        """Rows that go on from their prefixes; the first step reads those, each distinct one once."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        self._model = loaded.model
        self._pad_id = loaded.pad_id
        self._context = loaded.context
        self._device = loaded.model.device
        self._prefixes: tuple[tuple[int, ...], ...] = tuple(prefixes)  # none once they are read
        self._temperature: NDArray[np.float32] = np.array([r.temperature for r in requests], dtype=np.float32)
        self._truncation: tuple[Truncation, ...] = tuple(request.truncation for request in requests)
        self._starts: NDArray[np.int64] = np.zeros(len(prefixes), dtype=np.int64)
        self._width = 0  # columns of the cache
        self._tokens = torch.empty(0, dtype=torch.long, device=self._device)
        self._last = torch.tensor([-1], device=self._device)
        self._cache = DynamicCache(config=self._model.config)
        self._takes_square_masks = self._model.config._attn_implementation in ("sdpa", GROUPED) and all(
            type(layer) is DynamicLayer for layer in self._cache.layers
        )

    def __len__(self) -> int:
        return len(self._starts)

    def decode(self, uniform: NDArray[np.float64], asked: tuple[int, bool]) -> list[Sampled]:
        """Draw a token a row for every column of ``uniform [B, n]``; nothing is read back.

        ``asked``: how many alternatives to report with each, and whether to report what it was sampled among.
        """
        numbers, temperature = self._to_device(uniform), self._to_device(self._temperature)
        top_k, limits = asked[0], self._limits(reports=asked[1])
        may_be_greedy = bool((self._temperature == 0).any())
        starts: Tensor | None = None
        drawn: list[Sampled] = []
        for step in range(numbers.shape[1]):
            if self._prefixes:
                logits = self._read_prefixes()
            else:
                starts = self._to_device(self._starts) if starts is None else starts
                logits = self._read_last(starts)
            drawn.append(
                sample(logits, temperature, numbers[:, step], top_k, may_be_greedy=may_be_greedy, limits=limits)
            )
            self._tokens = drawn[-1].ids
        return drawn

    def join(self, other: DeviceRows) -> None:
        """Append other rows; both have read their prefixes."""
        width = max(self._width, other._width)
        join_caches(self._cache, other._cache)
        self._starts = np.concatenate([rows._starts + (width - rows._width) for rows in (self, other)])
        self._temperature = np.concatenate([self._temperature, other._temperature])
        self._truncation += other._truncation
        self._tokens = torch.cat([self._tokens, other._tokens])
        self._width = width

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Forget all other rows, and the columns that none of these sees."""
        kept = self._to_device(rows)
        self._starts, self._temperature = self._starts[rows], self._temperature[rows]
        self._truncation = tuple(self._truncation[row] for row in rows.tolist())
        unseen = int(self._starts.min())
        cut_cache(self._cache, kept, unseen)
        self._tokens = self._tokens[kept]
        self._starts -= unseen
        self._width -= unseen

    def state(self) -> dict[str, Any]:
        """Everything, copied to the host."""
        return {
            "tokens": host_copy(self._tokens),
            "starts": torch.from_numpy(self._starts.copy()),
            "temperature": torch.from_numpy(self._temperature.copy()),
            "truncation": self._truncation,
            "width": self._width,
            "dtype": str(self._model.dtype),
            "cache": cache_state(self._cache),
        }

    @classmethod
    def restore(cls, loaded: Decodable, state: Mapping[str, Any]) -> DeviceRows:
        """The rows that ``state`` came from."""
        rows = cls(loaded, (), ())
        if state["dtype"] != str(rows._model.dtype):
            raise ModelError(
                f"saved completions continue in the number format they began in; they have {state['dtype']}, the model "
                f"{rows._model.dtype}: resume with the engine.dtype of the run"
            )
        rows._tokens = state["tokens"].to(rows._device, copy=True)
        rows._starts, rows._temperature = state["starts"].numpy().copy(), state["temperature"].numpy().copy()
        rows._truncation = tuple(state["truncation"])
        rows._width = int(state["width"])
        refill_cache(rows._cache, state["cache"], rows._device)
        return rows

    def _limits(self, *, reports: bool) -> Limits | None:
        """What the rows are sampled among; ``None`` if that is the whole vocabulary for all of them."""
        if all(truncation.is_none for truncation in self._truncation):
            return None
        return Limits.of(self._truncation, self._device, reports=reports)

    def _read_prefixes(self) -> Tensor:
        """Logits ``[B, V]`` of the first token of every row; the distinct prefixes are laid out padded on the left."""
        places = {prefix: place for place, prefix in enumerate(dict.fromkeys(self._prefixes))}
        width = max(map(len, places))
        ids = np.full((len(places), width), self._pad_id, dtype=np.int64)
        starts = np.array([width - len(prefix) for prefix in places])
        for prefix, place in places.items():
            ids[place, starts[place] :] = prefix
        positions = np.maximum(np.arange(width) - starts[:, None], 0)
        row_of = np.array([places[prefix] for prefix in self._prefixes])
        self._prefixes, self._starts = (), starts[row_of]
        logits = self._forward(self._to_device(ids), self._to_device(positions), self._to_device(starts))
        if len(places) == len(row_of):
            return logits
        rows = self._to_device(row_of)
        self._cache.batch_select_indices(rows)
        return logits[rows]

    def _read_last(self, starts: Tensor) -> Tensor:
        """Logits ``[B, V]`` of the token after the one drawn last.

        A row that has ended runs on until it leaves; the clamp keeps it inside a table of learned positions.
        """
        positions = (self._width - starts)[:, None].clamp(max=self._context - 1)
        return self._forward(self._tokens[:, None], positions, starts)

    def _forward(self, ids: Tensor, positions: Tensor, starts: Tensor) -> Tensor:
        """Logits of the last column.

        It is asked for by a list of one: it is then a copy. A slice of a longer prompt cannot be laid flat, and where
        weights need no gradient torch then copies those of the head for every row: seconds, gigabytes.
        """
        self._width += ids.shape[1]
        out = self._model(
            input_ids=ids,
            attention_mask=self._attention_mask(ids.shape[1], starts),
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=self._last,
        )
        logits: Tensor = out.logits[:, -1]
        return logits

    def _attention_mask(self, num_queries: int, starts: Tensor) -> Tensor:
        """Which keys each query sees.

        Models with full attention take the finished ``[B, 1, Q, K]`` mask: theirs would be built anew each token and
        looks at the padding, which waits for the device. Others (sliding windows, other kernels) get ``[B, K]``.
        """
        keys = torch.arange(self._width, device=self._device) >= starts[:, None]
        if not self._takes_square_masks:
            return keys.long()
        if num_queries == 1:
            return keys[:, None, None, :]
        earlier = torch.ones(self._width, self._width, dtype=torch.bool, device=keys.device).tril()
        return earlier & keys[:, None, None, :]

    def _to_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)
