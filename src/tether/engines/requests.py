"""Whether a request can be served, before any work."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tether.errors import DataError
from tether.models.routers import RoutingShape
from tether.ports import GenerationRequest
from tether.records import Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Servable:
    """What a model can be asked."""

    vocabulary: int
    context: int
    """Most positions of prompt and completion together."""
    eos_ids: tuple[int, ...]
    routing: RoutingShape | None
    """``None`` if it cannot tell routes."""

    def check(self, request: GenerationRequest) -> None:
        """Raise ``DataError`` with what is wrong."""
        name, length = f"request {request.id!r}", len(request.prompt_ids)
        if not length:
            raise DataError(f"a prompt must have at least one token; {name} has none")
        lowest, highest = min(request.prompt_ids), max(request.prompt_ids)
        if lowest < 0 or highest >= self.vocabulary:
            raise DataError(
                f"prompt ids must lie in 0 .. {self.vocabulary - 1}; {name} has {lowest} .. {highest}: "
                "encode it with the tokenizer of this model"
            )
        if request.max_tokens < 1:
            raise DataError(f"max_tokens must be at least 1; {name} asks for {request.max_tokens}")
        if length + request.max_tokens > self.context:
            raise DataError(
                f"prompt and completion must fit the context of {self.context} tokens; {name} has {length} + "
                f"{request.max_tokens}: shorten the prompt or lower engine.max_tokens"
            )
        if not (math.isfinite(request.temperature) and request.temperature >= 0):
            raise DataError(f"temperature must be finite and at least 0; {name} has {request.temperature}")
        if not 0 <= request.alternatives <= self.vocabulary:
            raise DataError(f"alternatives must lie in 0 .. {self.vocabulary}; {name} asks for {request.alternatives}")
        if request.routing and self.routing is None:
            raise DataError(
                f"routes are reported of a model that has routers of a form that is known; {name} asks for them: "
                "take a mixture of experts, or no replay"
            )
        if request.so_far is not None:
            self._check_so_far(request, request.so_far)

    def _check_so_far(self, request: GenerationRequest, made: Completion) -> None:
        name, count = f"request {request.id!r}", len(made)
        if count >= request.max_tokens:
            raise DataError(
                f"a completion goes on up to max_tokens; {name} has {count} tokens of {request.max_tokens} already: "
                "take it as it is"
            )
        if made.finish != "interrupted" or (count and int(made.token_ids[-1]) in self.eos_ids):
            raise DataError(
                f"only a completion that was interrupted goes on; that of {name} has ended ({made.finish}): "
                "take it as it is"
            )
        if count and not 0 <= int(made.token_ids.min()) <= int(made.token_ids.max()) < self.vocabulary:
            raise DataError(
                f"sampled ids must lie in 0 .. {self.vocabulary - 1}; {name} goes on from {int(made.token_ids.min())} "
                f".. {int(made.token_ids.max())}: go on with the model that began it"
            )
        if made.kept is not None and len(ids := made.kept.ids):
            lowest, highest = int(ids.min()), int(ids.max())
            if not 0 <= lowest <= highest < self.vocabulary:
                raise DataError(
                    f"kept ids must lie in 0 .. {self.vocabulary - 1}; {name} goes on from {lowest} .. {highest}: go "
                    "on with the model that began it"
                )
        alternatives = 0 if made.top_k_ids is None else made.top_k_ids.shape[1]
        if count and alternatives < request.alternatives:
            raise DataError(
                f"a completion goes on with as many alternatives as it began with; {name} asks for "
                f"{request.alternatives} and goes on from {alternatives}: ask for no more"
            )
        if not request.routing or made.experts is None or self.routing is None:
            return
        wanted = (len(request.prompt_ids) + count, self.routing.num_layers, self.routing.k)
        if made.experts.shape != wanted:
            raise DataError(
                f"routes of a completion to go on with must be {list(wanted)}; {name} has "
                f"{list(made.experts.shape)}: go on with the model that began it"
            )
