"""Published weights as vLLM's loader takes them: by the names that they have in files."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from tether.engines.filed import Filed
from tether.engines.vllm.core import Core


class Weights(Filed):
    """All weights of a model, put in the place of those that vLLM has."""

    def put(self, received: Mapping[str, Tensor], core: Core) -> None:
        """Have vLLM replace its weights by these."""
        core.reload(iter(self(received).items()))
