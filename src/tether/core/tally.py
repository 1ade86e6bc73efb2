"""Sums by cell of a table: many tokens to a cell, each cell in a few places so that neighbors need not wait.

Tokens of one response, or of one staleness, come in a row; added to one number in memory, each would wait for the one
before, on a CPU as for the atomic additions of a GPU. So a cell is ``LANES`` numbers that tokens take in turn, added up
at the end.
"""

from __future__ import annotations

from typing import Final

import torch
from jaxtyping import Float64, Int32, Int64
from torch import Tensor

LANES: Final = 8
"""Numbers a cell: about how many additions fit into the time that one takes to reach memory and come back."""


def lanes(size: int, device: torch.device) -> Int32[Tensor, "T"]:
    """The lane of each of so many tokens."""
    every = torch.arange(LANES, dtype=torch.int32, device=device)
    return every.repeat(size // LANES + 1)[:size]


def places(cells: Int32[Tensor, "T"], own: Int32[Tensor, "T"]) -> Int64[Tensor, "T"]:
    """Where in an ``empty_tally`` each token of these cells goes, in its own of the ``lanes``.

    >>> places(torch.tensor([0, 0, 3], dtype=torch.int32), lanes(3, torch.device("cpu"))).tolist()
    [0, 1, 26]
    """
    return torch.add(own, cells, alpha=LANES).long()


def empty_tally(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A table of that many cells, for ``scatter_add_`` at ``places``: not bincount, which waits for the device."""
    return torch.zeros(size * LANES, dtype=dtype, device=device)


def totals(tally: Tensor) -> Float64[Tensor, "cells"]:
    """The sum of every cell.

    >>> tally = empty_tally(2, torch.int32, torch.device("cpu"))
    >>> cells = torch.tensor([1, 0, 1], dtype=torch.int32)
    >>> totals(tally.scatter_add_(0, places(cells, lanes(3, cells.device)), torch.ones_like(cells))).tolist()
    [1.0, 2.0]
    """
    return tally.view(-1, LANES).sum(1, dtype=torch.float64)
