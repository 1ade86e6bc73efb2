"""The tensor noun of the library: sampled tokens laid end to end.

Shape letters, here and everywhere in ``core``: ``T`` tokens of all responses of a micro-batch, concatenated;
``S`` responses. There is no padding axis.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

LOG_PROBS: Final = (
    *("logp_behavior", "logp_proximal", "logp_anchor", "logp_old", "logp_average", "logp_reference"),
    "top_k_behavior",
)
"""Fields of a ``TokenBatch`` that are subtracted from each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """What is known about sampled tokens before an update; nothing here carries gradient.

    Log-probabilities are float32 (or float64), in nats. Raises ``ValueError`` if the fields do not share one shape
    ``[T]``, or a log-probability has 16 bits: near -20 bfloat16 knows -20.0 and -20.125 and nothing between, and the
    difference of two such numbers is no log-ratio.
    """

    logp_behavior: Float[Tensor, "T"]
    """Under the distribution the engine really sampled from (mu)."""
    logp_proximal: Float[Tensor, "T"]
    """Under the policy that the ratio is clipped against."""
    advantage: Float[Tensor, "T"]
    """Credit of the token; equal along a response for group-relative estimators."""
    trainable: Bool[Tensor, "T"]
    """True where the policy chose the token and is trained on it; False on prompt, padding, tool output."""
    sequence: Int[Tensor, "T"]
    """Which response of the micro-batch, in ``0 .. S-1``."""
    group: Int[Tensor, "T"]
    """Which prompt the response answers."""
    staleness: Int[Tensor, "T"]
    """Optimizer updates between the token's version and this update; >= 0."""
    logp_anchor: Float[Tensor, "T"] | None = None
    """Under the trainer's weights when the batch was taken."""
    logp_old: Float[Tensor, "T"] | None = None
    """Under the trainer's evaluation of the weights that the token was sampled with."""
    logp_average: Float[Tensor, "T"] | None = None
    """Under the running average of the trainer's weights."""
    logp_reference: Float[Tensor, "T"] | None = None
    """Under the frozen reference of the KL penalty."""
    is_cached_older: Bool[Tensor, "T"] | None = None
    """True where the token was sampled over entries of a key-value cache that older weights had computed."""
    entropy_behavior: Float[Tensor, "T"] | None = None
    """Entropy of the distribution sampled from."""
    turn: Int[Tensor, "T"] | None = None
    """Which assistant turn of its rollout, from 0."""
    top_k_behavior: Float[Tensor, "T K"] | None = None
    """Log-probabilities under the behavior policy of its K most probable ids; ``-inf`` where that id is the sampled
    one, so that the sampled token, the K others and the rest are a partition."""

    def __post_init__(self) -> None:
        shapes = {f.name: tuple(x.shape) for f in fields(self) if (x := getattr(self, f.name)) is not None}
        alternatives = shapes.pop("top_k_behavior", (len(self.trainable), 0))
        is_flat = len(set(shapes.values())) == 1 and all(len(shape) == 1 for shape in shapes.values())
        if not is_flat or len(alternatives) != 2 or alternatives[0] != len(self.trainable):
            listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise ValueError(
                f"fields of a TokenBatch must share one shape [T] (top_k_behavior: [T, K]); got {listed}, "
                f"top_k_behavior {alternatives}"
            )
        for name in LOG_PROBS:
            logp = getattr(self, name)
            if logp is not None and logp.dtype not in (torch.float32, torch.float64):
                raise ValueError(
                    f"log-probs must be float32 or float64, or their differences are rounding; {name} is "
                    f"{str(logp.dtype).removeprefix('torch.')}: take log_softmax of logits.float(), a cast afterwards "
                    "brings nothing back"
                )

    def __len__(self) -> int:
        return self.trainable.shape[0]

    def neutralized(self) -> TokenBatch:
        """The same tokens with everything about untrainable ones set to zero.

        Done once, before any arithmetic, so that no rule thinks of the mask: a NaN beside a zero weight is a NaN,
        in the value or, worse, only in the gradient.
        """
        given = {
            f.name: x
            for f in fields(self)
            if f.name not in ("trainable", "sequence", "group") and (x := getattr(self, f.name)) is not None
        }
        # once where two fields are one tensor, as the rollout's log-probs are under proximal rollout
        quiet = {key: only(self.trainable, x) for key, x in {id(x): x for x in given.values()}.items()}
        return replace(self, **{name: quiet[id(x)] for name, x in given.items()})

    def select(self, keep: Bool[Tensor, "T"]) -> TokenBatch:
        """The tokens where ``keep`` is true, in order; responses are numbered anew, from 0, without gaps."""
        kept = {f.name: x[keep] for f in fields(self) if (x := getattr(self, f.name)) is not None}
        numbered = kept["sequence"].unique(return_inverse=True)[1].to(kept["sequence"].dtype)
        return replace(self, **{**kept, "sequence": numbered})


def only(kept: Bool[Tensor, "T"], x: Tensor) -> Tensor:
    """``x [T]`` or ``[T, K]`` where a token is kept, 0 elsewhere."""
    return torch.where(kept if x.ndim == 1 else kept[:, None], x, torch.zeros((), dtype=x.dtype, device=x.device))


def per_sequence_sum(x: Float[Tensor, "T"], tokens: TokenBatch) -> Float[Tensor, "T"]:
    """Sum of ``x`` over the trainable tokens of each response, at every token of it; ``x`` is 0 elsewhere.

    Sequence ids index a table of T rows (there are never more responses than tokens), so no device sync is needed.
    """
    return _sums(x, tokens).index_select(0, tokens.sequence)  # its gradient adds up in a fixed order


def per_sequence_mean(x: Float[Tensor, "T"], tokens: TokenBatch) -> Float[Tensor, "T"]:
    """Mean of ``x`` over the trainable tokens of each response, at every token of it; 0 if there are none."""
    return (_sums(x, tokens) / _numbers(tokens)).index_select(0, tokens.sequence)


def per_sequence_max(x: Float[Tensor, "T"], tokens: TokenBatch) -> Float[Tensor, "T"]:
    """Largest ``x >= 0`` among the trainable tokens of each response, at every token of it; 0 if there are none."""
    table = x.new_zeros(len(tokens))
    most = table.scatter_reduce(0, tokens.sequence, torch.where(tokens.trainable, x, 0.0), "amax")
    return most.index_select(0, tokens.sequence)


def response_length(tokens: TokenBatch) -> Float[Tensor, "T"]:
    """Number of trainable tokens of each response, at every token of it, at least 1."""
    return _numbers(tokens).float().index_select(0, tokens.sequence)


def _sums(x: Float[Tensor, "T"], tokens: TokenBatch) -> Float[Tensor, "T"]:
    """Of the trainable tokens, by response."""
    return x.new_zeros(len(tokens)).index_add_(0, tokens.sequence, torch.where(tokens.trainable, x, 0.0))


def _numbers(tokens: TokenBatch) -> Int[Tensor, "T"]:
    """Of trainable tokens, by response, at least 1; whole numbers, which add up three times as fast."""
    num = torch.zeros(len(tokens), dtype=torch.int32, device=tokens.trainable.device)
    return num.scatter_add_(0, tokens.sequence, tokens.trainable.int()).clamp_(min=1)
