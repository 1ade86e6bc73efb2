"""A model's engine against its trainer at equal weights, apart from any run: what ``tether probe`` measures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from tether.config.bind import plugin
from tether.config.evaluate import locate, with_options
from tether.config.parts import device_of, prompts_of
from tether.engines.torch import Torch
from tether.errors import ConfigError, ModelError, NonFiniteError
from tether.models.catalog import EMBEDDED
from tether.models.loading import LoadedModel, load_model
from tether.models.policy import Policy
from tether.pipeline.mismatch import Comparison, Rerouting, compare, rerouting_of
from tether.pipeline.packing import known_entropy
from tether.pipeline.rollouts import Sampling, ask
from tether.pipeline.scoring import Logps, Scorer
from tether.placement.inline import FreeClock
from tether.ports import RolloutEngine
from tether.records import Experts, Floats, Prompt, Rollout
from tether.registry import TASKS
from tether.replay.routing import Routing
from tether.weights.memory import MemoryStore

DTYPES: Final = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp32": "float32", "float32": "float32"}
"""Names of an engine's number formats, short and in full."""
CHAT_TASK: Final = "sums"
"""What a model that has a chat template is asked, unless it is said otherwise."""
LOT: Final = 128
"""About so many responses are sampled, and scored, between two reports of progress."""
TOKEN_BUDGET: Final = 16384
"""Padded tokens of one forward pass of the trainer."""
MOST_RESPONSES: Final = 10**6

