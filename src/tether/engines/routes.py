"""The experts of every token, handed from the routers to the completions in the making."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tether.engines.drawn import Draft
from tether.records import NO_EXPERT, Experts


def hand_out(chosen: Sequence[Sequence[Tensor]], read: Sequence[Draft], unread: Sequence[Draft]) -> None:
    """Hand the experts chosen in a block, ``chosen[router][pass] [N, k]``, to the drafts as they were before it.

    A pass reads the tokens drawn before it. Where rows join, the first pass is that of the ``read`` rows alone, and the
    next reads every distinct prefix of the ``unread`` once, padded on the left; all others are of all rows. What is
    known of a token stays: the route that it was sampled with, not that of a cache computed anew.
    """
    passes = list(zip(*chosen, strict=True))
    if unread and read:
        _hand_out_steps([passes.pop(0)], read, 0)
    if unread:
        _hand_out_prefixes(_on_host([passes.pop(0)])[:, 0], unread)
    _hand_out_steps(passes, [*read, *unread], 1 if unread else 0)


def _on_host(passes: Sequence[Sequence[Tensor]]) -> Experts:
    """``passes[pass][router] [N, k]`` as ``[N, passes, layers, k]``: one copy from the device for a block."""
    num_rows, k = passes[0][0].shape
    flat = torch.stack([layer for one in passes for layer in one], dim=1)
    experts: Experts = flat.to(torch.int16).cpu().numpy().reshape(num_rows, len(passes), -1, k)
    return experts


def _hand_out_prefixes(experts: Experts, drafts: Sequence[Draft]) -> None:
    prefixes = [draft.prefix for draft in drafts]
    places = {prefix: place for place, prefix in enumerate(dict.fromkeys(prefixes))}
    table = experts.reshape(len(places), -1, *experts.shape[1:])
    for draft, prefix in zip(drafts, prefixes, strict=True):
        if draft.experts is not None:
            held, now = draft.experts[: len(prefix)], table[places[prefix], -len(prefix) :]
            np.copyto(held, now, casting="unsafe", where=held == NO_EXPERT)


def _hand_out_steps(passes: Sequence[Sequence[Tensor]], drafts: Sequence[Draft], first: int) -> None:
    """Passes ``first ..`` of the block, of all these rows; pass 0 reads the token drawn last before it."""
    if not passes:
        return
    block = _on_host(passes)
    for row, draft in enumerate(drafts):
        if draft.experts is not None:
            start = len(draft.request.prompt_ids) + draft.count - 1 + first
            into = draft.experts[start : start + len(passes)]
            into[...] = block[row, : len(into)]
