"""Optimizer updates from a batch, each: measure, loss and backward, check, update. The only owner of staleness."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tether.core.algorithm import Algorithm
from tether.core.loss import LossTerms, policy_loss
from tether.core.measures import observed
from tether.core.memory import EdgeStatistics
from tether.core.rule import PolicyTokens
from tether.core.seen import Spans, spans
from tether.core.statistics import Part
from tether.core.tokens import TokenBatch
from tether.errors import ConfigError, NonFiniteError, ResumeError, StalenessError
from tether.journal.merging import merge
from tether.models.policy import Policy
from tether.models.sharing import PromptSharing, SharePrompt
from tether.pipeline.average import WeightAverage
from tether.pipeline.measuring import Measuring
from tether.pipeline.nonfinite import explain
from tether.pipeline.packing import MicroBatch, Step
from tether.pipeline.routing import FirstRoutes, repeats_itself
from tether.pipeline.update_metrics import by_rollout, policy_metrics, readings, reuse_metrics
from tether.proximal.ewma import EWMAProximal
from tether.records import Metric, Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerOptions:
    """The ``[trainer]`` table."""

    lr: float = 3e-4
    """Learning rate after warm-up."""
    warmup: int = 16
    """Updates over which the rate rises linearly from 0."""
    schedule: Literal["constant", "cosine"] = "constant"
    """After warm-up: stay, or fall along a cosine that would reach 0 one update after the last."""
    betas: tuple[float, float] = (0.9, 0.98)
    """AdamW's decay rates."""
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    """Largest norm of the gradient over all parameters."""
    token_budget: int = 16384
    """Padded tokens of a micro-batch; a response is never split and one that exceeds it goes alone."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights that compute; ratios are float32 whatever it is. With bfloat16 the optimizer keeps float32
    copies, to which small updates add up, and the weights are rounded from them after each update."""
    gradient_checkpointing: bool = False
    """Recompute layers in backward: less memory, about a third more time."""
    allow_support_mismatch: bool = False
    """Whether the engine may sample among some ids only while the trainer computes over all; each ratio is then off by
    the probability that was cut away, which is logged."""
    share_prompt: SharePrompt = "auto"
    """Whether completions of a group go through the model behind one copy of their prompt; ``auto``: where the model's
    layers all attend to everything earlier. Neither loss nor gradient changes."""

    def __post_init__(self) -> None:
        positive = {"lr": self.lr, "grad_clip": self.grad_clip, "token_budget": self.token_budget}
        for name, value in positive.items():
            if not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"trainer.{name} must be a finite number > 0; got {value}")
        for name, value in {"warmup": self.warmup, "weight_decay": self.weight_decay}.items():
            if not value >= 0:
                raise ConfigError(f"trainer.{name} must be >= 0; got {value}")
        largest = {"lr": 1e3, "weight_decay": 1e3, "grad_clip": 1e9, "warmup": 1e9, "token_budget": 1e9}
        for name, most in largest.items():
            if getattr(self, name) > most:
                raise ConfigError(f"trainer.{name} must be at most {most:g}; got {getattr(self, name)}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"trainer.betas must lie in [0, 1); got {list(self.betas)}")

    def lr_at(self, update: int, total: int) -> float:
        """Learning rate of update ``0 .. total - 1``.

        >>> [TrainerOptions(lr=1.0, warmup=4).lr_at(u, 100) for u in (0, 3, 50)]
        [0.25, 1.0, 1.0]
        """
        rising = min(1.0, (update + 1) / self.warmup) if self.warmup else 1.0
        if self.schedule == "constant":
            return self.lr * rising
        done = min(1.0, max(0, update - self.warmup) / max(1, total - self.warmup))
        return self.lr * rising * 0.5 * (1.0 + math.cos(math.pi * done))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What a step did."""

    updated: bool
    """False if the step held no trainable token: no update, no version."""
    metrics: Metrics
    logp: Mapping[str, Float[Tensor, "L"]]
    """Current log-probabilities just before the first update, by rollout id."""
    staleness: Mapping[str, Tensor]
    """Staleness of each token at the first update, by rollout id."""


class _Made(NamedTuple):
    """An update that was made."""

    metrics: Metrics
    measured: list[Part]
    """``(logp, tokens)`` of every micro-batch, as they went into the loss."""


class Trainer:
    """Owns the weights, the optimizer and the count of updates.

    Args:
        policy: the model being trained.
        reference: a frozen model for the KL penalty; needed exactly if the algorithm has one.
        algorithm: what is maximized.
        options: how.
        temperature: of the sampling, applied to the trainer's logits too.
        limits: total updates (for the schedule) and the largest staleness allowed.
    """

    def __init__(
        self,
        policy: Policy,
        algorithm: Algorithm,
        options: TrainerOptions,
        *,
        reference: Policy | None,
        temperature: float,
        limits: tuple[int, int],
    ) -> None:
        if (reference is None) != (algorithm.kl is None):
            raise ConfigError("a KL penalty needs a reference model, and a reference model a KL penalty")
        self.policy = policy
        self.updates = 0
        self._reference = reference
        self._algorithm = algorithm
        self._options = options
        self._temperature = temperature
        self._total, self._allowed = limits
        self._measuring = Measuring(algorithm)
        self._average: WeightAverage | None = None
        self._first_routes = FirstRoutes(policy) if repeats_itself(algorithm) else None
        self._parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self._masters = [p if p.dtype == torch.float32 else p.detach().float() for p in self._parameters]
        self._optimizer = torch.optim.AdamW(
            self._masters, lr=options.lr, betas=options.betas, weight_decay=options.weight_decay
        )
        if isinstance(algorithm.proximal, EWMAProximal):
            self._average = WeightAverage(policy, algorithm.proximal, self._named_masters(), temperature)

    @property
    def sharing(self) -> PromptSharing | None:
        """How steps for it may share prompts: as the policy does, if the reference can too."""
        return self.policy.sharing if self._reference is None or self._reference.sharing else None

    def step(self, step: Step, num_updates: int = 1) -> StepReport:
        """Make updates from a batch. Each measures, differentiates, checks and only then updates: it raises before its
        update if anything is not finite or too stale.

        The anchor is the forward pass of the first update, and stays; metrics are merged over the updates, what is told
        by rollout is as it was at the first.
        """
        if step.denominator.num_tokens == 0:
            return StepReport(updated=False, metrics={}, logp={}, staleness={})
        taken = [self._tokens(micro_batch) for micro_batch in step.micro_batches]
        first = self._first_routes if num_updates > 1 else None
        made = [self._once(step, taken, first=first)]
        step = step if first is None else first.laid(step)
        for reuse in range(1, num_updates):
            moved = self._moved_on(step, [tokens for _, tokens in made[-1].measured])
            made.append(self._once(step, moved, reuse))
        metrics = made[0].metrics
        if len(made) > 1:
            clipped = [one.metrics["clip/fraction"].value for one in made]
            shares = [value for value in clipped if not isinstance(value, Mapping)]
            metrics = {**merge([one.metrics for one in made]), **reuse_metrics(shares, made[-1].measured)}
        return StepReport(
            updated=True,
            metrics=metrics,
            logp=by_rollout(step.micro_batches, [logp for logp, _ in made[0].measured]),
            staleness=by_rollout(step.micro_batches, [tokens.staleness for _, tokens in made[0].measured]),
        )

    def _once(
        self, step: Step, batches: Sequence[TokenBatch], reuse: int = 0, first: FirstRoutes | None = None
    ) -> _Made:
        """One update; ``reuse``: how many the batch has served before; ``first``: takes down the routes."""
        reach = spans(batches)
        self._check_staleness(reach)
        batches, terms, policies, scopes = self._differentiate(step, batches, reuse, first)
        norm = nn.utils.clip_grad_norm_(self._parameters, self._options.grad_clip)
        self._check_finite(step, batches, (terms, policies), norm)
        measured = [(policy.logp, tokens) for policy, tokens in zip(policies, batches, strict=True)]
        step_size = self._measuring.step_size(measured)
        lr = self._update(step_size)
        self._measuring.keep(scopes[-1], measured)
        followed = {} if self._average is None else self._average.follow(terms, batches)
        metrics = {
            **observed(measured, terms, reach),
            **policy_metrics(self._algorithm, step, terms, policies),
            **readings(self._algorithm, step, scopes),
            **followed,
            "policy/grad_norm": Metric(float(norm)),
            "policy/lr": Metric(lr),
            **({} if self._algorithm.step_size is None else {"policy/step_size": Metric(step_size)}),
        }
        return _Made(metrics, measured)

    def gradient_norms(self, step: Step) -> tuple[float, list[float]]:
        """Loss, and the norm of each parameter's gradient, as ``step`` makes them; nothing is updated or kept."""
        _, terms, _, _ = self._differentiate(step, [self._tokens(micro_batch) for micro_batch in step.micro_batches])
        norms = [0.0 if p.grad is None else float(p.grad.float().norm()) for p in self._parameters]
        self._zero_grad()
        return sum(float(term.loss) for term in terms), norms

    def _differentiate(
        self, step: Step, batches: Sequence[TokenBatch], reuse: int = 0, first: FirstRoutes | None = None
    ) -> tuple[list[TokenBatch], list[LossTerms], list[PolicyTokens], list[EdgeStatistics]]:
        """Measure, and leave the gradient of the step in the parameters; one entry a micro-batch, detached."""
        shared = self._measuring.ahead(batches, lambda: self._preview(step.micro_batches, batches, reuse))
        complete: list[TokenBatch] = []
        terms: list[LossTerms] = []
        policies: list[PolicyTokens] = []
        scopes: list[EdgeStatistics] = []
        for micro_batch, tokens in zip(step.micro_batches, batches, strict=True):
            with nullcontext() if first is None else first.of(micro_batch):
                policy = self._forward(micro_batch)
            tokens = self._with_proximal(tokens, policy.logp, reuse)
            stats = self._measuring.own(policy.logp, tokens) if shared is None else shared
            term = policy_loss(policy, tokens, self._algorithm, stats, step.denominator)
            term.loss.backward()  # type: ignore[no-untyped-call]
            complete.append(tokens)
            terms.append(term._replace(loss=term.loss.detach()))
            policies.append(policy.detached())
            scopes.append(stats)
        return complete, terms, policies, scopes

    def state(self) -> dict[str, Any]:
        """Everything that the next update depends on; the tensors are live, for whoever writes them at once."""
        return {
            "updates": self.updates,
            "parameters": {name: master.detach() for name, master in self._named_masters().items()},
            "optimizer": self._optimizer.state_dict(),
            "memory": self._measuring.state(),
            "average": None if self._average is None else self._average.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a ``state``. The learning rate is that of the options; it belongs to no state."""
        named = [(name, p) for name, p in self.policy.model.named_parameters() if p.requires_grad]
        saved = state["parameters"]
        expected = {name: tuple(p.shape) for name, p in named}
        if expected != {name: tuple(tensor.shape) for name, tensor in saved.items()}:
            raise ResumeError(
                f"a checkpoint must hold the parameters of the model that is trained; it has {len(saved)} of other "
                f"names or shapes than the model's {len(expected)}: is model.path still the same model?"
            )
        with torch.no_grad():
            for (name, parameter), master in zip(named, self._masters, strict=True):
                master.copy_(saved[name])
                if master is not parameter:
                    parameter.copy_(master)
        groups = self._optimizer.param_groups
        settings = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        self._optimizer.load_state_dict(state["optimizer"])
        for group, options in zip(self._optimizer.param_groups, settings, strict=True):
            group.update(options)
        self._measuring.restore(state.get("memory", {}))  # 0.2 and before remembered nothing
        if self._average is not None:
            if state.get("average") is None:
                raise ResumeError(
                    "proximal ewma goes on with the average of the run, and this checkpoint has none: resume with the "
                    "proximal policy that the run had"
                )
            self._average.restore(state["average"])
        self.updates = int(state["updates"])

    def _named_masters(self) -> dict[str, Tensor]:
        names = [name for name, p in self.policy.model.named_parameters() if p.requires_grad]
        return dict(zip(names, self._masters, strict=True))

    def _tokens(self, micro_batch: MicroBatch) -> TokenBatch:
        """The core's view of a micro-batch, staleness subtracted here and nowhere else."""
        reference = None
        if self._reference is not None:
            with torch.no_grad():
                # the reference has routes of its own, and the whole vocabulary
                own = replace(micro_batch.inputs, experts=None, kept=None)
                reference = self._reference(own, temperature=self._temperature, entropy="none").logp
        return TokenBatch(
            logp_behavior=micro_batch.logp_behavior,
            logp_proximal=micro_batch.logp_behavior,
            advantage=micro_batch.advantage,
            trainable=micro_batch.trainable,
            sequence=micro_batch.sequence,
            group=micro_batch.group,
            staleness=self.updates - micro_batch.version,
            logp_old=micro_batch.logp_old,
            logp_average=self._averaged(micro_batch),
            logp_reference=reference,
            is_cached_older=micro_batch.is_cached_older,
            entropy_behavior=micro_batch.entropy_behavior,
        )

    def _moved_on(self, step: Step, batches: Sequence[TokenBatch]) -> list[TokenBatch]:
        """The tokens of a batch that has served an update, for the next: what belongs to the batch stays."""
        return [
            replace(tokens, staleness=self.updates - m.version, logp_average=self._averaged(m))
            for m, tokens in zip(step.micro_batches, batches, strict=True)
        ]

    def _averaged(self, micro_batch: MicroBatch) -> Float[Tensor, "T"] | None:
        return None if self._average is None else self._average.logp(micro_batch.inputs)

    def _with_proximal(self, tokens: TokenBatch, logp: Float[Tensor, "T"], reuse: int) -> TokenBatch:
        if reuse == 0:
            # the anchor is the current policy itself: its own forward serves, and the ratio to it is 1 to the last bit;
            # and so is the old policy of a token that these weights sampled
            anchor, old = logp.detach(), tokens.logp_old
            old = None if old is None else torch.where(tokens.staleness == 0, anchor, old)
            tokens = replace(tokens, logp_anchor=anchor, logp_old=old)
        as_taken = replace(tokens, staleness=tokens.staleness - reuse)  # a proximal is one policy a token and batch
        return replace(tokens, logp_proximal=self._algorithm.proximal(as_taken, logp.detach()))

    def _preview(self, micro_batches: Sequence[MicroBatch], batches: Sequence[TokenBatch], reuse: int) -> list[Part]:
        """A forward pass of its own over the step, for statistics that all micro-batches need at once."""
        with torch.no_grad():
            logps = [self._forward(m, entropy=False).logp for m in micro_batches]
        return [(logp, self._with_proximal(t, logp, reuse)) for logp, t in zip(logps, batches, strict=True)]

    def _forward(self, micro_batch: MicroBatch, *, entropy: bool = True) -> PolicyTokens:
        kind: Literal["none", "detached", "differentiable"] = "detached" if entropy else "none"
        if entropy and self._algorithm.entropy:
            kind = "differentiable"
        return self.policy(micro_batch.inputs, temperature=self._temperature, entropy=kind)

    def _update(self, step_size: float) -> float:
        lr = self._options.lr_at(self.updates, self._total) * step_size
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        for master, parameter in zip(self._masters, self._parameters, strict=True):
            if master is not parameter and parameter.grad is not None:
                master.grad = parameter.grad.float()
        self._optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(self._masters, self._parameters, strict=True):
                if master is not parameter:
                    parameter.copy_(master)
        self._zero_grad()
        self.updates += 1
        return lr

    def _zero_grad(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        for parameter in self._parameters:
            parameter.grad = None

    def _check_staleness(self, reach: Spans) -> None:
        if reach.staleness is not None and reach.staleness.high > self._allowed:
            raise StalenessError(
                f"a token of staleness {reach.staleness.high} reached the trainer at update {self.updates}, above the "
                f"bound {self._allowed} printed at start; this is a fault of the pipeline: please report it with this "
                "run"
            )

    def _check_finite(
        self,
        step: Step,
        batches: Sequence[TokenBatch],
        results: tuple[Sequence[LossTerms], Sequence[PolicyTokens]],
        norm: Tensor,
    ) -> None:
        """One wait for the device; only a bad step looks closer."""
        terms, policies = results
        checks = [norm, *(t.loss for t in terms), *(p.logp.sum() for p in policies)]
        if bool(torch.stack([x.detach().float() for x in checks]).isfinite().all()):
            return
        self._zero_grad()
        raise NonFiniteError(explain(step.micro_batches, batches, policies, self.updates))
