"""Evaluation: held-out prompts through an engine of its own, so that training is not disturbed by being watched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tether.errors import ConfigError
from tether.evals.estimators import Interval, proportion
from tether.ports import GenerationRequest, RolloutEngine, WeightStore
from tether.records import Completion, Metric, Metrics, Prompt

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """The ``[eval]`` table."""

    every: int = 0
    """Steps between evaluations; 0 evaluates before and after training only."""
    prompts: int = 1024
    """Held-out prompts, the same each time; 0 evaluates never."""
    temperature: float = 1.0
    """Of the evaluation's sampling; 0 is greedy."""

    def __post_init__(self) -> None:
        for name in ("every", "prompts", "temperature"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"eval.{name} must be >= 0; got {getattr(self, name)}")
        for name, most in (("every", 10**9), ("prompts", 10**7)):
            if getattr(self, name) > most:
                raise ConfigError(f"eval.{name} must be at most {most}; got {getattr(self, name)}")
        if self.temperature and not 1e-6 <= self.temperature <= 1e3:
            raise ConfigError(f"eval.temperature must be 0 (greedy) or lie in 1e-6 .. 1e3; got {self.temperature}")

    def due(self, step: int, last: int) -> bool:
        """True if an evaluation follows this step."""
        return self.prompts > 0 and (step in (0, last) or (self.every > 0 and step % self.every == 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What one version answered; arrays are ``[n]``, one entry a prompt."""

    version: int
    """Of every sample: the engine's, after the weights were loaded."""
    correct: NDArray[np.bool_]
    length: NDArray[np.int64]
    """Tokens of each answer."""
    truncated: NDArray[np.bool_]
    """Answers cut at ``max_tokens``; they count as wrong."""

    @property
    def accuracy(self) -> Interval:
        """Share of correct answers with its interval."""
        return proportion(int(self.correct.sum()), len(self.correct))

    def metrics(self) -> Metrics:
        """For the journal."""
        n, accuracy = float(len(self.correct)), self.accuracy
        return {
            "eval/accuracy": Metric(accuracy.value, "mean", n),
            "eval/accuracy_low": Metric(accuracy.low, "last", n),
            "eval/accuracy_high": Metric(accuracy.high, "last", n),
            "eval/length_mean": Metric(float(self.length.mean()), "mean", n),
            "eval/truncated_fraction": Metric(float(self.truncated.mean()), "mean", n),
        }


IsCorrect = Callable[[GenerationRequest, Prompt, Completion], bool]


class Evaluator:
    """Asks the same held-out questions of any version.

    Every request has a seed of its own, so two versions are compared on the same prompts and the same random numbers.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        store: WeightStore,
        prompts: Sequence[Prompt],
        requests: Sequence[GenerationRequest],
        is_correct: IsCorrect,
    ) -> None:
        self._engine, self._store = engine, store
        self._prompts, self._requests = tuple(prompts), tuple(requests)
        self._is_correct = is_correct

    async def __call__(self, version: int, weights: Mapping[str, Tensor]) -> Evaluation:
        """Load the weights if they are new, sample every prompt once, judge."""
        if version != self._engine.version:
            await self._engine.load(self._store.publish(version, weights))
        completions = await self._engine.answer(self._requests)
        judged = zip(self._requests, self._prompts, completions, strict=True)
        return Evaluation(
            version=self._engine.version,
            correct=np.array([self._is_correct(r, p, c) for r, p, c in judged], np.bool_),
            length=np.array([len(c) for c in completions], np.int64),
            truncated=np.array([c.finish == "length" for c in completions], np.bool_),
        )
