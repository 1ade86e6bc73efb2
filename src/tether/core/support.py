"""Log-probability of sampled tokens over the ids that each was sampled among, and what is lost without these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from numpy.typing import NDArray
from torch import Tensor

from tether.core.chosen import chosen_logp
from tether.core.logprobs import Entropy, Head, chunked, rows_at_once
from tether.core.truncation import Limits, prefix_of
from tether.records import Truncation


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptIds:
    """The ids that each of ``T`` sampled tokens was sampled among, laid end to end.

    >>> kept = KeptIds.of(np.array([3, 5, 2]), np.array([0, 2, 2, 3]))
    >>> some = kept.select(torch.tensor([True, False, True]))
    >>> len(kept), some.ids.tolist(), some.sizes.tolist(), kept.knows_all
    (3, [3, 5, 2], [2, 1], False)
    """

    ids: Int[Tensor, "N"]
    sizes: Int64[Tensor, "T"]
    """How many each has; 0: it is not known, and may be any."""
    starts: NDArray[np.int64]
    """``[T + 1]``, on the host, so that a part can be taken without a wait for the device."""
    is_entropy_kept: bool = False
    """Whether the entropy is that over the kept ids."""

    @classmethod
    def of(cls, ids: NDArray[Any], starts: NDArray[np.int64], *, is_entropy_kept: bool = False) -> KeptIds:
        """From arrays."""
        sizes = torch.from_numpy(np.diff(starts))
        return cls(ids=torch.from_numpy(ids), sizes=sizes, starts=starts, is_entropy_kept=is_entropy_kept)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def knows_all(self) -> bool:
        """Whether no token lacks its set."""
        return bool((self.starts[1:] > self.starts[:-1]).all())

    def to(self, device: torch.device | str) -> KeptIds:
        """On another device."""
        ids, sizes = self.ids.to(device), self.sizes.to(device)
        return KeptIds(ids=ids, sizes=sizes, starts=self.starts, is_entropy_kept=self.is_entropy_kept)

    def split(self, rows: int) -> list[KeptIds]:
        """Of ``rows`` tokens after the other."""
        firsts = range(0, max(len(self), 1), rows)
        return [self._part(first, min(first + rows, len(self))) for first in firsts]

    def select(self, wanted: Bool[Tensor, "T"]) -> KeptIds:
        """Of some tokens; this waits for the device."""
        mask = wanted.cpu().numpy()
        sizes = np.diff(self.starts)
        ids = self.ids[torch.from_numpy(np.repeat(mask, sizes)).to(self.ids.device)]
        starts = np.concatenate([np.zeros(1, np.int64), sizes[mask].cumsum()])
        return KeptIds(ids=ids, sizes=self.sizes[wanted], starts=starts, is_entropy_kept=self.is_entropy_kept)

    def _part(self, first: int, end: int) -> KeptIds:
        starts = self.starts[first : end + 1]
        ids, sizes = self.ids[int(starts[0]) : int(starts[-1])], self.sizes[first:end]
        return KeptIds(ids=ids, sizes=sizes, starts=starts - starts[0], is_entropy_kept=self.is_entropy_kept)


def supported_logp(
    hidden: Float[Tensor, "T H"],
    sampled: tuple[Int[Tensor, "T"], KeptIds],
    head: Head,
    *,
    temperature: float,
    vocabulary: int,
    entropy: Entropy = "detached",
) -> tuple[Float[Tensor, "T"], Float[Tensor, "T"] | None]:
    """``z_a - log sum_{i in K} exp z_i`` with ``z = head(h) / temperature``: the sampled id's, over its own set ``K``.

    The gradient in the logits is ``onehot(a) - p_K`` inside ``K`` and exactly 0 outside; where ``K`` is the sampled id
    alone, ``logp`` is 0 and has none. A token whose set is not known takes the whole vocabulary. Chunks and entropy as
    in ``sampled_logp``; the entropy is that of the whole vocabulary unless the sets say otherwise.

    >>> logits, kept = torch.tensor([[3.0, 2.0, 1.0, 0.0, -1.0]]), KeptIds.of(np.array([0, 1]), np.array([0, 2]))
    >>> logp, _ = supported_logp(logits, (torch.tensor([0]), kept), lambda x: x, temperature=1.0, vocabulary=5)
    >>> round(logp.item(), 6)
    -0.313262
    """
    ids, kept = sampled
    rows = rows_at_once(vocabulary)

    def chunk(hidden: Tensor, ids: Tensor, kept: KeptIds) -> tuple[Tensor, Tensor]:
        return _chunk(head(hidden), ids, kept, temperature, entropy)

    logp, h = chunked(chunk, torch.split(hidden, rows), torch.split(ids, rows), kept.split(rows))
    return logp, None if entropy == "none" else h


@torch.no_grad()
def lost_mass(
    hidden: Float[Tensor, "T H"], truncation: Truncation, head: Head, *, temperature: float, vocabulary: int
) -> Float[Tensor, "T"]:
    """The probability, at each token, of what a truncation of ``softmax(head(h) / temperature)`` cuts away.

    >>> logits = torch.tensor([[3.0, 2.0, 1.0, 0.0, -1.0]])
    >>> lost_mass(logits, Truncation(top_p=0.9), lambda x: x, temperature=1.0, vocabulary=5)
    tensor([0.0433])
    """
    limits = Limits.of([truncation], hidden.device)
    pieces = []
    for h in torch.split(hidden, rows_at_once(vocabulary)):
        logp = torch.log_softmax(head(h).float() / temperature, dim=-1)
        rows = torch.zeros(len(h), dtype=torch.int64, device=h.device)
        pieces.append(-torch.expm1(prefix_of(logp, limits.at(rows)).log_mass).clamp(max=0.0))
    return torch.cat(pieces).float()


def _chunk(
    logits: Float[Tensor, "n V"], ids: Int[Tensor, "n"], kept: KeptIds, temperature: float, entropy: Entropy
) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    logp, h = _OverKept.apply(logits, ids, kept, temperature)  # type: ignore[no-untyped-call]
    is_full = entropy != "none" and not kept.is_entropy_kept
    if is_full or not kept.knows_all:
        read = logits if entropy == "differentiable" or not kept.knows_all else logits.detach()
        whole, h_whole = chosen_logp(read, ids, temperature, entropy=entropy != "none")
        is_known = kept.sizes > 0
        logp = torch.where(is_known, logp, whole)
        h = h_whole if is_full else torch.where(is_known, h, h_whole)
    return logp, h if entropy == "differentiable" else h.detach()


class _OverKept(torch.autograd.Function):
    """Log-probability and entropy over each token's set; whatever is not known is not a number."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, kept: KeptIds, temperature: float) -> tuple[Tensor, Tensor]:
        row, flat = _places(kept, logits.shape[-1])
        z = logits.flatten().index_select(0, flat).float() / temperature
        largest = torch.segment_reduce(z, "max", lengths=kept.sizes, unsafe=True)
        below = z - largest.index_select(0, row)
        weight = below.double().exp()
        total, spread = (
            torch.segment_reduce(x, "sum", lengths=kept.sizes, unsafe=True) for x in (weight, weight * below)
        )
        chosen = logits.gather(-1, ids[:, None])[:, 0].float() / temperature
        logp, h = (chosen - largest - total.log()).float(), (total.log() - spread / total).float()
        ctx.save_for_backward(logits, ids, below, total, h)
        ctx.kept, ctx.temperature = kept, temperature
        ctx.set_materialize_grads(False)
        return logp, h

    @staticmethod
    def backward(ctx: Any, pull: Tensor | None, pull_h: Tensor | None) -> tuple[Tensor, None, None, None]:
        logits, ids, below, total, h = ctx.saved_tensors
        row, flat = _places(ctx.kept, logits.shape[-1])
        every = below - total.log().index_select(0, row)
        probability = every.exp()
        own = torch.zeros_like(every)
        if pull is not None:
            own += pull.index_select(0, row) * ((ctx.kept.ids == ids.index_select(0, row)).double() - probability)
        if pull_h is not None:
            own -= pull_h.index_select(0, row) * probability * (every + h.index_select(0, row))
        gradient = torch.zeros_like(logits)
        # every place once, so that the order in which they are written does not matter
        gradient.view(-1).index_copy_(0, flat, (own / ctx.temperature).to(gradient.dtype))
        return gradient, None, None, None


def _places(kept: KeptIds, vocabulary: int) -> tuple[Int64[Tensor, "N"], Int64[Tensor, "N"]]:
    """Of every kept id: its token, and its place in the logits laid flat."""
    tokens = torch.arange(len(kept), device=kept.sizes.device)
    row = torch.repeat_interleave(tokens, kept.sizes, output_size=len(kept.ids))
    return row, row * vocabulary + kept.ids
