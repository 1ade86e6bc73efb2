"""A double of SGLang's native protocol (0.5.23, from its documentation and source): it checks every request, the order
of pause, update and continue among them, and behaves as is written there. What it cannot stand for: kernels, batching,
speed."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from .toy import Double, Row, key_of, stream

TOP_K_ALL = -1
QUESTION = {
    "rid": str,
    "input_ids": list,
    "sampling_params": dict,
    "return_logprob": bool,
    "logprob_start_len": int,
    "top_logprobs_num": int,
    "return_text_in_logprobs": bool,
    "return_sampling_mask": bool,
    "extra_key": str,
    "stream": bool,
}
SAMPLING = {
    "n": int,
    "max_new_tokens": int,
    "min_new_tokens": int,
    "temperature": (int, float),
    "top_k": int,
    "top_p": (int, float),
    "min_p": (int, float),
    "frequency_penalty": (int, float),
    "presence_penalty": (int, float),
    "repetition_penalty": (int, float),
    "stop_token_ids": list,
    "ignore_eos": bool,
    "no_stop_trim": bool,
    "skip_special_tokens": bool,
    "sampling_seed": int,
}
UPDATE = {
    "model_path": str,
    "load_format": str,
    "weight_version": str,
    "flush_cache": bool,
    "abort_all_requests": bool,
}


class SglangDouble(Double):
    """The server. ``is_incremental``: started with ``--incremental-streaming-output``. ``has_spans``: tells them."""

    def __init__(self, *, is_incremental: bool = False, has_spans: bool = True, is_raw: bool = False) -> None:
        super().__init__()
        self.is_incremental, self.has_spans, self.is_raw = is_incremental, has_spans, is_raw
        self.mode = ""
        self.dropped: list[str] = []
        self.salts: list[str] = []

    def app(self) -> web.Application:
        """Its endpoints."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/health", self.health),
                web.get("/server_info", self.server_info),
                web.get("/model_info", self.model_info),
                web.post("/generate", self.generate),
                web.post("/abort_request", self.abort_request),
                web.post("/pause_generation", self.pause),
                web.post("/continue_generation", self.go_on),
                web.post("/update_weights_from_disk", self.update),
            ]
        )
        return app

    async def health(self, request: web.Request) -> web.StreamResponse:
        return await self.fault("/health", request) or web.Response()

    async def server_info(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"dtype": "float32", "context_length": 512, "weight_version": self.label})

    async def model_info(self, request: web.Request) -> web.StreamResponse:
        return await self.fault("/model_info", request) or web.json_response({"weight_version": self.label})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        if (fault := await self.fault("/generate", request)) is not None:
            return fault
        body = await request.json()
        self.bodies.append(body)
        self.check(body, QUESTION, "/generate")
        sampling = body["sampling_params"]
        self.check(sampling, SAMPLING, "sampling_params")
        if sampling.get("ignore_eos"):
            return self.complain("ignore_eos switches stop_token_ids off")
        if body.get("return_sampling_mask") and sampling["top_k"] == TOP_K_ALL:
            return self.complain("return_sampling_mask needs a finite top_k")
        if body.get("return_sampling_mask") and sampling["temperature"] == 0 and sampling["top_k"] != 1:
            return self.complain("return_sampling_mask requires top_k=1 for greedy sampling")
        self.salts.append(body.get("extra_key", ""))
        row = Row(body.get("rid", ""), body["input_ids"], sampling, sampling["max_new_tokens"])
        if not body.get("stream"):
            async for _ in self.sampled(row):
                pass
            return web.json_response(self.message(row, 0, body))
        return await stream(request, self.messages(row, body))

    async def messages(self, row: Row, body: dict[str, Any]) -> Any:
        before = 0
        async for _ in self.sampled(row):
            yield self.message(row, before if self.is_incremental else 0, body)
            before = len(row.ids)

    def message(self, row: Row, first: int, body: dict[str, Any]) -> dict[str, Any]:
        told = row.told[first:]
        meta: dict[str, Any] = {
            "id": row.name,
            "finish_reason": None,
            "prompt_tokens": len(row.prompt),
            "completion_tokens": len(row.ids),
            "weight_version": self.label,
            "output_token_logprobs": [[t["tempered"], id, None] for t, id in zip(told, row.ids[first:], strict=True)],
        }
        if self.has_spans:
            meta["weight_versions"] = row.spans()
        if count := body.get("top_logprobs_num"):
            meta["output_top_logprobs"] = [[[value, id, None] for value, id in t["top"][:count]] for t in told]
        if body.get("return_sampling_mask"):
            meta["output_token_sampling_mask"] = [t["kept"] for t in told]
            meta["output_token_sampling_logprobs"] = [t["real"] for t in told]
        if row.finish == "stop":
            meta["finish_reason"] = {"type": "stop", "matched": row.ids[-1]}
        elif row.finish == "length":
            meta["finish_reason"] = {"type": "length", "length": len(row.ids)}
        elif row.finish == "abort":
            meta["finish_reason"] = {"type": "abort", "message": "Abort in waiting queue"}
        return {"text": "", "output_ids": row.ids[first:], "meta_info": meta}

    async def abort_request(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.check(body, {"rid": str, "abort_all": bool}, "/abort_request")
        self.dropped.append(body["rid"])
        return web.Response()

    async def pause(self, request: web.Request) -> web.StreamResponse:
        if (fault := await self.fault("/pause_generation", request)) is not None:
            return fault
        body = await request.json()
        self.check(body, {"mode": str}, "/pause_generation")
        if body["mode"] not in ("abort", "retract", "in_place"):
            return self.complain(f"no mode {body['mode']}")
        self.mode, self.is_paused = body["mode"], True
        self.waits_at = None
        if self.mode == "abort":
            self.is_aborting = True
            while self.rows:
                await asyncio.sleep(0.001)
            self.is_aborting = False
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def go_on(self, request: web.Request) -> web.StreamResponse:
        if (fault := await self.fault("/continue_generation", request)) is not None:
            return fault
        self.check(await request.json(), {"torch_empty_cache": bool}, "/continue_generation")
        if not self.is_paused:
            return self.complain("continue_generation without pause_generation")
        self.is_paused = False
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def update(self, request: web.Request) -> web.StreamResponse:
        if (fault := await self.fault("/update_weights_from_disk", request)) is not None:
            return fault
        body = await request.json()
        self.check(body, UPDATE, "/update_weights_from_disk")
        if not self.is_paused:
            return self.complain("weights are updated while generation is paused")
        if body["flush_cache"] and self.mode == "in_place" and self.rows:
            return self.complain("the cache cannot be flushed under requests that are paused in place")
        self.key, self.label = key_of(body["model_path"]), body["weight_version"]
        told = {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": len(self.rows)}
        return web.json_response(told)
