"""Everything beside the weights that are being trained, copied at one moment: what training changes meanwhile is not
in it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tether.models.finite import check_finite_weights
from tether.models.loading import DTYPES, LoadedModel, save_model

STATE_FOLDER = "state"
"""In a checkpoint: where everything but the weights lies."""
LEARNER_FILE = "learner.pt"


class HostCopies:
    """Copies of tensors in ordinary memory. Tensors that share their memory share their copy, so that one that a model
    and a trainer both hold is copied once.

    >>> copies, weight = HostCopies(), torch.zeros(2)
    >>> state = copies({"weights": [weight, weight.detach()], "step": 3})
    >>> _ = weight.add_(1.0)
    >>> state
    {'weights': [tensor([0., 0.]), tensor([0., 0.])], 'step': 3}
    >>> state["weights"][0] is state["weights"][1]
    True
    """

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}

    def tensor(self, tensor: Tensor) -> Tensor:
        """The copy of a tensor."""
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() == 0:
            return tensor.detach().to("cpu", copy=True)
        if place not in self._made:
            self._made[place] = (tensor, tensor.detach().to("cpu", copy=True))
        return self._made[place][1]

    def __call__(self, value: Any) -> Any:
        """Plain values with all tensors in them copied."""
        if isinstance(value, Tensor):
            return self.tensor(value)
        if isinstance(value, Mapping):
            return {key: self(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self(inner) for inner in value)
        return value

    def model(self, model: nn.Module) -> nn.Module:
        """A model of the same shape with copies of what changes in it; frozen weights are the model's own."""
        memo: dict[int, Any] = {id(p): p for p in model.parameters() if not p.requires_grad}
        for parameter in model.parameters():
            if parameter.requires_grad:
                memo[id(parameter)] = nn.Parameter(self.tensor(parameter))
        for buffer in model.buffers():
            memo[id(buffer)] = self.tensor(buffer)
        return copy.deepcopy(model, memo)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A learner at one moment."""

    loaded: LoadedModel
    dtype: str
    """In which the model is saved."""
    state: Mapping[str, Any]
    """What ``restore`` needs."""

    def write(self, folder: Path) -> None:
        """Make a folder: the model as a Hugging Face folder, refused if it is not finite, and the state in it."""
        write_model(self.loaded, self.dtype, folder)
        (folder / STATE_FOLDER).mkdir()
        torch.save(self.state, folder / STATE_FOLDER / LEARNER_FILE)


def write_model(loaded: LoadedModel, dtype: str, folder: Path) -> None:
    """Write a model as a Hugging Face folder; refused if its weights are not finite."""
    check_finite_weights(loaded.model.state_dict(), "the model to be saved")
    save_model(loaded, folder, dtype=DTYPES[dtype])
