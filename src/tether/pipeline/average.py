"""The running average of the weights being trained, and what it gives to sampled tokens: the proximal ``ewma``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tether.core.average import FIRST_WEIGHT, averaged, next_weight, surviving_fraction, survivors
from tether.core.loss import LossTerms
from tether.core.tokens import TokenBatch
from tether.models.policy import ModelInputs, Policy
from tether.pipeline.scoring import Scoring
from tether.proximal.ewma import EWMAProximal
from tether.records import Metric, Metrics


class WeightAverage:
    """A float32 copy of the trained parameters, moved after every update; buffers stay the model's own.

    Args:
        policy: whose weights are averaged, and whose forward pass is lent to the average.
        proximal: how fast it moves, and when it starts anew.
        masters: the parameters that the optimizer updates, by name; live.
        temperature: of the sampling.
    """

    def __init__(
        self, policy: Policy, proximal: EWMAProximal, masters: Mapping[str, Tensor], temperature: float
    ) -> None:
        self._proximal, self._masters = proximal, masters
        self._scoring = Scoring(policy, temperature)
        self._dtypes = {name: p.dtype for name, p in policy.model.named_parameters()}
        self._weight = FIRST_WEIGHT
        self._mean = {name: master.detach().float().clone() for name, master in masters.items()}

    @torch.no_grad()
    def logp(self, inputs: ModelInputs) -> Float[Tensor, "T"]:
        """Log-probability of every sampled token under the average."""
        weights = {f"model.{name}": mean.to(self._dtypes[name]) for name, mean in self._mean.items()}
        logp: Tensor = torch.func.functional_call(self._scoring, weights, (inputs,))
        return logp

    @torch.no_grad()
    def follow(self, terms: Sequence[LossTerms], batches: Sequence[TokenBatch]) -> Metrics:
        """Take in the weights after an update, or start anew from them where too few of its tokens survived."""
        counts = [survivors(term.active, t.advantage, t.trainable) for term, t in zip(terms, batches, strict=True)]
        surviving = surviving_fraction(torch.stack(counts).sum(0))
        is_reset = self._proximal.resets(surviving)
        self._weight = FIRST_WEIGHT if is_reset else next_weight(self._weight, self._proximal.beta)
        for name, master in self._masters.items():
            now = master.detach()
            self._mean[name] = now.float().clone() if is_reset else averaged(self._mean[name], now, self._weight)
        return {
            "proximal/surviving_fraction": Metric(surviving),
            "proximal/is_reset": Metric(float(is_reset), "sum"),
        }

    def state(self) -> dict[str, Any]:
        """Everything; the tensors are live."""
        return {"weight": self._weight, "mean": dict(self._mean)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a ``state``."""
        self._weight = float(state["weight"])
        self._mean = {name: state["mean"][name].to(mean, copy=True) for name, mean in self._mean.items()}
