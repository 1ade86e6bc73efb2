"""A model's engines against its trainer at equal weights, apart from any run: what ``tether probe`` measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from tether.config.bind import describe_plugin, plugin
from tether.config.located import locate
from tether.config.parts import device_of, prompts_of
from tether.config.probe_bench import Bench, Sampled, Told
from tether.config.probe_settings import ProbeSettings
from tether.config.probe_trials import Trial, tried, verdict_of
from tether.errors import ConfigError, ModelError
from tether.models.catalog import EMBEDDED
from tether.models.loading import LoadedModel, load_model
from tether.models.policy import Policy
from tether.pipeline.answers import told_of
from tether.pipeline.mismatch import Comparison, Rerouting, compare, distance_of, rerouting_of
from tether.pipeline.packing import known_entropy
from tether.pipeline.scoring import Logps
from tether.pipeline.suspicion import COARSE, SHIFTED, is_coarse, shift_of
from tether.ports import EngineCapabilities, EngineOptions
from tether.records import Floats
from tether.registry import ENGINES, TASKS

CHAT_TASK: Final = "sums"
"""What a model that has a chat template is asked, unless it is said otherwise."""
NEARER: Final = 0.5
"""Of the distance: so much nearer to raw log-probs the engine's must be to be called raw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What a probe of one engine found; token arrays are ``[T]``, one response after the other."""

    about: dict[str, Any]
    """Model, task, engine and settings, as they were used."""
    without: Comparison
    """The trainer computes by itself: its own experts, the whole vocabulary."""
    replayed: Comparison | None
    """With all that could be replayed; ``None`` where there is nothing."""
    replays: tuple[str, ...]
    """What was replayed, by the names of ``algorithm.replay``."""
    rerouting: Rerouting | None
    no_replay_because: str
    """Why routes are not replayed; empty if they are."""
    lost: float | None
    """Nats that a token's log-prob is lower over the whole vocabulary than over what the engine sampled among, in the
    mean; ``None`` where that is not known, or nothing was cut."""
    logp_behavior: Floats
    entropy: Floats | None
    """``None`` where the engine cannot tell."""
    d: Floats
    """Without a replay."""
    d_replayed: Floats | None
    faults: tuple[str, ...]
    """What is wrong with the engine's numbers, beyond being apart."""
    trials: tuple[Trial, ...]
    """Settings that may remove the mismatch, as they were tried."""

    @property
    def label(self) -> str:
        """Engine and format."""
        return f"{self.about['engine']} {self.about['engine_dtype']}"

    @property
    def verdict(self) -> str:
        """Which setting removes the mismatch; empty where none was tried."""
        return verdict_of(self.trials, self.without.all.abs_mean) if self.about["trials"] else ""

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
            "replays": list(self.replays),
            "rerouted": shares,
            "no_replay_because": self.no_replay_because,
            "lost_nats": self.lost,
            "faults": list(self.faults),
            "trials": [
                {**asdict(trial), "leaves": None if trial.distance is None else trial.leaves, "told": trial.told()}
                for trial in self.trials
            ],
            "verdict": self.verdict,
            "per_token": tokens,
        }


def probe_all(settings: ProbeSettings, told: Told = lambda what, done, total: None) -> list[Probed]:
    """Probe every engine in every format that is asked for, one after the other, with the same prompts and seeds."""
    found = locate(settings.source)
    model, config = found.model, dict(found.config)
    return [_probe(settings, model, config, options, told) for options in settings.opened(config)]


def probe(settings: ProbeSettings, told: Told = lambda what, done, total: None) -> Probed:
    """Sample with one engine, compute the same tokens as the trainer does, and compare.

    The trainer's model is published to the engine through a store, as in a run, and the trainer then takes what the
    store holds: the weights rounded to the engine's format, which it computes with in its own. So both sides have the
    same weights to the last bit, and what is measured is the engine's arithmetic: number format, kernels, cache,
    padding. In a run the trainer keeps its float32 weights, and their rounding comes on top.
    """
    (probed,) = probe_all(settings, told)
    return probed


def _probe(
    settings: ProbeSettings, model: str, config: Mapping[str, Any], options: EngineOptions, told: Told
) -> Probed:
    bench, task = _bench(settings, model, config, options, told)
    trainer_dtype = settings.trainer(config)
    _check_replay(settings, bench, options)
    sampled = bench.sample(options, settings.prompts)
    rollouts = sampled.rollouts
    replays, because = _replays(settings, bench, options, sampled)
    known: dict[tuple[str, ...], Logps] = {(): bench.score(rollouts, options, dtype=trainer_dtype)}
    rerouting = None
    if "routing" in replays:
        rerouting = rerouting_of(rollouts, bench.own_routes(rollouts, options))
    for some in dict.fromkeys((*((name,) for name in replays), replays) if replays else ()):
        known[some] = bench.score(rollouts, options, dtype=trainer_dtype, replays=some, what="replaying")
    parts = {} if rerouting is None else rerouting.parts()
    behavior = np.concatenate([r.completion.logp for r in rollouts])
    without, replayed = known[()], known[replays] if replays else None
    lost = float((known[("support",)] - without).mean(dtype=np.float64)) if ("support",) in known else None
    return Probed(
        about=_about(settings, bench, options, task=task, trainer_dtype=trainer_dtype),
        without=compare(rollouts, without, parts),
        replayed=None if replayed is None else compare(rollouts, replayed, parts),
        replays=replays,
        rerouting=rerouting,
        no_replay_because=because,
        lost=lost,
        logp_behavior=behavior,
        entropy=known_entropy([r.completion for r in rollouts]),
        d=without - behavior,
        d_replayed=None if replayed is None else replayed - behavior,
        faults=tuple(_faults(bench, options, sampled, without)),
        trials=tuple(tried(bench, options, trainer_dtype, sampled, known)) if settings.trials else (),
    )


