"""Any server that completes token ids in OpenAI's way, as it is spoken to.

``/v1/completions`` with the prompt as ids, and with ``return_token_ids``, without which ids would come back as text. It
tells no versions: weights change only while nothing is under way, and where the server has an address for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tether.engines.served.client import Client, ServerAnswerError, ServerGoneError
from tether.engines.served.piece import Piece, seed_of
from tether.errors import ConfigError
from tether.ports import EngineCapabilities, GenerationRequest, InFlight


class OpenaiSpeech:
    """Speaks to such a server.

    Args:
        client: asks it.
        capabilities: what it can do.
        model: the name that it serves the model by.
        eos_ids: ids that end a completion.
        reload: asked with a folder and a version to take weights; ``None`` if the server takes none.
    """

    def __init__(
        self,
        client: Client,
        capabilities: EngineCapabilities,
        *,
        model: str,
        eos_ids: tuple[int, ...],
        reload: Client | None,
    ) -> None:
        self.capabilities = capabilities
        self._client, self._model, self._eos_ids, self._reload = client, model, list(eos_ids), reload
        self._has_taken = False

    def question(self, request: GenerationRequest, name: str, salt: str) -> tuple[str, Mapping[str, Any]]:
        """What is no part of OpenAI's form is said where it is needed, and a server that does not know it refuses."""
        made, cut = request.so_far, request.truncation
        return "/v1/completions", {
            "model": self._model,
            "prompt": [*request.prompt_ids, *([] if made is None else made.token_ids.tolist())],
            "max_tokens": request.max_tokens - (0 if made is None else len(made)),
            "temperature": request.temperature,
            "top_p": cut.top_p,
            **({"top_k": cut.top_k} if cut.top_k else {}),
            **({"min_p": cut.min_p} if cut.min_p else {}),
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "seed": seed_of(request, 31),
            "stop_token_ids": self._eos_ids,
            "logprobs": 0,
            "echo": False,
            "n": 1,
            "stream": True,
            "return_token_ids": True,
        }

    def piece(self, message: Mapping[str, Any], count: int) -> Piece:
        """Ids and log-probs of a message."""
        if not message["choices"]:
            return Piece((), ())
        choice = message["choices"][0]
        ids = choice["token_ids"] or []
        logp = (choice["logprobs"] or {}).get("token_logprobs") or []
        return Piece(ids, logp, prompt_ids=choice.get("prompt_token_ids"), finish=choice["finish_reason"])

    async def drop(self, name: str) -> None:
        """Nothing: hanging up ends it."""

    async def hold(self, way: InFlight) -> None:
        """Nothing: nothing is under way. A second version is refused where the server takes none."""
        if self._reload is None and self._has_taken:
            raise ConfigError(
                f"the server at {self._client.url} serves the weights that it has, for nobody said how it takes "
                "others; set engine.reload_url to train with it"
            )

    async def take(self, folder: Path, label: str, way: InFlight) -> None:
        """Have the server read a folder; where it takes none, what it serves is the first version."""
        if self._reload is not None:
            await self._reload.post("", {"weights_path": str(folder), "version": label})
        self._has_taken = True

    async def go_on(self) -> None:
        """Nothing: it was never held."""

    async def is_alive(self) -> bool:
        """Whether it tells its models."""
        try:
            await self._client.get("/v1/models")
        except (ServerAnswerError, ServerGoneError):
            return False
        return True
