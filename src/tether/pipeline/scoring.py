"""What the trainer's model gives to sampled tokens, with the weights of a publication in the place of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from tether.core.advantage import DrGRPO
from tether.models.lora import whole
from tether.models.policy import ModelInputs, Policy
from tether.models.sharing import PromptSharing
from tether.pipeline.packing import Step, pack
from tether.pipeline.routing import own_routes, with_routes
from tether.pipeline.support import with_support
from tether.records import Experts, Group, Rollout
from tether.replay.routing import Routing
from tether.replay.support import Support

Logps = NDArray[np.float32]
"""``[T]``, nats: the sampled tokens of several rollouts, one rollout after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Log-probabilities of the same tokens under several weights; picklable."""

    published: Logps
    """The publication's weights, computed in the published dtype: what an engine that holds them reports."""
    previous: Logps | None
    """The publication before it, likewise; ``None`` if there was none in this process."""
    current: Logps | None
    """The weights being trained, as the trainer computes; ``None`` if they have moved on since."""
    wider: Logps | None
    """The publication's weights computed in float32, where the published dtype is narrower and it was asked for."""
    narrower: Logps | None
    """The publication's weights computed in the trainer's dtype, where that is the narrower one and it was asked
    for."""
    apart: Logps | None
    """The publication's weights computed in the published dtype with every rollout in a row of its own, where there is
    no wider format to measure with and it was asked for: what other shapes of the same sums do."""
    own_routes: Mapping[str, Experts] | None = None
    """What the trainer's routers choose by themselves under the weights being trained, by rollout id; ``None`` where
    the engine's are not replayed, or those weights have moved on since."""


@dataclass(frozen=True, slots=True)
class Scorer:
    """Scores rollouts with the trainer's model, which is left as it was."""

    policy: Policy
    token_budget: int
    """Padded tokens of one forward pass."""
    temperature: float
    """Of the sampling."""
    routing: Routing | None = None
    """Whether the tokens go through the experts that the engine recorded, as they do in training."""
    support: Support | None = None
    """Whether their softmax runs over what the engine sampled them among, as it does in training."""

    def __call__(
        self,
        rollouts: Sequence[Rollout],
        weights: Mapping[str, Tensor] | None = None,
        dtype: torch.dtype | None = None,
    ) -> Logps:
        """Log-probability of every sampled token.

        ``weights`` stand in the place of the model's for this call, in their own dtype or, converted, in another. They
        are used where they lie: only a conversion, or a move to the model's device, copies them, and no longer than
        for this call.
        """
        return self._score(self.packed(rollouts), weights, dtype)

    def own_routes(self, rollouts: Sequence[Rollout]) -> dict[str, Experts]:
        """What the model's routers choose by themselves, by rollout id and as ``Completion.experts`` has it."""
        return own_routes(self.packed(rollouts), self.policy)

    def packed(self, rollouts: Sequence[Rollout]) -> Step:
        """The rollouts as a step, laid out and routed as they are in training; none is trained on."""
        return self._laid(rollouts, self.token_budget, self.policy.sharing)

    def _apart(self, rollouts: Sequence[Rollout]) -> Step:
        """The rollouts as a step with one of them a forward pass."""
        return self._laid(rollouts, 1, None)

    def _laid(self, rollouts: Sequence[Rollout], token_budget: int, sharing: PromptSharing | None) -> Step:
        step = pack(
            [Group(id="probe", index=0, rollouts=tuple(rollouts))],
            DrGRPO(single="zero"),  # credit plays no part here
            token_budget=token_budget,
            pad_id=self.policy.loaded.pad_id,
            device=str(self.policy.device),
            sharing=sharing,
        )
        return with_support(with_routes(step, self.routing, self.policy), self.support, self.policy)

    def _score(
        self, step: Step, weights: Mapping[str, Tensor] | None = None, dtype: torch.dtype | None = None
    ) -> Logps:
        named = {} if weights is None else placed(self.policy.model, weights, dtype)
        model = Scoring(self.policy, self.temperature)
        found: dict[str, Tensor] = {}
        with torch.no_grad():
            for micro_batch in step.micro_batches:
                logp = torch.func.functional_call(model, named, (micro_batch.inputs,))
                pieces = logp.split_with_sizes([len(row.rollout.completion) for row in micro_batch.rows])
                found |= {row.rollout.id: piece for row, piece in zip(micro_batch.rows, pieces, strict=True)}
        (group,) = step.groups
        scores: Logps = torch.cat([found[rollout.id] for rollout in group.rollouts]).float().cpu().numpy()
        return scores

    def scores(
        self,
        rollouts: Sequence[Rollout],
        weights: tuple[Mapping[str, Tensor], Mapping[str, Tensor] | None],
        *,
        is_current: bool,
        formats: bool = True,
    ) -> Scores:
        """Under a publication's weights and those of the one before.

        ``is_current``: whether the weights being trained are those that were published. ``formats``: whether the
        publication is also computed in the wider and in the narrower format, where there is one.
        """
        published, previous = weights
        theirs, ours = _dtype_of(published), _dtype_of(dict(self.policy.model.named_parameters()))
        is_wider = formats and theirs.itemsize < torch.float32.itemsize
        is_narrower = formats and ours.itemsize < theirs.itemsize
        step = self.packed(rollouts)
        return Scores(
            published=self._score(step, published),
            previous=None if previous is None else self._score(step, previous),
            current=self._score(step) if is_current else None,
            wider=self._score(step, published, torch.float32) if is_wider else None,
            narrower=self._score(step, published, ours) if is_narrower else None,
            apart=self._score(self._apart(rollouts), published) if formats and not is_wider else None,
            own_routes=own_routes(step, self.policy) if is_current and self.routing is not None else None,
        )


class Scoring(nn.Module):
    """The policy as a module, so that torch can put other tensors into the place of its parameters."""

    def __init__(self, policy: Policy, temperature: float) -> None:
        super().__init__()
        self.model = policy.model
        self._policy, self._temperature = policy, temperature

    def forward(self, inputs: ModelInputs) -> Float[Tensor, "T"]:
        """Log-probability of every sampled token."""
        return self._policy(inputs, temperature=self._temperature, entropy="none").logp


def placed(model: nn.Module, weights: Mapping[str, Tensor], dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Weights for every parameter and buffer that they have, on the model's device, by the names of ``Scoring``.

    Of tied weights only one name is given; torch puts its tensor into all places. A parameter without a weight would
    be scored as it is, so there must be none; but the base that an adapter was trained on is the model's own.
    """
    weights = whole(model, weights)
    parameters = dict(model.named_parameters())
    assert parameters.keys() <= weights.keys(), "a publication holds every parameter"
    names = [*parameters, *(name for name, _ in model.named_buffers() if name in weights)]
    device = next(iter(parameters.values())).device
    held = {name: weights[name] for name in names}
    return {
        f"model.{name}": tensor.to(device, dtype if tensor.is_floating_point() else None)
        for name, tensor in held.items()
    }


def _dtype_of(weights: Mapping[str, Tensor]) -> torch.dtype:
    return next(tensor.dtype for tensor in weights.values() if tensor.is_floating_point())
