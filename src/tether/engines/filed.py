"""Published weights by the names that they have in files, as other engines read them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from tether.engines.fitting import check_fits
from tether.models.loading import LoadedModel
from tether.models.lora import published


class Filed:
    """Turns what a trainer publishes into what a checkpoint of the same model holds.

    A model in memory may hold tensors that files hold apart (the experts of a layer are one), or by other names;
    transformers knows how it reads them, and so how to write them.

    Args:
        skeleton: the model, without memory.
    """

    def __init__(self, skeleton: LoadedModel) -> None:
        self._model = skeleton.model
        self._own = published(skeleton.model)
        first: dict[int, str] = {}
        self._first = {name: first.setdefault(id(tensor), name) for name, tensor in self._own.items()}
        """Of every name, the first one of the same tensor."""

    def check(self, received: Mapping[str, Tensor]) -> None:
        """Refuse weights of another model."""
        check_fits(self._own, received)

    def __call__(self, received: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Every tensor once, by its name in files."""
        from transformers.core_model_loading import revert_weight_conversion

        once = {self._first[name]: tensor for name, tensor in received.items()}
        return dict(revert_weight_conversion(self._model, once))
