"""Weights through vLLM's weight-transfer API, tensor by tensor, instead of through its reload of a whole iterator.

The worker side is an engine of vLLM's registry: its built-in ``nccl``, which receives by broadcast between GPUs, or
``handover``, registered here, which takes tensors of this process and needs no GPU. Both are driven alike: opened once,
then ``start``, ``update`` with names and shapes, ``finish`` with the version. With ``nccl`` the sender is this process
too, on another of its GPUs: rank 0 of a group of two.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import torch
from torch import Tensor

from tether.errors import ConfigError, ModelError

HANDOVER: Final = "handover"
"""Name of the transport of this module in vLLM's registry."""
NCCL: Final = "nccl"
TRANSFERS: Final = ("reload", HANDOVER, NCCL)
"""Ways for weights to get into vLLM."""
_HANDED: dict[int, Mapping[str, Tensor]] = {}
"""What is being handed over, by number: an update is told to a worker in plain values."""


Control = Callable[..., object]
"""Has every worker do one of vLLM's four calls: its name, and what it is told."""


@runtime_checkable
class Transfer(Protocol):
    """A way for tensors to get into vLLM."""

    def send(self, weights: Mapping[str, Tensor]) -> None:
        """Replace all weights, whose names are those of files; an error leaves vLLM without a whole version."""
        ...


class Handover:
    """Tensors of this process, handed to vLLM's worker in the same process.

    Args:
        control: calls the workers.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._count = 0
        control("init_weight_transfer_engine", {})

    def send(self, weights: Mapping[str, Tensor]) -> None:
        """Start, hand over, finish."""
        self._count += 1
        _HANDED[self._count] = weights
        try:
            self._control("start_weight_update")
            self._control("update_weights", {"number": self._count, "names": list(weights)})
            self._control("finish_weight_update")
        finally:
            del _HANDED[self._count]


class Broadcast:
    """NCCL: rank 0 of a group is here, the workers are the ranks after it. Needs two GPUs; not run on hardware yet.

    Args:
        control: calls the workers.
    """

    def __init__(self, control: Control) -> None:
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        if (num_gpus := torch.cuda.device_count()) < 2:
            raise ConfigError(
                "engine.transfer = 'nccl' sends from one GPU to another; this process sees "
                f"{num_gpus}: set engine.transfer = 'reload'"
            )
        self._source = _source(f"cuda:{num_gpus - 1}")  # vLLM has the first
        self._sender = WeightTransferTrainerFactory.trainer_init(
            NCCLTrainerInitInfo(master_address="127.0.0.1", master_port=_free_port(), world_size=2),
            client=_Client(control),
            source=self._source,
        )

    def send(self, weights: Mapping[str, Tensor]) -> None:
        """Broadcast all, beside the workers' receiving."""
        self._source.weights = weights
        self._sender.send_weights()


@dataclass(frozen=True, slots=True)
class _Client:
    """vLLM's four calls as its sender wants them."""

    control: Control

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.control("init_weight_transfer_engine", init_info)

    def start_weight_update(self) -> None:
        self.control("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self.control("update_weights", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.control("finish_weight_update")


def _source(device: str) -> Any:
    """Where vLLM's sender takes tensors from; its ``weights`` are set before each round."""
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class Source(WeightSource):  # type: ignore[misc, unused-ignore]
        weights: Mapping[str, Tensor] = {}

        def metadata(self) -> list[Any]:
            return [
                ParamMeta(name=name, dtype=tensor.dtype, shape=tuple(tensor.shape))
                for name, tensor in self.weights.items()
            ]

        def __iter__(self) -> Any:
            return ((name, tensor.to(device)) for name, tensor in self.weights.items())

    return Source()


def register_handover() -> None:
    """Make ``handover`` known to vLLM; once more does no harm."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if HANDOVER not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(HANDOVER, _receiver())


def _receiver() -> Any:
    """The worker's side of the handover."""
    from vllm.distributed.weight_transfer.base import WeightTransferEngine
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    class Receiver(WeightTransferEngine):  # type: ignore[misc, unused-ignore]
        """Loads what lies in this process."""

        init_info_cls = _Nothing
        update_info_cls = _Update

        def init_transfer_engine(self, init_info: _Nothing) -> None:
            """Nobody is to be met."""

        def start_weight_update(self) -> None:
            initialize_layerwise_reload(self.model)

        def receive_weights(self, update_info: _Update) -> None:
            handed = _HANDED.get(update_info.number)
            if handed is None:
                raise ModelError(
                    "a handover takes place inside one process; this worker of vLLM is in another: set "
                    "engine.transfer = 'reload'"
                )
            self.model.load_weights((name, handed[name].to(self.device)) for name in update_info.names)

        def finish_weight_update(self) -> None:
            finalize_layerwise_reload(self.model, self.model_config)

        def shutdown(self) -> None:
            """Nothing is held."""

    return Receiver


@dataclass
class _Nothing:
    """All that must be told to begin with."""


@dataclass
class _Update:
    """All that must be told of one update."""

    number: int
    names: Sequence[str]


def open_transfer(kind: str, control: Control) -> Transfer | None:
    """The sender's side; ``None`` for ``reload``, which is none of these."""
    openings: dict[str, Callable[[Control], Transfer]] = {HANDOVER: Handover, NCCL: Broadcast}
    return openings[kind](control) if kind in openings else None


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port
