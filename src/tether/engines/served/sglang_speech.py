"""SGLang's server, as it is spoken to: its native endpoints, by their documentation and source (0.5.23).

Written against the protocol and tested against a double of it; no SGLang was run.

``/generate`` takes ``input_ids`` and gives ``output_ids`` with ``[log-prob, id, text]`` of each in ``meta_info``. A
stream repeats everything so far in each message, or gives what is new if the server was started with
``--incremental-streaming-output``; ``completion_tokens`` tells which. Log-probs are of ``softmax(logits / T)``
over all ids, before truncation; a server with ``SGLANG_RETURN_ORIGINAL_LOGPROB`` in its environment leaves out the
temperature, and is told apart at the start. What a truncated sample was drawn from comes by ``return_sampling_mask``,
for a finite top-k: kept ids, and log-probs renormalized over them, which are the ones used then.

``/pause_generation`` freezes requests with their cache (``in_place``) or back in the queue without (``retract``), or
returns them as they are (``abort``); ``/update_weights_from_disk`` reads a folder and sets the label from which
``weight_versions`` tells spans; ``/continue_generation`` goes on. Cached prefixes are told apart by ``extra_key``.

Tensors could also travel without a file (``/update_weights_from_distributed``), an adapter by ``/load_lora_adapter``:
each is another ``take``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tether.engines.served.client import Client, ServerAnswerError, ServerGoneError
from tether.engines.served.piece import Piece, Span, seed_of
from tether.ports import EngineCapabilities, GenerationRequest, InFlight

_ALL: Final = -1
"""Top-k that keeps all ids."""
_PAUSES: Final[Mapping[InFlight, str]] = {
    "finish": "retract",
    "keep": "in_place",
    "recompute": "retract",
    "restart": "abort",
}


class SglangSpeech:
    """Speaks to a SGLang server.

    Args:
        client: asks it.
        capabilities: what it can do.
        eos_ids: ids that end a completion.
    """

    def __init__(self, client: Client, capabilities: EngineCapabilities, eos_ids: tuple[int, ...]) -> None:
        self.capabilities = capabilities
        self._client, self._eos_ids = client, list(eos_ids)

    def question(self, request: GenerationRequest, name: str, salt: str) -> tuple[str, Mapping[str, Any]]:
        """Everything that shapes the distribution is said: the server's defaults are those of the model's files."""
        made, cut = request.so_far, request.truncation
        sampling = {
            "n": 1,
            "max_new_tokens": request.max_tokens - (0 if made is None else len(made)),
            "min_new_tokens": 0,
            "temperature": request.temperature,
            "top_k": cut.top_k or (1 if request.temperature == 0 and not cut.is_none else _ALL),
            "top_p": cut.top_p,
            "min_p": cut.min_p,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "stop_token_ids": self._eos_ids,
            "ignore_eos": False,  # it would not stop at stop_token_ids either
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "sampling_seed": seed_of(request, 31),
        }
        return "/generate", {
            "rid": name,
            "input_ids": [*request.prompt_ids, *([] if made is None else made.token_ids.tolist())],
            "sampling_params": sampling,
            "return_logprob": True,
            "logprob_start_len": -1,
            "top_logprobs_num": request.alternatives,
            "return_text_in_logprobs": False,
            "extra_key": salt,
            "stream": True,
            **({} if cut.is_none else {"return_sampling_mask": True}),
        }

    def piece(self, message: Mapping[str, Any], count: int) -> Piece:
        """What is new in a message, which repeats what came before or does not."""
        told, total = message["meta_info"], message["meta_info"]["completion_tokens"]
        ids = _new(message["output_ids"] or [], count, total, "output_ids")
        pairs = _new(told.get("output_token_logprobs") or [], count, total, "output_token_logprobs")
        if [pair[1] for pair in pairs] != list(ids):
            raise ValueError(f"log-probs are of ids {[pair[1] for pair in pairs]}, tokens are {list(ids)}")
        logp, kept = [pair[0] for pair in pairs], None
        if told.get("output_token_sampling_mask") is not None:
            kept = _new(told["output_token_sampling_mask"], count, total, "output_token_sampling_mask")
            logp = list(_new(told["output_token_sampling_logprobs"], count, total, "output_token_sampling_logprobs"))
        tops = told.get("output_top_logprobs")
        alternatives = None
        if tops:
            new = _new(tops, count, total, "output_top_logprobs")
            alternatives = [[(top[1], top[0]) for top in row] for row in new]
        reason = told.get("finish_reason")
        return Piece(
            ids,
            logp,
            alternatives,
            kept,
            None,
            None if reason is None else reason["type"],
            _spans(told) if reason is not None else None,
        )

    async def drop(self, name: str) -> None:
        """By its own name."""
        await self._client.post("/abort_request", {"rid": name, "abort_all": False})

    async def hold(self, way: InFlight) -> None:
        """Pause."""
        await self._client.post("/pause_generation", {"mode": _PAUSES[way]})

    async def take(self, folder: Path, label: str, way: InFlight) -> None:
        """Read a folder and set the label; caches go, unless requests that are frozen need theirs."""
        order = {
            "model_path": str(folder),
            "load_format": "safetensors",
            "weight_version": label,
            "flush_cache": way != "keep",
            "abort_all_requests": False,
        }
        answer = await self._client.post("/update_weights_from_disk", order)
        if not isinstance(answer, dict) or answer.get("success") is not True:
            raise ServerAnswerError(f"{self._client.url} did not take the weights: {answer}")
        answer = await self._client.get("/model_info")
        if answer.get("weight_version") != label:
            raise ServerAnswerError(f"{self._client.url} did not take the label {label}: {answer}")

    async def go_on(self) -> None:
        """Continue."""
        await self._client.post("/continue_generation", {})

    async def is_alive(self) -> bool:
        """By its own word."""
        try:
            await self._client.get("/health")
        except (ServerAnswerError, ServerGoneError):
            return False
        return True


def _new(found: Sequence[Any], count: int, total: int, name: str) -> Sequence[Any]:
    """The entries after the first ``count`` of ``total``, of a list that has all of them or only these.

    >>> _new([7, 8, 9], 1, 3, "ids"), _new([8, 9], 1, 3, "ids")
    ([8, 9], [8, 9])
    """
    if len(found) == total:
        return found[count:]
    if len(found) == total - count:
        return found
    raise ValueError(f"{name} has {len(found)} entries; {total} tokens came in all, {count} before")


def _spans(told: Mapping[str, Any]) -> list[Span] | None:
    """Which label each token has; ``None`` from a server that knows but one label for the whole."""
    if (spans := told.get("weight_versions")) is None:
        return None
    return [Span(span["version"], span["start"], span["end"]) for span in spans if span["end"] > span["start"]]
