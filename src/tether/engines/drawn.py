"""The tokens drawn so far, on the host, with the version that made each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tether.engines.sampling import Sampled
from tether.records import Completion

_ARRAYS = ("ids", "logp", "entropy", "versions", "top_k_ids", "top_k_logp")


class HostTokens:
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

    def state(self) -> dict[str, Tensor]:
        """Everything, copied."""
        return {name: torch.from_numpy(getattr(self, name).copy()) for name in _ARRAYS}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take what ``state`` gave for as many rows and tokens."""
        for name in _ARRAYS:
            getattr(self, name)[...] = state[name].numpy()


def _known(tensor: Tensor | None) -> Tensor:
    assert tensor is not None, "alternatives were asked for"
    return tensor
