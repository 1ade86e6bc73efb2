"""What truncated sampling keeps, against a row sorted in plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tether.core import truncation
from tether.core.truncation import Limits, kept_of
from tether.records import Truncation

ROWS = st.lists(
    st.sampled_from([-math.inf, -300.0, -2.0, -1.5, 0.0, 0.5, 0.5, 1.0, 3.0, 7.25]), min_size=1, max_size=40
)
CUTS = st.builds(
    Truncation,
    top_k=st.sampled_from([0, 0, 1, 2, 5, 60]),
    top_p=st.sampled_from([1.0, 1.0, 0.03, 0.37, 0.61, 0.93]),
    min_p=st.sampled_from([0.0, 0.0, 0.013, 0.21, 1.0]),
)


def plain(logp: list[float], cut: Truncation) -> list[int]:
    """The kept ids of one row."""
    order = sorted(range(len(logp)), key=lambda i: (-logp[i], i))
    kept, mass = [], 0.0
    for rank, i in enumerate(order):
        if rank and (
            (cut.top_k and rank >= cut.top_k)
            or (cut.top_p < 1 and mass >= cut.top_p)
            or math.exp(logp[i] - logp[order[0]]) < cut.min_p
            or logp[i] < -103.9
        ):
            break
        kept.append(i)
        mass += math.exp(logp[i])
    return sorted(kept)


@given(rows=st.lists(st.tuples(ROWS, CUTS), min_size=1, max_size=5), room=st.sampled_from([1, 3, 128]))
@example(rows=[([0.0, 0.0, 0.0], Truncation(top_k=2))], room=1)
@settings(max_examples=200, deadline=None)
def test_what_is_kept_of_a_row_is_the_plain_answer_whatever_stands_beside_it(
    rows: list[tuple[list[float], Truncation]], room: int
) -> None:
    """Ties and short sorts included: a CPU sorts a row as a whole only where it must."""
    rows = [(row if max(row) > -math.inf else [*row, 0.0], cut) for row, cut in rows]
    width = max(len(row) for row, _ in rows)
    logits = torch.tensor([row + [-math.inf] * (width - len(row)) for row, _ in rows])
    logp = logits.log_softmax(-1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truncation, "ROOM", room)
        kept = kept_of(logp, Limits.of([cut for _, cut in rows], logp.device))
    for number, (_, cut) in enumerate(rows):
        if cut.is_none:
            assert kept.mask[number].all()
            assert kept.log_mass[number] == 0
            continue
        wanted = plain(logp[number].tolist(), cut)
        assert kept.mask[number].nonzero()[:, 0].tolist() == wanted
        assert math.isclose(kept.log_mass[number].exp(), sum(logp[number].double().exp()[wanted]), rel_tol=1e-9)


def test_equally_probable_ids_are_kept_in_the_order_of_their_numbers() -> None:
    logp = torch.zeros(1, 6).log_softmax(-1)
    for k in range(1, 7):
        kept = kept_of(logp, Limits.of([Truncation(top_k=k)], logp.device))
        assert kept.mask[0].tolist() == [i < k for i in range(6)]


def test_one_id_is_always_kept_and_alone_weighs_what_it_weighed() -> None:
    logp = torch.tensor([[2.0, 1.0, 0.0]]).log_softmax(-1)
    for cut in (Truncation(top_p=1e-9), Truncation(min_p=1.0), Truncation(top_k=1)):
        kept = kept_of(logp, Limits.of([cut], logp.device))
        assert kept.mask[0].tolist() == [True, False, False]
        assert float(logp[0, 0].double() - kept.log_mass[0]) == 0.0
