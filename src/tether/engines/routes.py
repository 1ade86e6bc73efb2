"""The experts of every token, handed from the routers to the completions in the making."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tether.engines.drawn import Draft
from tether.records import NO_EXPERT


def hand_out(chosen: Sequence[Sequence[Tensor]], read: Sequence[Draft], unread: Sequence[Draft]) -> None:
    """Hand the experts chosen in a block, ``chosen[router][pass] [N, k]``, to the drafts as they were before it.

    A pass reads the tokens drawn before it. Where rows join, the first pass is that of the ``read`` rows alone, and the
    next reads every distinct prefix of the ``unread`` once, padded on the left; all others are of all rows. What is
    known of a token stays: the route that it was sampled with, not that of a cache computed anew.
    """
    passes = [torch.stack(layers, dim=1) for layers in zip(*chosen, strict=True)]
    alone = [passes.pop(0)] if unread and read else []
    if unread:
        _hand_out_prefixes(passes.pop(0).cpu(), unread)
    if alone:
        _hand_out_steps(alone, read, 0)
    _hand_out_steps(passes, [*read, *unread], 1 if unread else 0)


def _hand_out_prefixes(experts: Tensor, drafts: Sequence[Draft]) -> None:
    prefixes = [draft.prefix for draft in drafts]
    places = {prefix: place for place, prefix in enumerate(dict.fromkeys(prefixes))}
    table = experts.view(len(places), -1, *experts.shape[1:])
    for draft, prefix in zip(drafts, prefixes, strict=True):
        if draft.experts is not None:
            held, now = draft.experts[: len(prefix)], table[places[prefix], -len(prefix) :]
            held.copy_(torch.where(held == NO_EXPERT, now, held))


def _hand_out_steps(passes: Sequence[Tensor], drafts: Sequence[Draft], first: int) -> None:
    """Passes ``first ..`` of the block, of all these rows; pass 0 reads the token drawn last before it."""
    if not passes:
        return
    block = torch.stack(list(passes), dim=1).cpu()
    for row, draft in enumerate(drafts):
        if draft.experts is not None:
            start = len(draft.request.prompt_ids) + draft.count - 1 + first
            into = draft.experts[start : start + len(passes)]
            into.copy_(block[row, : len(into)])