Told = Callable[[str, int, int], None]
"""Hears what is being done, how many responses of it are done, and of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """What to probe, and how."""

    source: str
    """A model by embedded name, folder or hub name; or a run directory, for its final model."""
    engine_dtype: str | None = None
    """The run's own, or bfloat16, if not given."""
    replay: str | None = None
    """``routing`` asks for a replay and refuses a model that has no routes; without it a mixture is replayed too."""
    task_name: str | None = None
    """The run's own, or what the model was made for, if not given."""
    options: tuple[str, ...] = ()
    """Settings ``task.KEY=VALUE`` on top of the task's options."""
    prompts: int = 64
    completions: int = 4
    """Of each prompt."""
    max_tokens: int | None = None
    """Of a completion; the run's own, or 32, if not given."""
    temperature: float | None = None
    """The run's own, or 1, if not given."""
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.engine_dtype is not None and self.engine_dtype not in DTYPES:
            raise ConfigError(f"the engine's dtype must be one of {', '.join(DTYPES)}; got {self.engine_dtype!r}")
        if self.replay not in (None, "routing"):
            raise ConfigError(f"a probe replays 'routing' and nothing else; got {self.replay!r}")
        for name in ("prompts", "completions", "max_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"a probe needs at least 1 for {name}; got {value}; leave it out for the default")
        if self.prompts * self.completions > MOST_RESPONSES:
            raise ConfigError(
                f"a probe takes at most {MOST_RESPONSES} responses, prompts times completions; got "
                f"{self.prompts} x {self.completions}: take fewer"
            )
        if self.temperature is not None and not 1e-6 <= self.temperature <= 1e3:
            raise ConfigError(
                f"the temperature of a probe must lie in 1e-6 .. 1e3, since greedy tokens come from no distribution; "
                f"got {self.temperature}: take 1, or what the run will sample with"
            )
        if self.seed < 0:
            raise ConfigError(f"a seed must be at least 0; got {self.seed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What a probe found; token arrays are ``[T]``, one response after the other."""

    about: dict[str, Any]
    """Model, task and settings, as they were used."""
    without: Comparison
    """The trainer routes by itself."""
    replayed: Comparison | None
    """The trainer takes the engine's routes; ``None`` where there are none to take."""
    rerouting: Rerouting | None
    no_replay_because: str
    """Why there is no replay; empty if there is one."""
    logp_behavior: Floats
    entropy: Floats | None
    """``None`` where the engine cannot tell."""
    d: Floats
    """Without a replay."""
    d_replayed: Floats | None

    def numbers(self) -> dict[str, Any]:
        """Everything, as plain values for JSON."""
        routes, replayed = self.rerouting, self.replayed
        kept = ("logp_behavior", "entropy", "d", "d_replayed")
        tokens = {name: values.tolist() for name in kept if (values := getattr(self, name)) is not None}
        shares: dict[str, float] | None = None
        if routes is not None:
            shares = {name: getattr(routes, name) for name in ("pair_share", "token_share", "earlier_share")}
            tokens |= {"rerouted_here": routes.here.tolist(), "rerouted_earlier": routes.earlier.tolist()}
        return {
            **self.about,
            "without_replay": asdict(self.without),
            "with_replay": None if replayed is None else asdict(replayed),
            "rerouted": shares,
            "no_replay_because": self.no_replay_because,
            "per_token": tokens,
        }


def probe(settings: ProbeSettings, told: Told = lambda what, done, total: None) -> Probed:
    """Sample with the embedded engine, compute the same tokens as the trainer does, and compare.

    The trainer's model is published to the engine through a store, as in a run, and the trainer then takes what the
    store holds: the weights rounded to the engine's format, which it computes with in float32. So both sides have the
    same weights to the last bit, and what is measured is the engine's arithmetic: number format, kernels, cache,
    padding. In a run the trainer keeps its float32 weights, and their rounding comes on top.
    """
    model, config = locate(settings.source)
    ran = config.get("engine", {})
    device, dtype = device_of(settings.device), DTYPES[settings.engine_dtype or ran.get("dtype", "bfloat16")]
    max_tokens = settings.max_tokens or int(ran.get("max_tokens", 32))
    temperature = settings.temperature or float(ran.get("temperature", 1.0))
    loaded = load_model(model, device=device)
    table = with_options(_task_table(settings, config, loaded), settings.options)
    policy = Policy(loaded)
    routing, because = _routing(settings, policy)
    source = prompts_of((table["name"], plugin(TASKS, table, "task")), loaded, max_tokens, "train", settings.seed)
    prompts = [source(index) for index in range(settings.prompts)]
    engine = _engine_with(model, Torch(dtype=dtype, max_tokens=max_tokens), loaded, device)
    sampling = Sampling(
        seed=settings.seed,
        group_size=settings.completions,
        temperature=temperature,
        max_tokens=max_tokens,
        routing=routing is not None,
    )
    rollouts = list(_sampled(engine, prompts, sampling, told))
    scorer = Scorer(policy, TOKEN_BUDGET, temperature)
    without = _scored(scorer, rollouts, "computing", told)
    rerouting, replayed = None, None
    if routing is not None:
        rerouting = rerouting_of(rollouts, _own_routes(scorer, rollouts, told))
        replayed = _scored(Scorer(policy, TOKEN_BUDGET, temperature, routing), rollouts, "replaying", told)
    parts = {} if rerouting is None else rerouting.parts()
    behavior = np.concatenate([r.completion.logp for r in rollouts])
    about = {
        **{name: getattr(settings, name) for name in ("prompts", "completions", "seed")},
        **{
            "model": settings.source,
            "model_path": str(model),
            "task": table["name"],
            "engine_dtype": dtype,
            "trainer_dtype": "float32",
        },
        **{"max_tokens": max_tokens, "temperature": temperature, "device": device},
    }
    return Probed(
        about=about,
        without=compare(rollouts, without, parts),
        replayed=None if replayed is None else compare(rollouts, replayed, parts),
        rerouting=rerouting,
        no_replay_because=because,
        logp_behavior=behavior,
        entropy=known_entropy([r.completion for r in rollouts]),
        d=without - behavior,
        d_replayed=None if replayed is None else replayed - behavior,
    )


def _task_table(settings: ProbeSettings, config: dict[str, Any], loaded: LoadedModel) -> dict[str, Any]:
    """The task that was asked for, the run's own, the one an embedded model was made for, or sums in a chat."""
    own = dict(config.get("task", {}))
    if settings.task_name is not None:
        return own if own.get("name") == settings.task_name else {"name": settings.task_name}
    if own:
        return own
    if settings.source in EMBEDDED:
        return {"name": EMBEDDED[settings.source].task}
    if getattr(loaded.tokenizer, "chat_template", None):
        return {"name": CHAT_TASK}
    raise ConfigError(
        f"a probe needs prompts that the model can read; {settings.source!r} is no embedded model and has no chat "
        f"template, so say which: --task {' or --task '.join(TASKS.names())}"
    )


def _routing(settings: ProbeSettings, policy: Policy) -> tuple[Routing | None, str]:
    """The replay, if the model has routes to replay, else the reason; an error if it was asked for."""
    try:
        policy.routers  # noqa: B018  # refused here if there are none to overrule
    except ModelError as error:
        if settings.replay is None:
            return None, policy.unroutable_because
        raise ModelError(
            f"routes are replayed in a mixture of experts whose routers can be overruled; {settings.source!r} cannot: "
            f"{policy.unroutable_because}; leave out --replay routing"
        ) from error
    return Routing(), ""


def _engine_with(source: str, options: Torch, loaded: LoadedModel, device: str) -> RolloutEngine:
    """An engine that holds the weights of ``loaded`` in its own format, which ``loaded`` then holds as well."""
    store = MemoryStore(options.dtype, keep=1)
    engine = options.open(source, store=store, clock=FreeClock(), device=device)
    publication = store.publish(0, loaded.model.state_dict())
    asyncio.run(engine.load(publication))
    loaded.model.load_state_dict(store.fetch(publication))
    return engine


def _sampled(engine: RolloutEngine, prompts: Sequence[Prompt], sampling: Sampling, told: Told) -> Iterator[Rollout]:
    total = len(prompts) * sampling.group_size
    asked = [ask(index, prompt, sampling, 0.0) for index, prompt in enumerate(prompts)]
    at_once = max(1, LOT // sampling.group_size)
    told("sampling", 0, total)
    for start in range(0, len(asked), at_once):
        lot = asked[start : start + at_once]
        pairs = [(request, group.prompt) for group in lot for request in group.requests]
        completions = asyncio.run(engine.answer([request for request, _ in pairs]))
        for (request, prompt), completion in zip(pairs, completions, strict=True):
            yield Rollout(
                id=request.id, prompt=prompt, completion=completion, text="", reward=0.0, started_s=0.0, finished_s=0.0
            )
        told("sampling", min(total, (start + at_once) * sampling.group_size), total)


def _scored(scorer: Scorer, rollouts: Sequence[Rollout], what: str, told: Told) -> Logps:
    logp: Logps = np.concatenate([scorer(lot) for lot in _lots(rollouts, what, told)])
    if not np.isfinite(logp).all():
        raise NonFiniteError(
            f"log-probs of the trainer must be finite to be compared; {int((~np.isfinite(logp)).sum())} of {len(logp)} "
            "are not: look at the model's weights"
        )
    return logp


def _own_routes(scorer: Scorer, rollouts: Sequence[Rollout], told: Told) -> dict[str, Experts]:
    return {name: own for lot in _lots(rollouts, "routing", told) for name, own in scorer.own_routes(lot).items()}


def _lots(rollouts: Sequence[Rollout], what: str, told: Told) -> Iterator[Sequence[Rollout]]:
    """Some rollouts after the others; progress is told as each lot has been used."""
    for start in range(0, len(rollouts), LOT):
        told(what, start, len(rollouts))
        yield rollouts[start : start + LOT]
    told(what, len(rollouts), len(rollouts))
