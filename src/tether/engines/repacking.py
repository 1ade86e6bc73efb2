"""Weights laid out for the kernels of processors, anew, where vLLM forgets it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def packed_anew(model: nn.Module) -> Iterator[None]:
    """Reload weights inside; what was not packed for its kernel by then is packed afterwards.

    On processors vLLM packs weights when it starts. In 0.32 a reload forgets two kinds, without a word: experts, whose
    kernel then reads unpacked weights as if they were packed (log-probs are off by 10 nats), and a head that is tied
    to the embeddings, which keeps the packed copy of the version before. Whether a reload did it is seen from whether
    it asked for it.
    """
    waiting: list[Callable[[], None]] = []
    watched = list(_packers(model))
    for packer, layer in watched:
        _watch(packer, layer, waiting)
    try:
        yield
    finally:
        for packer, _ in watched:
            del packer.process_weights_after_loading
    for pack in waiting:
        pack()


def _packers(model: nn.Module) -> Iterator[tuple[Any, nn.Module]]:
    """Who packs what: of every layer of experts, and of every layer that shares its weight with another."""
    owners = Counter(id(weight) for layer in model.modules() for weight in layer.parameters(recurse=False))
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        experts = getattr(getattr(method, "moe_kernel", None), "fused_experts", None)
        if experts is not None:
            yield experts, layer
        elif method is not None and any(owners[id(weight)] > 1 for weight in layer.parameters(recurse=False)):
            yield method, layer


def _watch(packer: Any, layer: nn.Module, waiting: list[Callable[[], None]]) -> None:
    pack = packer.process_weights_after_loading

    def late() -> None:
        pack(layer)

    def in_time(of: nn.Module) -> None:
        if late in waiting:
            waiting.remove(late)
        pack(of)

    waiting.append(late)
    packer.process_weights_after_loading = in_time


class Reloading:
    """Given to the workers of a vLLM server (``--worker-extension-cls``), which runs its methods by name.

    This file is copied to where they find it: it needs nothing of the package that it is from.
    """

    model_runner: Any
    """The worker's own, as is what is called below."""

    def tether_reload(self, weights_path: str) -> None:
        """Reload weights from a folder, and pack what vLLM forgets."""
        worker: Any = self
        with packed_anew(self.model_runner.get_model()):
            worker.reload_weights(weights_path=weights_path)
