"""The experts of every token of a batch, on the host: those of the prompts, and those of what was sampled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tether.engines.cache import host_copy
from tether.models.routers import find_routers
from tether.ports import GenerationRequest
from tether.records import NO_EXPERT, Experts


class HostRoutes:
    """Experts ``[layers, k]`` of every prompt token and sampled token of a batch.

    A forward pass reads the tokens drawn before it: the first reads every prompt once, padded on the left, the pass of
    step ``s`` the token of step ``s - 1``. What was drawn last has been read by none.
    """

    def __init__(self, model: Any, requests: Sequence[GenerationRequest]) -> None:
        self._routers = find_routers(model)
        shape = self._routers.shape
        places = {prompt: place for place, prompt in enumerate(dict.fromkeys(r.prompt_ids for r in requests))}
        self._place = [places[r.prompt_ids] for r in requests]
        self._prompt_lengths = [len(r.prompt_ids) for r in requests]
        self._width = max(self._prompt_lengths)
        each = (shape.num_layers, shape.k)
        self._prompts = torch.zeros(len(places), self._width, *each, dtype=shape.dtype)
        self._sampled = torch.zeros(len(requests), max(r.max_tokens for r in requests), *each, dtype=shape.dtype)
        self._known = 0  # sampled tokens whose routes are there

    @contextmanager
    def recording(self, rows: NDArray[np.int64], first: int) -> Iterator[None]:
        """Record the passes made inside, of the given rows, from step ``first`` on; copied to the host at the end."""
        with self._routers.recording() as chosen:
            yield
        passes = [torch.stack(layers, dim=1) for layers in zip(*chosen, strict=True)]
        if first == 0:
            self._prompts.copy_(passes.pop(0).view(self._prompts.shape))
        if passes:
            start = max(first - 1, 0)
            self._known = start + len(passes)
            self._sampled[torch.from_numpy(rows), start : self._known] = torch.stack(passes, dim=1).cpu()

    def of(self, row: int, length: int) -> Experts:
        """Those of a prompt and of ``length`` sampled tokens, the last of which has none."""
        prompt = self._prompts[self._place[row], self._width - self._prompt_lengths[row] :]
        experts = torch.cat([prompt, self._sampled[row, :length]])
        experts[-1] = NO_EXPERT  # a row that ended inside a block ran on, and has read it; others have not
        return experts.numpy()

    def state(self) -> dict[str, Tensor]:
        """Everything known, copied."""
        return {"prompts": self._prompts.clone(), "sampled": host_copy(self._sampled[:, : self._known])}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take what ``state`` gave for the same requests."""
        self._prompts.copy_(state["prompts"])
        self._known = state["sampled"].shape[1]
        self._sampled[:, : self._known] = state["sampled"]
