"""A double of the endpoints of vLLM 0.32 that the engine uses; ``tests/vllm`` asks the real one."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from .toy import Double, Row, key_of, stream

QUESTION = {
    "request_id": str,
    "model": str,
    "token_ids": list,
    "sampling_params": dict,
    "return_token_ids": bool,
    "cache_salt": str,
    "stream": bool,
}
SAMPLING = {
    "n": int,
    "temperature": (int, float),
    "top_k": int,
    "top_p": (int, float),
    "min_p": (int, float),
    "presence_penalty": (int, float),
    "frequency_penalty": (int, float),
    "repetition_penalty": (int, float),
    "seed": int,
    "max_tokens": int,
    "min_tokens": int,
    "stop_token_ids": list,
    "ignore_eos": bool,
    "logprobs": int,
    "detokenize": bool,
}


class VllmDouble(Double):
    """The server. ``twist`` may change a message before it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.config = {
            "model_config": {
                "logprobs_mode": "processed_logprobs",
                "dtype": "torch.float32",
                "return_sampling_mask": True,
            },
            "device_config": {"device_type": "cuda"},
            "parallel_config": {"worker_extension_cls": ""},
        }
        self.twist: Any = lambda message: message
        self.mode = ""
        self.dropped: list[str] = []
        self.cached_salts: set[str] = set()

    def app(self) -> web.Application:
        """Its endpoints."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/health", self.health),
                web.get("/server_info", self.server_info),
                web.get("/v1/models", self.models),
                web.get("/weight_info", self.weight_info),
                web.post("/inference/v1/generate", self.generate),
                web.post("/inference/v1/abort_requests", self.abort_requests),
                web.post("/pause", self.pause),
                web.post("/resume", self.resume),
                web.post("/collective_rpc", self.collective_rpc),
                web.post("/reset_prefix_cache", self.reset_prefix_cache),
                web.post("/update_weight_version", self.update_weight_version),
            ]
        )
        return app

    async def health(self, request: web.Request) -> web.StreamResponse:
        return await self.fault("/health", request) or web.Response()

    async def server_info(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"vllm_config": self.config})

    async def models(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": "toy", "max_model_len": 512}]})

    async def weight_info(self, request: web.Request) -> web.StreamResponse:
        return await self.fault("/weight_info", request) or web.json_response({"weight_version": self.label})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        if (fault := await self.fault("/inference/v1/generate", request)) is not None:
            return fault
        body = await request.json()
        self.bodies.append(body)
        self.check(body, QUESTION, "/inference/v1/generate")
        self.check(body["sampling_params"], SAMPLING, "sampling_params")
        sampling = body["sampling_params"]
        row = Row(body["request_id"], body["token_ids"], sampling, sampling["max_tokens"])
        return await stream(request, self.messages(row))

    async def messages(self, row: Row) -> Any:
        before = 0
        async for _ in self.sampled(row):
            yield self.twist(self.message(row, before))
            before = len(row.ids)

    def message(self, row: Row, first: int) -> dict[str, Any]:
        content = []
        for told, id in zip(row.told[first:], row.ids[first:], strict=True):
            others = [(value, other) for value, other in told["top"] if other != id]
            tops = [(told["real"], id), *others][: max(row.sampling["logprobs"], 1)]
            listed = [{"token_id": other, "logprob": value, "rank": 1} for value, other in tops]
            content.append({"token_id": id, "logprob": told["real"], "rank": 1, "top_logprobs": listed})
        choice = {
            "index": 0,
            "finish_reason": row.finish,
            "stop_reason": None,
            "token_ids": row.ids[first:],
            "routed_experts": None,
            "sampling_mask": [told["kept"] for told in row.told[first:]] if row.sampling["top_k"] > 0 else None,
            "weight_versions": row.spans() if row.finish else None,
            "logprobs": {"content": content},
        }
        told = {"request_id": f"generate-tokens-{row.name}", "usage": None, "choices": [choice]}
        return {**told, "prompt_token_ids": row.prompt} if first == 0 else told

    async def abort_requests(self, request: web.Request) -> web.StreamResponse:
        self.dropped += (await request.json())["request_ids"]
        return web.Response()

    async def pause(self, request: web.Request) -> web.StreamResponse:
        if (fault := await self.fault("/pause", request)) is not None:
            return fault
        self.mode, self.is_paused = request.query["mode"], True
        self.waits_at = None
        if self.mode == "abort":
            self.is_aborting = True
            await asyncio.sleep(0.02)
            self.is_aborting = False
        return web.json_response({"status": "paused"})

    async def resume(self, request: web.Request) -> web.StreamResponse:
        if (fault := await self.fault("/resume", request)) is not None:
            return fault
        self.is_paused = False
        return web.json_response({"status": "resumed"})

    async def collective_rpc(self, request: web.Request) -> web.StreamResponse:
        if (fault := await self.fault("/collective_rpc", request)) is not None:
            return fault
        body = await request.json()
        if not self.is_paused:
            return self.complain("weights are reloaded while generation is paused")
        if body["method"] != "reload_weights":
            return self.complain(f"no method {body['method']}")
        self.key = key_of(body["kwargs"]["weights_path"])
        return web.json_response({"results": [None]})

    async def reset_prefix_cache(self, request: web.Request) -> web.StreamResponse:
        if (fault := await self.fault("/reset_prefix_cache", request)) is not None:
            return fault
        if self.mode == "keep" and request.query.get("reset_running_requests") != "true" and self.rows:
            return web.json_response({"success": False})
        return web.json_response({"success": True})

    async def update_weight_version(self, request: web.Request) -> web.StreamResponse:
        if not self.is_paused:
            return self.complain("labels change while generation is paused")
        self.label = (await request.json())["new_version"]
        return web.json_response({"success": True, "new_version": self.label})
