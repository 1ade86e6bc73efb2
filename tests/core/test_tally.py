"""Sums by cell, whatever the order in which tokens come."""

from __future__ import annotations

import pytest
import torch

from tether.core.tally import LANES, empty_tally, lanes, places, totals


@pytest.mark.parametrize("size", [0, 1, LANES - 1, LANES, 1000])
@pytest.mark.parametrize("is_sorted", [True, False], ids=["in a row", "mixed"])
def test_a_tally_adds_up_what_each_cell_was_given(size, is_sorted):
    draw = torch.Generator().manual_seed(size)
    cells = torch.randint(0, 5, (size,), generator=draw, dtype=torch.int32)
    cells = cells.sort().values if is_sorted else cells
    values = torch.randn(size, generator=draw, dtype=torch.float64)
    device = torch.device("cpu")
    tally = empty_tally(6, torch.float64, device).scatter_add_(0, places(cells, lanes(size, device)), values)
    wanted = [values[cells == cell].sum().item() for cell in range(6)]
    assert totals(tally).tolist() == pytest.approx(wanted)


def test_neighbors_of_one_cell_go_to_different_places():
    place = places(torch.full((LANES,), 3, dtype=torch.int32), lanes(LANES, torch.device("cpu")))
    assert sorted(place.tolist()) == list(range(3 * LANES, 4 * LANES))
