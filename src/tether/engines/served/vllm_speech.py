"""vLLM's server, as it is spoken to.

Ids go in and out through ``/inference/v1/generate``, the endpoint without text: it gives each token's id beside its
log-prob, the ids that it took for the prompt, what a token was sampled among, and which label the weights had that made
it. ``/v1/completions`` can be made to return ids, but has neither labels nor kept sets, and writes tokens as text.

Weights are changed while generation is paused (``/pause``, ``/resume``); the label changes only then, so spans of
labels are exact: the engine stamps what a step gave with the label that it had. ``keep`` freezes what is under way with
its cache. After it, ``/reset_prefix_cache`` with ``reset_running_requests`` drops the caches of all that is frozen,
which is ``recompute``. Prefixes are salted by version, so that no completion begins on keys of older weights.

Tensors could also travel without a file, by vLLM's weight transfer (``/init_weight_transfer_engine``,
``/start_weight_update``, ``/update_weights``, ``/finish_weight_update``): that is another ``take``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tether.engines.served.client import Client, ServerAnswerError, ServerGoneError
from tether.engines.served.piece import Piece, Span, seed_of
from tether.ports import EngineCapabilities, GenerationRequest, InFlight

_GENERATE: Final = "/inference/v1/generate"
_PAUSES: Final[Mapping[InFlight, str]] = {"finish": "wait", "keep": "keep", "recompute": "keep", "restart": "abort"}


class VllmSpeech:
    """Speaks to a vLLM server that was started with ``VLLM_SERVER_DEV_MODE=1`` and ``--enable-scale-out``.

    Args:
        client: asks it.
        capabilities: what it can do.
        model: the name that it serves the model by.
        eos_ids: ids that end a completion.
        reload: the workers' method that reads weights from a folder.
    """

    def __init__(
        self,
        client: Client,
        capabilities: EngineCapabilities,
        *,
        model: str,
        eos_ids: tuple[int, ...],
        reload: str = "reload_weights",
    ) -> None:
        self.capabilities = capabilities
        self._client, self._model, self._eos_ids, self._reload = client, model, list(eos_ids), reload

    def question(self, request: GenerationRequest, name: str, salt: str) -> tuple[str, Mapping[str, Any]]:
        """Everything that shapes the distribution is said, so that no default of the server's counts."""
        made, cut = request.so_far, request.truncation
        sampling = {
            "n": 1,
            "temperature": request.temperature,
            "top_k": cut.top_k,
            "top_p": cut.top_p,
            "min_p": cut.min_p,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "seed": seed_of(request, 63),
            "max_tokens": request.max_tokens - (0 if made is None else len(made)),
            "min_tokens": 0,
            "stop_token_ids": self._eos_ids,
            "ignore_eos": True,  # what ends a completion is said above, and nothing else does
            "logprobs": request.alternatives + 1 if request.alternatives else 0,  # the sampled one counts too
            "detokenize": False,
        }
        return _GENERATE, {
            "request_id": name,
            "model": self._model,
            "token_ids": [*request.prompt_ids, *([] if made is None else made.token_ids.tolist())],
            "sampling_params": sampling,
            "return_token_ids": True,
            "cache_salt": salt,
            "stream": True,
        }

    def piece(self, message: Mapping[str, Any], count: int) -> Piece:
        """One step's tokens; labels come with the last."""
        choices = message["choices"]
        if not choices:
            return Piece((), ())
        choice = choices[0]
        ids = choice["token_ids"] or []
        told = (choice["logprobs"] or {}).get("content") or []
        if [entry["token_id"] for entry in told] != ids:
            raise ValueError(f"log-probs are of ids {[entry['token_id'] for entry in told]}, tokens are {ids}")
        spans = choice["weight_versions"]
        return Piece(
            ids,
            [entry["logprob"] for entry in told],
            [[(top["token_id"], top["logprob"]) for top in entry["top_logprobs"]] for entry in told],
            choice["sampling_mask"],
            message.get("prompt_token_ids"),
            choice["finish_reason"],
            None if spans is None else [Span(span["version"], span["start"], span["end"]) for span in spans],
        )

    async def drop(self, name: str) -> None:
        """By the name that the server gave it."""
        await self._client.post("/inference/v1/abort_requests", {"request_ids": [f"generate-tokens-{name}"]})

    async def hold(self, way: InFlight) -> None:
        """Pause, and leave the caches for ``take`` to drop."""
        await self._client.post(f"/pause?mode={_PAUSES[way]}&clear_cache=false")

    async def take(self, folder: Path, label: str, way: InFlight) -> None:
        """Reload in place, drop caches, set the label, and see that it is set."""
        order = {"method": self._reload, "kwargs": {"weights_path": str(folder)}}
        answer = await self._client.post("/collective_rpc", order)
        if any(result is not None for result in answer["results"]):
            raise ServerAnswerError(f"{self._client.url} did not reload weights: {answer}")
        if way != "keep":
            answer = await self._client.post("/reset_prefix_cache?reset_running_requests=true")
            if answer.get("success") is not True:
                raise ServerAnswerError(f"{self._client.url} did not drop its caches: {answer}")
        await self._client.post("/update_weight_version", {"new_version": label})
        answer = await self._client.get("/weight_info")
        if answer.get("weight_version") != label:
            raise ServerAnswerError(f"{self._client.url} did not take the label {label}: {answer}")

    async def go_on(self) -> None:
        """Resume."""
        await self._client.post("/resume")

    async def is_alive(self) -> bool:
        """By its own word."""
        try:
            await self._client.get("/health")
        except (ServerAnswerError, ServerGoneError):
            return False
        return True
