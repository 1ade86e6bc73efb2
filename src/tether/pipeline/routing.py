"""The engine's routes laid along the rows of a step, and the trainer's own routes taken from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tether.core.algorithm import Algorithm
from tether.errors import DataError
from tether.models.policy import Policy
from tether.models.routers import RoutingShape
from tether.pipeline.packing import MicroBatch, Row, Step
from tether.records import NO_EXPERT, Experts, Rollout
from tether.replay.routing import Routing, is_rerouted


def with_routes(step: Step, routing: Routing | None, policy: Policy) -> Step:
    """The step with the routes that its rollouts bring, for this policy; as it is without ``routing``.

    Padding and the last token of a completion, which no forward pass of the engine read, are left to the trainer's
    routers. What else has no route is an error or counted, as ``routing`` says. A route of another shape than the
    model's is an error.
    """
    if routing is None:
        return step
    shape = policy.routers.shape
    routes: dict[str, Experts] = {}
    num_unrouted = 0
    for row in step.rows:
        experts, missing = _checked(row, shape)
        if len(missing) and routing.missing == "error":
            raise DataError(
                f"every token must have a recorded route; in rollout {row.rollout.id!r} {len(missing)} of "
                f"{row.num_tokens} have none, the first at {missing[0]} (prompt: {len(row.rollout.prompt.token_ids)}): "
                "take an engine that reports routes, or let such tokens take the trainer's own (missing = own)"
            )
        routes[row.rollout.id] = experts
        num_unrouted += len(missing)
    batches = tuple(_laid(micro_batch, routes, shape) for micro_batch in step.micro_batches)
    return replace(step, micro_batches=batches, num_unrouted=num_unrouted)


def repeats_itself(algorithm: Algorithm) -> bool:
    """Whether later updates of a batch take the routes of its first."""
    return any(isinstance(replay, Routing) and replay.source == "trainer" for replay in algorithm.replay)


class FirstRoutes:
    """R2: what the trainer's routers choose in the first pass over a batch, for the passes after it."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._noted: list[Int[Tensor, "B L layers k"]] = []

    @contextmanager
    def of(self, micro_batch: MicroBatch) -> Iterator[None]:
        """Take down the routes of the one forward pass inside, which is that of the batch's next micro-batch."""
        with self._policy.routers.recording() as chosen:
            yield
        self._noted.append(self._policy.routers.joined(chosen, micro_batch.inputs.input_ids.shape))

    def laid(self, step: Step) -> Step:
        """The step with the routes that were taken down, which are forgotten here; padding has some too."""
        noted, self._noted = self._noted, []
        pairs = zip(step.micro_batches, noted, strict=True)
        batches = tuple(replace(m, inputs=replace(m.inputs, experts=experts)) for m, experts in pairs)
        return replace(step, micro_batches=batches)


def own_routes(step: Step, policy: Policy) -> dict[str, Experts]:
    """What the trainer's routers choose for every rollout of a step, by id and as ``Completion.experts`` has it."""
    found: dict[str, Experts] = {}
    for micro_batch in step.micro_batches:
        chosen = policy.routes(micro_batch.inputs).cpu().numpy()
        for row, place, columns in _places(micro_batch):
            experts = np.full((row.num_tokens, *chosen.shape[2:]), NO_EXPERT, dtype=chosen.dtype)
            experts[: len(columns)] = chosen[place, columns]
            found[row.rollout.id] = experts
    return found


def rerouted_share(rollouts: Sequence[Rollout], own: Mapping[str, Experts]) -> tuple[float, int]:
    """Of how many (token, layer) pairs the sets of experts are known on both sides, and in which share of them they
    differ: the routes that rollouts bring against the trainer's ``own``, prompts included.

    The pairs come last; the share is NaN where there are none.
    """
    pairs = [(r.completion.experts, own[r.id]) for r in rollouts if r.completion.experts is not None]
    known = [((one != NO_EXPERT) & (other != NO_EXPERT)).all(-1) for one, other in pairs]
    num_pairs = sum(int(is_known.sum()) for is_known in known)
    num_rerouted = sum(int(is_rerouted(one, other).sum()) for one, other in pairs)
    return (num_rerouted / num_pairs if num_pairs else float("nan")), num_pairs


def _checked(row: Row, shape: RoutingShape) -> tuple[Experts, np.ndarray]:
    """The routes of a rollout, all unknown if it brings none, and which of its tokens should have one and do not."""
    name, experts = f"rollout {row.rollout.id!r}", row.rollout.completion.experts
    wanted = (row.num_tokens, shape.num_layers, shape.k)
    if experts is None:
        experts = np.full(wanted, NO_EXPERT, dtype=np.int16)
    if experts.shape != wanted:
        names = ("tokens", "layers", "experts a token")
        told = [f"{got} {n} instead of {want}" for n, got, want in zip(names, experts.shape, wanted, strict=True)]
        wrong = [text for text, got, want in zip(told, experts.shape, wanted, strict=True) if got != want]
        raise DataError(
            f"recorded routes must fit the model being trained; those of {name} have {', '.join(wrong)}: does the "
            "engine hold the same model, and report prompt and completion?"
        )
    if not np.issubdtype(experts.dtype, np.integer):
        raise DataError(f"recorded experts must be whole numbers; those of {name} are {experts.dtype}")
    if np.issubdtype(experts.dtype, np.unsignedinteger):
        experts = experts.astype(np.int16)  # so that it can be compared with the mark of none
    if experts.max(initial=NO_EXPERT) >= shape.num_experts or experts.min(initial=0) < NO_EXPERT:
        raise DataError(
            f"recorded experts must lie in 0 .. {shape.num_experts - 1}, or be {NO_EXPERT} where unknown; those of "
            f"{name} go from {experts.min()} to {experts.max()}"
        )
    is_known = (experts != NO_EXPERT).all(-1)
    ordered = np.sort(experts, axis=-1)
    if (is_known & (ordered[..., 1:] == ordered[..., :-1]).any(-1)).any():
        raise DataError(f"a token goes through {shape.k} different experts; {name} has a route that names one twice")
    is_missing = ~is_known.all(-1)
    if len(row.rollout.completion):
        is_missing[-1] = False
    return experts, np.flatnonzero(is_missing)


def _laid(micro_batch: MicroBatch, routes: dict[str, Experts], shape: RoutingShape) -> MicroBatch:
    ids = micro_batch.inputs.input_ids
    laid = torch.full((*ids.shape, shape.num_layers, shape.k), NO_EXPERT, dtype=shape.dtype)
    for row, place, columns in _places(micro_batch):
        known = routes[row.rollout.id][: len(columns)]
        laid[place, torch.from_numpy(columns)] = torch.from_numpy(known).to(shape.dtype)
    return replace(micro_batch, inputs=replace(micro_batch.inputs, experts=laid.to(ids.device)))


def _places(micro_batch: MicroBatch) -> Iterator[tuple[Row, int, np.ndarray]]:
    """Every rollout with the row of the model it stands in and the columns of its tokens, but for the last sampled.

    A token is predicted from where the one before it stands; so the places that predict are the places of all tokens
    but the last, and prompts begin their rows. A rollout of no token predicts nothing and needs no route.
    """
    places, columns = (t.cpu().numpy() for t in (micro_batch.inputs.row, micro_batch.inputs.column))
    start = 0
    for row in micro_batch.rows:
        own = slice(start, start := start + len(row.rollout.completion))
        if own.start < own.stop:
            prompt = np.arange(len(row.rollout.prompt.token_ids))
            yield row, int(places[own.start]), np.concatenate([prompt, columns[own][1:]])
