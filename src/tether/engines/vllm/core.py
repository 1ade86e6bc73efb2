"""vLLM's engine, opened in this process, and the few things that are asked of it. All that it keeps to itself is
touched here and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tether.engines.repacking import packed_anew
from tether.engines.room import cache_bytes
from tether.engines.vllm.experts import plain_experts
from tether.engines.vllm.kept import KeptWatch, ids_of
from tether.engines.vllm.routes import Read, Routed, has_experts, routes_of
from tether.engines.vllm.transfer import open_transfer, register_handover
from tether.engines.vllm.undisturbed import undisturbed
from tether.errors import ConfigError, ModelError
from tether.models.loading import LoadedModel
from tether.models.routers import RoutingShape
from tether.records import Ints

if TYPE_CHECKING:
    from tether.engines.vllm.options import Vllm

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""What vLLM reads: its engine in this process; threads left to the system, for pinned ones spin on cores that others
need; nobody told; only errors in the log. All but the first may be set by whoever starts the run."""


ADAPTER = 1
"""What vLLM calls the adapter."""


class Made(NamedTuple):
    """What one step made of one request."""

    id: int
    """The sampled token."""
    logp: float
    top_ids: NDArray[np.integer[Any]]
    """Most probable ids, as many as were asked for by anybody in the step."""
    top_logp: NDArray[np.floating[Any]]
    kept: Ints | None
    """What it was sampled among, where that is watched."""
    has_stopped: bool
    """Whether it is an id that ends a completion."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did."""

    made: Mapping[str, Made]
    """By request; not of those whose prompt is not read to its end."""
    read: Mapping[str, Read]
    """By request; of prompts, chunk by chunk."""
    routed: Mapping[str, Routed]
    """By request, the experts of what was read, where they are watched."""


def open_core(skeleton: LoadedModel, options: Vllm, device: str, adapter: Mapping[str, Any] | None = None) -> Core:
    """Start vLLM with a model's own weights, for an adapter if there is to be one. Random numbers of
    this process are left as they were."""
    for name, value in ENVIRONMENT.items():
        os.environ[name] = value if name.endswith("MULTIPROCESSING") else os.environ.get(name, value)
    try:
        from vllm.platforms import current_platform
    except ImportError as error:
        raise ConfigError(
            "engine 'vllm' needs the package vllm, which is not installed; pip install 'tether-rl[vllm]' where there "
            "is a GPU, or make engines, which builds an environment with the build for processors"
        ) from error
    kind = torch.device(device).type
    if current_platform.device_type != kind:
        raise ConfigError(
            f"this build of vLLM runs on {current_platform.device_type!r}, the engine was to run on {kind!r}; install "
            "the build for that device, or give the engine another device"
        )
    if current_platform.is_cpu():
        # It compiles the counting of a token's rank, which nobody reads, with a C++ compiler: 20 seconds.
        type(current_platform).simple_compile_backend = "eager"
    from vllm.config.weight_transfer import WeightTransferConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    register_handover()
    arguments = EngineArgs(
        model=skeleton.source,
        dtype=options.dtype,  # type: ignore[arg-type, unused-ignore]
        max_model_len=options.context or skeleton.context,
        max_num_seqs=options.max_rows,
        max_num_batched_tokens=max(8192, options.max_rows, options.context or skeleton.context),
        # rows have seeds, and a generator of a CPU cannot be put back, which reading a prompt in parts asks for
        enable_chunked_prefill=not current_platform.is_cpu(),
        kv_cache_memory_bytes=cache_bytes(options.kv_cache_gib, on_cpu=current_platform.is_cpu()),
        enable_prefix_caching=options.prefix_cache,
        enforce_eager=options.eager,
        distributed_executor_backend="uni",
        async_scheduling=False,
        generation_config="vllm",
        logprobs_mode="processed_logprobs",
        max_logprobs=-1,
        skip_tokenizer_init=True,
        disable_log_stats=True,
        use_tqdm_on_load=False,
        seed=0,
        weight_transfer_config=None if options.transfer == "reload" else WeightTransferConfig(backend=options.transfer),
        enable_return_routed_experts=has_experts(skeleton.model.config) and not current_platform.is_cpu(),
        return_sampling_mask=not options.truncation.is_none and not current_platform.is_cpu(),
        **(adapter or {}),
    )
    with undisturbed(), plain_experts() if current_platform.is_cpu() else nullcontext():
        with _told(skeleton, options):
            engine = LLMEngine.from_engine_args(arguments)
        return Core(engine, skeleton.eos_ids, options.transfer)


@contextmanager
def _told(skeleton: LoadedModel, options: Vllm) -> Iterator[None]:
    """Have what vLLM refuses inside told with names that a recipe has; what it advises are names of its own."""
    try:
        yield
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(
            f"vLLM must be able to open {skeleton.source} with engine.kv_cache_gib = {options.kv_cache_gib:g}, "
            f"engine.context = {options.context}, engine.max_rows = {options.max_rows}; it says: {error}; set these, "
            "or take engine.kind = 'torch'"
        ) from error