def _bench(
    settings: ProbeSettings, model: str, config: Mapping[str, Any], options: EngineOptions, told: Told
) -> tuple[Bench, str]:
    """The model, loaded anew, its prompts, and whose they are."""
    device = device_of(settings.device)
    loaded = load_model(model, device=device)
    table = {**_task_table(settings, config, loaded), **settings.of("task")}
    task = (table["name"], plugin(TASKS, table, "task"))
    source = prompts_of(task, loaded, options.max_tokens, "train", settings.seed)
    bench = Bench(
        source=model,
        loaded=loaded,
        policy=Policy(loaded),
        prompts=[source(index) for index in range(settings.prompts)],
        seed=settings.seed,
        completions=settings.completions,
        device=device,
        told=told,
    )
    return bench, table["name"]


def _about(
    settings: ProbeSettings, bench: Bench, options: EngineOptions, *, task: str, trainer_dtype: str
) -> dict[str, Any]:
    described = describe_plugin(ENGINES, options, "kind")
    return {
        **{name: getattr(settings, name) for name in ("prompts", "completions", "seed", "trials")},
        **{"model": settings.source, "model_path": bench.source, "task": task},
        **{"engine": described["kind"], "engine_dtype": options.dtype, "trainer_dtype": trainer_dtype},
        **{"max_tokens": options.max_tokens, "temperature": options.temperature, "device": bench.device},
        "truncation": asdict(options.truncation),
        "engine_options": described,
    }


def _task_table(settings: ProbeSettings, config: Mapping[str, Any], loaded: LoadedModel) -> dict[str, Any]:
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


def _check_replay(settings: ProbeSettings, bench: Bench, options: EngineOptions) -> None:
    """Refuse a replay that was asked for and cannot be, before anything is sampled."""
    if settings.replay == "routing" and bench.policy.unroutable_because:
        raise ModelError(
            f"routes are replayed in a mixture of experts whose routers can be overruled; {settings.source!r} cannot: "
            f"{bench.policy.unroutable_because}; leave out --replay routing"
        )
    if settings.replay == "support" and options.truncation.is_none:
        raise ConfigError(
            "replay 'support' has nothing to repeat: the engine samples from the whole vocabulary; set --top-k, "
            "--top-p or --min-p, or leave out --replay support"
        )
    _check_can(settings, options, options.capabilities)


def _check_can(settings: ProbeSettings, options: EngineOptions, can: EngineCapabilities) -> None:
    """Refuse a replay of what the engine does not report."""
    reports = {
        "routing": (can.routing, "the experts of each token"),
        "support": (can.kept, "what each token was sampled among"),
    }
    if settings.replay is not None and not reports[settings.replay][0]:
        raise ConfigError(
            f"engine {ENGINES.name_of(options)!r} cannot report {reports[settings.replay][1]}, which --replay "
            f"{settings.replay} asks for; take an engine that can (docs/engines.md), or leave it out"
        )


def _replays(
    settings: ProbeSettings, bench: Bench, options: EngineOptions, sampled: Sampled
) -> tuple[tuple[str, ...], str]:
    """All that model, engine and sampling allow, and why routes are not among it."""
    because = bench.policy.unroutable_because
    if not because and not sampled.can.routing:
        because = f"engine {ENGINES.name_of(options)!r} does not report the experts of each token"
    replays = [] if because else ["routing"]
    if sampled.can.kept and not options.truncation.is_none:
        replays.append("support")
    _check_can(settings, options, sampled.can)
    return tuple(replays), because


def _faults(bench: Bench, options: EngineOptions, sampled: Sampled, logp: Logps) -> list[str]:
    """What the numbers look like, where they look like a known fault."""
    rollouts = sampled.rollouts
    behavior = np.concatenate([r.completion.logp for r in rollouts])
    found = [told_of(sampled.drifts, len(rollouts))] if sampled.drifts else []
    if is_coarse(behavior):
        found.append(COARSE)
    if shift_of(behavior, logp, [len(r.completion) for r in rollouts]):
        found.append(SHIFTED)
    if options.temperature != 1 and sampled.can.logp == "processed":
        raw = distance_of(rollouts, bench.untempered(rollouts, options.dtype)).abs_mean
        if raw < NEARER * distance_of(rollouts, logp).abs_mean:
            found.append(
                "Its log-probs are those before the temperature (raw); have it report those of the distribution it "
                "samples from (processed), or set engine.temperature = 1"
            )
    return found
