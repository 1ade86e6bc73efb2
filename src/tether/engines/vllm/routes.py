"""The experts of every token, as vLLM's own routers chose them: the very ids that its kernels are handed.

Its build for processors does not return them, so its routers are listened to. Its build for GPUs returns them with a
request's tokens; that part is written after vLLM 0.32 and has not run on hardware.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tether.errors import ModelError
from tether.models.routers import RoutingShape
from tether.records import Experts


class Routed(NamedTuple):
    """Routes of a part of a request's tokens, one after the other."""

    start: int
    """Position of the first."""
    experts: Experts
    """``[n, layers, k]``."""


class Read(NamedTuple):
    """What a step computed of a request."""

    start: int
    """The first position."""
    end: int
    """The one after the last."""
    is_first: bool
    """Whether nothing was computed of it before: what lies before ``start`` was in the prefix cache."""


def has_experts(config: Any) -> bool:
    """Whether a model of this configuration is a mixture."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return any((getattr(config, name, None) or 0) > 1 for name in names)


def routes_of(runner: Any, *, is_on_cpu: bool) -> RouteWatch | ReturnedRoutes | None:
    """How routes are told of the model of a runner; ``None`` of one that has none, or none that can be told."""
    from vllm.model_executor.layers.fused_moe.layer import MoERunner

    layers = {m.layer_id: m for m in runner.get_model().modules() if isinstance(m, MoERunner)}
    shapes = {(m.moe_config.experts_per_token, m.moe_config.num_logical_experts) for m in layers.values()}
    if len(shapes) != 1:
        return None
    ((k, num_experts),) = shapes
    shape = RoutingShape(num_layers=len(layers), k=int(k), num_experts=int(num_experts))
    if not is_on_cpu:
        return ReturnedRoutes(shape, sorted(layers))
    can_listen = all(hasattr(m.router, "set_capture_fn") and not m._quant_method.is_monolithic for m in layers.values())
    if not can_listen or len(runner.input_batch.block_table.block_tables) != 1:
        return None
    return RouteWatch(shape, {layer: layers[layer].router for layer in sorted(layers)}, runner)


class ReturnedRoutes:
    """What vLLM's second model runner returns with new tokens, if it was started with ``enable_return_routed_experts``:
    a row for each token that was read since it returned the last ones, whether a prefix cache had it or not."""

    def __init__(self, shape: RoutingShape, layers: Sequence[int]) -> None:
        self.shape, self._layers = shape, list(layers)

    @contextmanager
    def on(self, wanted: bool) -> Iterator[None]:
        """They are returned to whoever asks, and to whoever does not."""
        yield

    def of(self, outputs: Sequence[Any], read: Mapping[str, Read]) -> dict[str, Routed]:
        """By request; a column of theirs for each layer, whether it has a router or not."""
        told = {}
        for out in outputs:
            if out.routed_experts is not None:
                rows = np.asarray(out.routed_experts)[:, self._layers]
                told[out.request_id] = Routed(read[out.request_id].end - len(rows), rows.astype(np.int16))
        return told


class RouteWatch:
    """Listens to the routers of a model under vLLM's first model runner, through the hook that vLLM has for it.

    Rows of a forward pass are those of the runner's batch, request by request. What is chosen for a token is kept
    beside its entry in the key-value cache too, by slot: a request that finds its beginning in the prefix cache takes
    the routes of the entries that it found, from when they were computed. So whoever asks for routes must share no
    entry with whoever does not.

    Args:
        shape: of a route.
        routers: by layer.
        runner: of the model, in this process.
    """

    def __init__(self, shape: RoutingShape, routers: Mapping[int, Any], runner: Any) -> None:
        self.shape, self._layers, self._runner = shape, list(routers), runner
        self._is_on = False
        self._chosen: dict[int, Tensor] = {}
        self._by_slot: Experts | None = None
        for layer, router in routers.items():
            router.set_capture_fn(partial(self._listen, layer))

    @contextmanager
    def on(self, wanted: bool) -> Iterator[None]:
        """Listen inside, if that is wanted."""
        self._is_on, self._chosen = wanted, {}
        try:
            yield
        finally:
            self._is_on = False

    def of(self, outputs: Sequence[Any], read: Mapping[str, Read]) -> dict[str, Routed]:
        """By request, what was chosen in the step just made for the positions that were read, and for those before
        them that the prefix cache had."""
        if not self._chosen:
            return {}
        chosen = torch.stack([self._chosen[layer] for layer in self._layers], dim=1)
        table: Experts = chosen.to(self.shape.dtype).cpu().numpy()
        names = self._runner.input_batch.req_ids
        counts = [read[name].end - read[name].start for name in names]
        if sum(counts) != len(table):
            raise ModelError(
                f"a router chooses once for each token that is read; vLLM read {sum(counts)} and its routers chose "
                f"for {len(table)}: use a version of vLLM that was tested"
            )
        self._keep(table)
        told, first = {}, 0
        for row, (name, count) in enumerate(zip(names, counts, strict=True)):
            start, _, is_first = read[name]
            told[name] = Routed(start, table[first : first + count])
            first += count
            if is_first and start:
                told[name] = Routed(0, np.concatenate([self._found(row, start), told[name].experts]))
        return told

    def _listen(self, layer: int, experts: Tensor) -> None:
        if self._is_on:
            self._chosen[layer] = experts

    def _keep(self, table: Experts) -> None:
        if self._by_slot is None:
            config = self._runner.kv_cache_config
            size = config.num_blocks * config.kv_cache_groups[0].kv_cache_spec.block_size
            self._by_slot = self.shape.unknown(size)
        self._by_slot[self._blocks.slot_mapping.np[: len(table)]] = table

    def _found(self, row: int, count: int) -> Experts:
        """Routes of the first ``count`` positions of a row of the batch, by where their cache entries lie."""
        assert self._by_slot is not None, "what is found was computed before"
        place, size = np.arange(count), self._blocks.block_size
        found: Experts = self._by_slot[self._blocks.block_table.np[row, place // size] * size + place % size]
        return found

    @property
    def _blocks(self) -> Any:
        (blocks,) = self._runner.input_batch.block_table.block_tables
        return blocks
