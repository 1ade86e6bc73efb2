"""What a token was sampled among, as vLLM's sampler cut it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tether.records import Ints


def ids_of(output: Any) -> Ints:
    """From the sampling mask that vLLM's second model runner returns."""
    return np.asarray(output.new_sampling_mask.token_ids, dtype=np.int32)


class KeptWatch:
    """Looks over the shoulder of the sampler of vLLM's first model runner, which returns no mask.

    That sampler hands out the log-probs ``[B, V]`` of the distribution that it draws from, ``-inf`` where an id was
    cut; rows are in the order of the runner's batch.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._is_on = False
        self._kept: dict[str, Ints] = {}
        cut = getattr(getattr(runner, "sampler", None), "topk_topp_sampler", None)
        if cut is not None:
            self._draw = cut.forward
            cut.forward = self._draw_and_tell

    @contextmanager
    def on(self, wanted: bool) -> Iterator[None]:
        """Watch inside, if that is wanted."""
        self._is_on, self._kept = wanted, {}
        try:
            yield
        finally:
            self._is_on = False

    def of(self, name: str) -> Ints | None:
        """Of the token that a request got last; ``None`` if it was not drawn but is the most probable."""
        return self._kept.get(name)

    def _draw_and_tell(self, *args: Any, **options: Any) -> Any:
        sampled, logp = self._draw(*args, **options)
        if self._is_on and logp is not None:
            rows, ids = (logp > float("-inf")).nonzero(as_tuple=True)
            ends = rows.bincount(minlength=len(logp)).cumsum(0).tolist()
            flat = ids.int().cpu().numpy()
            names = self._runner.input_batch.req_ids
            self._kept = {name: flat[start:end] for name, start, end in zip(names, [0, *ends], ends, strict=False)}
        return sampled, logp
