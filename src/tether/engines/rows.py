"""Rows on the device: their last tokens, their key-value cache, and what each may see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tether.engines.attention import NAME as GROUPED
from tether.engines.cache import cache_state, host_copy, refill_cache
from tether.engines.sampling import Sampled, sample
from tether.errors import ModelError
from tether.ports import GenerationRequest

_TENSORS = ("seen", "tokens", "positions", "temperature")


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
    """Rows on the device: their last tokens, their cache, and what each may see."""

    def __init__(self, loaded: Decodable, requests: Sequence[GenerationRequest]) -> None:
        """Lay the prompts out, each one once, padded on the left; a position counts real tokens only."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        self._model = loaded.model
        self._context = loaded.context
        device = loaded.model.device
        places = {prompt: place for place, prompt in enumerate(dict.fromkeys(r.prompt_ids for r in requests))}
        self._width = width = max(map(len, places))
        ids = np.full((len(places), width), loaded.pad_id, dtype=np.int64)
        seen = np.ones((len(places), width + max(r.max_tokens for r in requests)), dtype=bool)
        for prompt, place in places.items():
            padding = width - len(prompt)
            ids[place, padding:] = prompt
            seen[place, :padding] = False
        self._seen = torch.from_numpy(seen).to(device)
        self._tokens = torch.from_numpy(ids).to(device)
        self._positions = (self._seen[:, :width].long().cumsum(1) - 1).clamp(min=0)
        self._prompt_of = torch.tensor([places[r.prompt_ids] for r in requests], device=device)
        self._has_read = False  # the prompts; before that a row stands for a prompt, afterwards for a request
        self._temperature = torch.tensor([r.temperature for r in requests], dtype=torch.float32, device=device)
        self._may_be_greedy = any(r.temperature == 0 for r in requests)
        self._last = torch.tensor([-1], device=device)
        self._cache = DynamicCache(config=self._model.config)
        self._takes_square_masks = self._model.config._attn_implementation in ("sdpa", GROUPED) and all(
            type(layer) is DynamicLayer for layer in self._cache.layers
        )

    def decode(self, uniform: NDArray[np.float64], top_k: int) -> list[Sampled]:
        """Draw a token a row for every column of ``uniform [B, n]``; nothing is read back."""
        numbers = torch.from_numpy(uniform).to(self._temperature.device)
        drawn: list[Sampled] = []
        for step in range(numbers.shape[1]):
            logits = self._forward() if self._has_read else self._read_prompts()
            drawn.append(sample(logits, self._temperature, numbers[:, step], top_k, may_be_greedy=self._may_be_greedy))
            self._tokens = drawn[-1].ids[:, None]
        return drawn

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Forget all other rows."""
        kept = torch.from_numpy(rows).to(self._seen.device)
        self._cache.batch_select_indices(kept)
        self._seen, self._tokens, self._positions, self._temperature = (
            t[kept] for t in (self._seen, self._tokens, self._positions, self._temperature)
        )

    def state(self) -> dict[str, Any]:
        """Everything, copied to the host."""
        tensors = {name: host_copy(getattr(self, f"_{name}")) for name in _TENSORS}
        numbers = {"width": self._width, "has_read": self._has_read, "dtype": str(self._model.dtype)}
        return {**tensors, **numbers, "cache": cache_state(self._cache)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the rows that ``state`` came from."""
        if state["dtype"] != str(self._model.dtype):
            raise ModelError(
                f"a saved batch continues in the number format it began in; it has {state['dtype']}, the model "
                f"{self._model.dtype}: resume with the engine.dtype of the run"
            )
        device = self._seen.device
        for name in _TENSORS:
            setattr(self, f"_{name}", state[name].to(device, copy=True))
        self._width, self._has_read = int(state["width"]), bool(state["has_read"])
        refill_cache(self._cache, state["cache"], device)

    def _read_prompts(self) -> Tensor:
        """Logits ``[B, V]`` of the first token of every request; a prompt that several share is read once."""
        logits, self._has_read = self._forward(), True
        if len(logits) == len(self._prompt_of):
            return logits
        self._cache.batch_select_indices(self._prompt_of)
        self._seen, self._positions = self._seen[self._prompt_of], self._positions[self._prompt_of]
        return logits[self._prompt_of]

    def _forward(self) -> Tensor:
        """Logits ``[B, V]`` of the next token of every row.

        The last position is asked for by a list of one: it is then a copy. A slice of a longer prompt cannot be laid
        flat, and where weights need no gradient torch then copies those of the head for every row: seconds, gigabytes.
        """
        out = self._model(
            input_ids=self._tokens,
            attention_mask=self._attention_mask(),
            position_ids=self._positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=self._last,
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
