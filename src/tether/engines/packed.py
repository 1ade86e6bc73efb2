"""Linear layers that keep their weight laid out for the processor's kernel.

A bfloat16 product on a processor copies the weight into the kernel's own layout in every call; for up to 16 rows that
is a third of its time. Here the copy is made once after every write. The weight itself stays, for whoever reads or
writes it, so the layers take twice the memory.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

LEAST = 2**16
"""Entries of the smallest weight that is packed; in small models, whose layers stay plain, Python's share is larger."""


class PackedLinear(nn.Linear):
    """``x W^T + b`` for ``x [..., in]``, without gradients, with a copy of ``W [out, in]`` in the kernel's layout.

    The copy is made in the first call after any write to the weight that torch counts, so it is never old; writes
    through ``.data`` are not counted. Its values are those of the plain layer, but for rounding where ``x`` has gaps.

    >>> layer = nn.Linear(512, 128, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    >>> model = nn.Sequential(layer)
    >>> pack_linear_layers(model)
    >>> layer.weight.fill_(0.5) is layer.weight and float(model(torch.ones(512).bfloat16())[0])
    256.0
    >>> layer.weight.fill_(2.0) is layer.weight and float(model(torch.ones(512).bfloat16())[0])
    1024.0
    """

    _packed: Tensor | None = None
    _packed_at: int = -1
    """How often the weight had been written to when it was packed."""

    def forward(self, input: Tensor) -> Tensor:
        """As the plain layer."""
        if self._packed is None or self._packed_at != self.weight._version:
            self._packed = None  # before the next one is made: two would be one more than is said
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, None)
            self._packed_at = self.weight._version
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise(input, self._packed, self.bias, "none", [], ""))

    def __getstate__(self) -> dict[str, Any]:
        """Without the copy, which cannot be copied itself."""
        return {name: value for name, value in self.__dict__.items() if name != "_packed"}


def pack_linear_layers(model: nn.Module) -> None:
    """Let the large bfloat16 layers of a model on a processor be ``PackedLinear``, in place.

    Names, weights, ties and hooks stay as they are. So do other number formats (packed, float32 sums in another order)
    and a processor that has no kernel for bfloat16.
    """
    mkldnn: Any = torch.backends.mkldnn
    if not (mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return
    for layer in model.modules():
        weight = layer.weight if type(layer) is nn.Linear else None
        if weight is None or weight.device.type != "cpu" or weight.dtype != torch.bfloat16 or weight.numel() < LEAST:
            continue
        layer.__class__ = PackedLinear
