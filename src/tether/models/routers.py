"""The routers of a mixture of experts: found by their form, listened to and overruled by hooks.

The model's own files stay as they are. A router is a module that has ``top_k`` and a weight of a row an expert, and
returns logits ``[N, E]``, gates ``[N, k]`` and the experts ``[N, k]`` it chose, as those of Qwen3-MoE, Mixtral, OLMoE,
gpt-oss and DeepSeek-V3 do in transformers. What its gates are is tried, and so is whether a replay of its own choice
changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from tether.errors import ModelError
from tether.records import NO_EXPERT, Experts
from tether.replay.routing import Gates

KEYWORD = "tether_replay"
"""Under which a forward pass hands its routes down to the layers."""
GATE_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
"""Largest difference between a router's gates and ours, relative to the largest, for logits within -1 .. 1."""
REPLAY_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest difference of a hidden state, relative to the largest, when the routers' own choice is replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingShape:
    """What a route of a model looks like.

    >>> RoutingShape(num_layers=48, k=8, num_experts=128).dtype, RoutingShape(num_layers=1, k=2, num_experts=129).dtype
    (torch.int8, torch.int16)
    """

    num_layers: int
    """Layers that have a router."""
    k: int
    """Experts that a token goes through in each."""
    num_experts: int
    """Experts of each."""

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest format that holds every expert and the mark of none."""
        return torch.int8 if self.num_experts <= 128 else torch.int16

    def unknown(self, num_tokens: int) -> Experts:
        """Routes of so many tokens, of which none is known yet: ``[num_tokens, layers, k]``."""
        narrowest = np.int8 if self.dtype == torch.int8 else np.int16
        return np.full((num_tokens, self.num_layers, self.k), NO_EXPERT, narrowest)


@dataclass(slots=True, eq=False)
class _Replay:
    """The routes of one forward pass; layers computed again in backward get the same one."""

    experts: Int[Tensor, "B L layers k"]
    num_used: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Routers:
    """The routers of a model, first layer first."""

    shape: RoutingShape
    base: Any
    """The model without its head."""
    layers: nn.ModuleList
    places: dict[int, str]
    """Layer -> name of the router inside it."""

    @contextmanager
    def recording(self) -> Iterator[list[list[Tensor]]]:
        """Collect, router by router, the experts chosen in each forward pass inside: ``[N, k]``, on the device, as
        they are."""
        chosen: list[list[Tensor]] = [[] for _ in self.places]

        def listen(number: int, router: nn.Module, given: Any, output: Any) -> None:
            chosen[number].append(output[2])

        hooks = [
            self.layers[layer].get_submodule(name).register_forward_hook(partial(listen, number))
            for number, (layer, name) in enumerate(self.places.items())
        ]
        try:
            yield chosen
        finally:
            for hook in hooks:
                hook.remove()

    def joined(self, chosen: list[list[Tensor]], shape: Sequence[int]) -> Int[Tensor, "B L layers k"]:
        """What ``recording`` collected of one forward pass over ids of this ``shape``, in the narrowest format."""
        experts = torch.stack([passes[0] for passes in chosen], dim=1).to(self.shape.dtype)
        return experts.view(*shape, len(chosen), -1)

    def hidden(self, experts: Tensor, **inputs: Any) -> Tensor:
        """Last hidden states of the model with ``experts [B, L, layers, k]`` chosen; ``enable`` comes first."""
        self._check(experts, inputs["input_ids"])
        # in the order of their numbers: what order they came in then shows in no bit of the sum over experts
        replay = _Replay(experts.sort(dim=-1).values)
        hidden: Tensor = self.base(**inputs, **{KEYWORD: replay}).last_hidden_state
        if replay.num_used != self.shape.num_layers:
            raise ModelError(f"routes reached {replay.num_used} of {self.shape.num_layers} routers")
        return hidden

    def enable(self, gates: Gates) -> None:
        """Hang up the hooks that replay, unless they hang; without routes they do nothing, and so they stay."""
        if getattr(self.layers, "_tether_replays", False):
            return
        numbers = {layer: number for number, layer in enumerate(self.places)}
        for index, layer in enumerate(self.layers):
            name = self.places.get(index)
            layer.register_forward_pre_hook(partial(_hand_over, name, numbers.get(index, -1)), with_kwargs=True)
            if name is not None:
                layer.get_submodule(name).register_forward_hook(partial(_overrule, gates))
        self.layers._tether_replays = True  # type: ignore[assignment]  # on the module: a copy of it has the hooks too

    def gates(self) -> Gates:
        """What its routers make of their logits; ``ModelError`` if that is of no known form."""
        kinds = {_gates_of(self.layers[layer].get_submodule(name)) for layer, name in self.places.items()}
        if len(kinds) > 1:
            raise ModelError("its routers do not all make the same of their logits")
        return kinds.pop()

    def _check(self, experts: Tensor, input_ids: Tensor) -> None:
        wanted = (*input_ids.shape, self.shape.num_layers, self.shape.k)
        if tuple(experts.shape) != wanted:
            names = ("rows", "tokens", "layers", "experts a token")
            told = ", ".join(
                f"{name} {got} instead of {want}"
                for name, got, want in zip(names, experts.shape, wanted, strict=False)
                if got != want
            )
            raise ModelError(
                f"routes to replay must be [rows, tokens, layers, experts a token] = {list(wanted)}; got "
                f"{list(experts.shape)}: {told or 'another number of axes'}"
            )


def find_routers(model: Any) -> Routers:
    """The routers of a transformers model; ``ModelError`` with the reason if it has none of a known form."""
    base = model.base_model
    found = {name: module for name, module in base.named_modules() if _looks_like_router(module)}
    if not found:
        raise ModelError("it has no router of a form that tether knows (a dense model has none at all)")
    shapes = {(int(router.top_k), int(router.weight.shape[0])) for router in found.values()}
    if len(shapes) > 1:
        raise ModelError(f"its routers choose among {', '.join(f'{k} of {e} experts' for k, e in sorted(shapes))}")
    ((k, num_experts),) = shapes
    stacks = {_place(base, name)[0] for name in found}
    if len(stacks) > 1 or not isinstance(layers := base.get_submodule(stacks.pop()), nn.ModuleList):
        raise ModelError("its routers do not stand in one stack of layers")
    places = dict(sorted(_place(base, name)[1:] for name in found))
    if len(places) != len(found):
        raise ModelError("one of its layers has several routers")
    shape = RoutingShape(num_layers=len(places), k=k, num_experts=num_experts)
    return Routers(shape=shape, base=base, layers=layers, places=places)


def routing_of(model: Any) -> RoutingShape | None:
    """The shape of a model's routes; ``None`` for a dense model, or one whose routers are of no known form."""
    try:
        routers = find_routers(model)
        routers.gates()
    except ModelError:
        return None
    return routers.shape


