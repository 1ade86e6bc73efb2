"""Rows that vLLM decodes together: they join, get a token a step, and leave."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tether.engines.vllm.core import Core
from tether.engines.vllm.draft import Draft
from tether.errors import ModelError, NonFiniteError
from tether.ports import GenerationRequest

MOST_IDLE_STEPS = 1000
"""Steps in a row that may bring no token; with the longest prompts a few dozen do."""


class VllmRows:
    """Completions in the making, in the order in which they joined.

    Args:
        core: where they are decoded.
        salt: of the prefix cache, for who joins now.
        name: what requests are called here, for ids that others may use too.
    """

    def __init__(self, core: Core, salt: Callable[[], str], name: Callable[[str], str] = str) -> None:
        self._core, self._salt, self._name = core, salt, name
        self._drafts: dict[str, Draft] = {}
        """By the name that vLLM has for them."""
        self._num_idle = 0

    @property
    def drafts(self) -> list[Draft]:
        """Those that have not ended."""
        return [draft for draft in self._drafts.values() if not draft.is_done]

    def join(self, requests: Sequence[GenerationRequest]) -> None:
        """Let these be read from the next step on."""
        self._leave()
        for request in requests:
            draft, name = Draft(request, self._core.routing), self._name(request.id)
            # whose routes are told must find no cache entries of which none was taken down
            salt = f"{self._salt()} routed" if request.routing else self._salt()
            self._core.add(name, draft.prefix, draft.sampling(), salt)
            self._drafts[name] = draft

    def recompute(self) -> None:
        """Compute the caches of all rows anew in the next steps."""
        self._core.forget_cache()
        for draft in self._drafts.values():
            draft.cached = -1

    def clear(self) -> None:
        """Forget all rows."""
        drafts, self._drafts = self._drafts, {}
        self._core.abort(list(drafts))

    def advance(self, version: int, most: int) -> tuple[int, list[Draft]]:
        """Take up to ``most`` steps with the weights as they are, which have this version; how many, and who ended."""
        self._leave()
        ended: list[Draft] = []
        num_steps = 0
        while self._drafts and num_steps < most:
            ended += self._step(version)
            num_steps += 1
        return num_steps, ended

    def _step(self, version: int) -> list[Draft]:
        step = self._core.step(
            watch_kept=any(draft.wants_kept for draft in self._drafts.values()),
            watch_routes=any(draft.request.routing for draft in self._drafts.values()),
        )
        self._num_idle = 0 if step.made else self._num_idle + 1
        if self._num_idle > MOST_IDLE_STEPS:
            raise ModelError(
                f"every row must get on; vLLM decoded {len(self._drafts)} rows for {MOST_IDLE_STEPS} steps without a "
                "token: give it a larger engine.kv_cache_gib, or fewer engine.max_rows"
            )
        for name, routed in step.routed.items():
            if (draft := self._drafts.get(name)) is not None:
                draft.route(routed)
        for name, (start, _, _) in step.read.items():
            # From the first position on: all its entries are new. From a later one at first: others of this version
            # computed what lies before.
            if (draft := self._drafts.get(name)) is not None and (start == 0 or draft.cached < 0):
                draft.cached = version
        ended = []
        for name, made in step.made.items():
            draft = self._drafts[name]
            if not math.isfinite(made.logp):
                raise NonFiniteError(
                    f"logits must be finite; request {draft.request.id!r} has NaN or infinity at position "
                    f"{draft.count} of its completion, made by version {version}: look at the weights published last, "
                    "or lower the learning rate",
                    rollout_id=draft.request.id,
                )
            draft.take(made, version)
            if draft.is_done:
                ended.append(self._drafts.pop(name))
        return ended

    def _leave(self) -> None:
        """Let those leave for whom nobody waits any more."""
        left = [name for name, draft in self._drafts.items() if draft.has_left]
        self._core.abort(left)
        for name in left:
            del self._drafts[name]