class Core:
    """A running ``LLMEngine`` whose requests are token ids, and whose answers are read before vLLM words them.

    Args:
        engine: in this process, synchronous.
        eos_ids: any of these ends a completion.
        transfer: how weights get into it.
    """

    def __init__(self, engine: Any, eos_ids: Sequence[int], transfer: str = "reload") -> None:
        self._engine, self._eos_ids = engine, list(eos_ids)
        self._client = engine.engine_core
        self._scheduler = self._client.engine_core.scheduler
        self._runner = engine.model_executor.driver_worker.model_runner
        self._is_on_cpu = self._runner.device.type == "cpu"
        self._watch = KeptWatch(self._runner)
        self._transfer = open_transfer(transfer, lambda method, *args: engine.collective_rpc(method, args=args))
        self._routes = routes_of(self._runner, is_on_cpu=self._is_on_cpu)
        self._adapter: Any = None
        self._scheduled: Any = None
        self._schedule = self._scheduler.schedule
        self._scheduler.schedule = self._schedule_and_tell

    @property
    def routing(self) -> RoutingShape | None:
        """What routes look like; ``None`` where they cannot be told."""
        return None if self._routes is None else self._routes.shape

    def add(self, name: str, ids: Sequence[int], sampling: Mapping[str, Any], salt: str) -> None:
        """Let a request join the next step; what it has in common with others of its ``salt`` is computed once."""
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import SamplingParams

        # The ids are told; what vLLM reads in the model's configuration would be added to them.
        params = SamplingParams(**sampling, stop_token_ids=self._eos_ids, ignore_eos=True, detokenize=False)
        request = self._engine.input_processor.process_inputs(
            name,
            tokens_input(list(ids), cache_salt=salt),
            params,
            lora_request=self._adapter,
            supported_tasks=self._engine.get_supported_tasks(),
        )
        self._client.add_request(request)

    def abort(self, names: Sequence[str]) -> None:
        """Forget requests."""
        self._client.abort_requests(list(names))

    def step(self, *, watch_kept: bool = False, watch_routes: bool = False) -> Step:
        """One token a row."""
        watch = nullcontext() if self._routes is None else self._routes.on(watch_routes)
        with undisturbed(), self._watch.on(watch_kept), watch:
            outputs = self._client.get_output().outputs
        made = {}
        for out in outputs:
            if not out.new_token_ids:
                continue
            (token,) = out.new_token_ids
            ids, logp = out.new_logprobs.logprob_token_ids[0], out.new_logprobs.logprobs[0]
            if int(ids[0]) != token:
                raise ModelError(
                    f"the log-prob of a token must be that token's; vLLM sampled {token} of request "
                    f"{out.request_id!r} and reports id {int(ids[0])}: use a version of vLLM that was tested"
                )
            kept = None
            if watch_kept:
                kept = self._watch.of(out.request_id) if out.new_sampling_mask is None else ids_of(out)
            made[out.request_id] = Made(token, float(logp[0]), ids[1:], logp[1:], kept, self._has_stopped(out))
        read = self._read()
        routed = self._routes.of(outputs, read) if watch_routes and self._routes is not None else {}
        return Step(made, read, routed)

    def reload(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Replace all weights in place, under their names in files; vLLM lays them out anew."""
        with undisturbed(), packed_anew(self._runner.get_model()) if self._is_on_cpu else nullcontext():
            if self._transfer is None:
                self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
            else:
                self._transfer.send(dict(weights))

    def replace_adapter(self, folder: Path) -> None:
        """Have rows go through the adapter in a peft folder from the next step on, those under way too.

        It is one adapter to vLLM, loaded in place, so that a row never asks for one that is gone.
        """
        from vllm.lora.request import LoRARequest

        known = {"lora_name": "tether", "lora_int_id": ADAPTER, "lora_path": str(folder)}
        self._engine.add_lora(LoRARequest(**known, load_inplace=True))
        if (held := self._engine.list_loras()) != {ADAPTER}:
            raise ModelError(f"vLLM must hold the adapter that it was given and no other; it lists {sorted(held)}")
        self._adapter = LoRARequest(**known)

    def label(self, version: int) -> None:
        """Tell vLLM what its weights are called."""
        self._engine.set_weight_version(str(version))

    def forget_cache(self) -> None:
        """Let no later request find what was computed so far; where rows are under way, theirs is computed anew."""
        if not self._engine.reset_prefix_cache(reset_running_requests=True):
            raise ModelError("vLLM could not reset its prefix cache; open the engine anew")

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Steps inside are of requests that are added inside; all others keep their cache and wait."""
        from vllm.v1.core.sched.request_queue import create_request_queue

        scheduler = self._scheduler
        aside = scheduler.running, scheduler.waiting
        scheduler.running, scheduler.waiting = [], create_request_queue(scheduler.policy)
        try:
            yield
        finally:
            scheduler.running, scheduler.waiting = aside

    def _has_stopped(self, out: Any) -> bool:
        reason = None if out.finish_reason is None else str(out.finish_reason)
        if reason not in (None, "stop", "length"):
            raise ModelError(f"a request ends by itself; vLLM ended {out.request_id!r} with {reason!r}: see its log")
        return reason == "stop"

    def _schedule_and_tell(self, *args: Any, **options: Any) -> Any:
        self._scheduled = self._schedule(*args, **options)
        return self._scheduled

    def _read(self) -> dict[str, Read]:
        scheduled, self._scheduled = self._scheduled, None
        if scheduled is None:
            return {}
        again = scheduled.scheduled_cached_reqs
        starts = {r.req_id: r.num_computed_tokens for r in scheduled.scheduled_new_reqs}
        starts |= dict(zip(again.req_ids, again.num_computed_tokens, strict=True))
        new = {r.req_id for r in scheduled.scheduled_new_reqs}
        counts = scheduled.num_scheduled_tokens.items()
        return {name: Read(starts[name], starts[name] + count, name in new) for name, count in counts}