def replayable(model: Any) -> Routers:
    """Routers ready to be overruled; ``ModelError`` with the reason if a replay of their own choice is not the model's
    own forward pass, or the replay of another choice is."""
    routers = find_routers(model)
    routers.enable(routers.gates())
    try:
        own, other = _probe(routers)
    except ModelError:
        raise
    except Exception as error:  # a model's own code, given a keyword that it may not know
        raise ModelError(f"it does not hand routes down to its layers ({type(error).__name__}: {error})") from error
    dtype = next(routers.base.parameters()).dtype
    if not own <= REPLAY_TOLERANCE.get(dtype, REPLAY_TOLERANCE[torch.bfloat16]):
        raise ModelError(f"a replay of its own routes changes its hidden states (relative gap {own:.2g})")
    if routers.shape.k < routers.shape.num_experts and not other > 0:
        raise ModelError("other routes do not change its hidden states: its experts do not follow its routers")
    return routers


def _looks_like_router(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(getattr(module, "top_k", None), int) and isinstance(weight, Tensor) and weight.ndim == 2


def _place(base: nn.Module, name: str) -> tuple[str, int, str]:
    """Name of the stack of layers that a module stands in, its layer, and its name there."""
    parts = name.split(".")
    for depth in range(1, len(parts)):
        stack = ".".join(parts[:depth])
        if isinstance(base.get_submodule(stack), nn.ModuleList):
            return stack, int(parts[depth]), ".".join(parts[depth + 1 :])
    raise ModelError(f"its router {name!r} stands in no stack of layers")


@torch.no_grad()
def _gates_of(router: Any) -> Gates:
    """Tried on hidden states for which logits lie within -1 .. 1: there the forms are far apart."""
    weight, kind = router.weight, type(router).__name__
    hidden = torch.arange(16 * weight.shape[1], device=weight.device, dtype=torch.float32).view(16, -1).mul_(0.7).sin_()
    scales = sorted({1.0, float(getattr(router, "routed_scaling_factor", 1.0))})
    forms = [
        Gates(score=score, renormalize=renormalize, scale=scale)
        for score in ("softmax", "sigmoid")
        for renormalize in (True, False)
        for scale in scales
    ]
    try:
        largest = router(hidden.to(weight.dtype))[0].abs().max().clamp(min=1e-6)
        logits, own, experts = router((hidden / largest).to(weight.dtype))
        gaps = {form: float((form(logits, experts) - own).abs().max() / own.abs().max()) for form in forms}
    except Exception as error:  # a model's own code, called on its own
        raise ModelError(
            f"its router {kind} does not return logits, gates and experts ({type(error).__name__}: {error})"
        ) from error
    best = min(forms, key=lambda form: gaps[form])
    if not gaps[best] <= GATE_TOLERANCE.get(weight.dtype, GATE_TOLERANCE[torch.bfloat16]):
        raise ModelError(
            f"the gates of its router {kind} follow from its logits in no known way (relative gap {gaps[best]:.2g})"
        )
    return best


@torch.no_grad()
def _probe(routers: Routers) -> tuple[float, float]:
    """Relative gaps of hidden states: the routers' own choice replayed, and the next expert in place of each."""
    base, shape = routers.base, routers.shape
    device = next(base.parameters()).device
    ids = (torch.arange(12, device=device) * 7 + 3).view(2, 6) % base.get_input_embeddings().weight.shape[0]
    with routers.recording() as chosen:
        plain = base(input_ids=ids, use_cache=False).last_hidden_state.float()
    own = routers.joined(chosen, ids.shape)
    other = ((own.short() + 1) % shape.num_experts).to(own.dtype)
    scale = plain.abs().max().clamp(min=1e-6)
    gaps = [
        float((routers.hidden(experts, input_ids=ids, use_cache=False).float() - plain).abs().max() / scale)
        for experts in (own, other)
    ]
    return gaps[0], gaps[1]


def _hand_over(name: str | None, number: int, layer: nn.Module, given: Any, keywords: dict[str, Any]) -> Any:
    """Before a layer: take its routes out of the keywords and lay them at its router.

    The keywords belong to the call, so a layer that is computed again in backward finds its own there, whatever
    other forward passes ran meanwhile.
    """
    replay: _Replay | None = keywords.get(KEYWORD)
    if name is not None:
        router: Any = layer.get_submodule(name)
        router._tether_replay = None if replay is None else (replay, number)
    return given, {key: value for key, value in keywords.items() if key != KEYWORD}


def _overrule(gates: Gates, router: Any, given: Any, output: Any) -> Any:
    """After a router: the experts that lie there instead of its own, with the gates of its logits."""
    if router._tether_replay is None:
        return output
    (replay, number), router._tether_replay = router._tether_replay, None
    replay.num_used += 1
    logits, own_gates, own = output
    experts = replay.experts[:, :, number].reshape(own.shape).to(own.dtype)
    chosen = torch.where((experts == NO_EXPERT).any(-1, keepdim=True), own, experts)
    return logits, gates(logits, chosen).to(own_gates.dtype), chosen
