"""Which setting removes a mismatch: the cheap ones are tried, and what each leaves is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from tether.config.probe_bench import Bench, Sampled
from tether.errors import TetherError
from tether.pipeline.mismatch import Distance, distance_of
from tether.pipeline.scoring import Logps
from tether.ports import EngineOptions

PROMPTS: Final = 16
"""Most prompts whose answers are sampled anew for a trial."""
REMOVED: Final = 0.05
"""A setting that leaves at most this share of mean ``|d|`` removes the mismatch."""
AGREE: Final = 1e-5
"""Nats of mean ``|d|`` below which there is nothing to remove."""
SWITCHES: Final[tuple[tuple[str, Any], ...]] = (
    ("prefix_cache", False),
    ("eager", True),
    ("max_rows", 1),
)
"""Options that some kinds of engines have, and what makes their arithmetic plainer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A setting, and what is left of the mismatch with it."""

    setting: str
    """As in a recipe."""
    distance: Distance | None
    """``None`` where it could not be tried."""
    of: float
    """Mean ``|d|`` of the same prompts without it, nats."""
    because: str = ""
    """Why it could not be tried."""

    @property
    def leaves(self) -> float:
        """Share of mean ``|d|`` that is left."""
        assert self.distance is not None
        return self.distance.abs_mean / self.of if self.of > 0 else 1.0

    def told(self) -> str:
        """In words.

        >>> left = Distance(tokens=9, mean=0.0, abs_mean=1e-5, p95=0.0, p99=0.0, max=0.0, tail=0.0, k3=0.0)
        >>> Trial(setting="engine.dtype = float32", distance=left, of=0.01).told()
        'engine.dtype = float32 leaves 0.1 % of mean |d| (0.01 to 1e-05 nats)'
        """
        if self.distance is None:
            return f"{self.setting} was not tried: {self.because}"
        share = f"{self.leaves * 100:.3g} %"
        return f"{self.setting} leaves {share} of mean |d| ({self.of:.3g} to {self.distance.abs_mean:.3g} nats)"


def verdict_of(trials: Sequence[Trial], abs_mean: float) -> str:
    """Which setting to take, in one sentence."""
    if abs_mean < AGREE:
        return f"The two sides agree but for rounding, mean |d| {abs_mean:.2g}: there is nothing to remove."
    tried = [trial for trial in trials if trial.distance is not None]
    if not tried:
        return "Nothing was tried that could remove the mismatch."
    removing = [trial for trial in tried if trial.leaves <= REMOVED]
    if removing:
        return f"What removes the mismatch: {' or: '.join(trial.setting for trial in removing)}."
    best = min(tried, key=lambda trial: trial.leaves)
    if best.leaves < 1 - REMOVED:
        return f"Nothing that was tried removes the mismatch; {best.setting} leaves least, {best.leaves * 100:.3g} %."
    return "Nothing that was tried makes the mismatch smaller: it is no matter of these settings."


def tried(
    bench: Bench, options: EngineOptions, trainer_dtype: str, first: Sampled, known: dict[tuple[str, ...], Logps]
) -> list[Trial]:
    """Every cheap setting that is not in force, the cheapest first.

    ``known`` are log-probs of the tokens of ``first`` that are there already, by the replays they were computed with.
    """
    trials = list(_by_the_trainer(bench, options, trainer_dtype, first, known))
    replays = tuple(name for name in max(known, key=len) if name == "support")
    few = {rollout.prompt.id for rollout in first.rollouts[: PROMPTS * bench.completions]}
    rollouts = [rollout for rollout in first.rollouts if rollout.prompt.id in few]
    num_tokens = sum(len(rollout.completion) for rollout in rollouts)
    base = distance_of(rollouts, known[()][:num_tokens]).abs_mean
    for changed, setting, dtype in _other_engines(options, trainer_dtype):
        if replays:
            setting += ", algorithm.replay = support"
        try:
            if (url := getattr(options, "url", "")) and changed.dtype != options.dtype:
                raise _NotHereError(f"the server at {url} was started with its own dtype")
            again = bench.sample(changed, PROMPTS, what=f"trying {setting}")
            logp = bench.score(again.rollouts, changed, dtype=dtype, replays=replays)
            trials.append(Trial(setting=setting, distance=distance_of(again.rollouts, logp), of=base))
        except (TetherError, ImportError, RuntimeError) as error:  # an engine is somebody else's code
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            trials.append(Trial(setting=setting, distance=None, of=base, because=reason))
    return trials


class _NotHereError(TetherError):
    """A setting that cannot be changed from here."""


def _by_the_trainer(
    bench: Bench, options: EngineOptions, trainer_dtype: str, first: Sampled, known: dict[tuple[str, ...], Logps]
) -> Iterator[Trial]:
    """What the trainer may do otherwise with the same tokens."""
    base = distance_of(first.rollouts, known[()]).abs_mean
    for replays, logp in known.items():
        if replays:
            distance = distance_of(first.rollouts, logp)
            yield Trial(setting=f"algorithm.replay = {' + '.join(replays)}", distance=distance, of=base)
    if options.dtype != trainer_dtype:
        for replays in dict.fromkeys(((), max(known, key=len))):
            setting = f"trainer.dtype = {options.dtype}"
            setting += f", algorithm.replay = {' + '.join(replays)}" if replays else ""
            logp = bench.score(first.rollouts, options, dtype=options.dtype, replays=replays, what=f"trying {setting}")
            yield Trial(setting=setting, distance=distance_of(first.rollouts, logp), of=base)


def _other_engines(options: EngineOptions, trainer_dtype: str) -> Iterator[tuple[EngineOptions, str, str]]:
    """Engine, setting in words, and number format of the trainer with it."""
    kind = cast("Any", options)
    names = {field.name for field in dataclasses.fields(kind)}
    if options.dtype != "float32":
        both = "" if trainer_dtype == "float32" else ", trainer.dtype = float32"
        yield replace(kind, dtype="float32"), f"engine.dtype = float32{both}", "float32"
    for name, value in SWITCHES:
        if name in names and getattr(kind, name) != value:
            shown = str(value).lower() if isinstance(value, bool) else value
            yield replace(kind, **{name: value}), f"engine.{name} = {shown}", trainer_dtype
