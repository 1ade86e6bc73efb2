"""What is asked in an evaluation, and how."""

from __future__ import annotations

from dataclasses import dataclass, field

from tether.errors import ConfigError
from tether.ports import Reward
from tether.registry import REWARDS, TASKS
from tether.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """The ``[eval]`` table.

    >>> EvalOptions(every=5, samples=8).due(10, last=12)
    True
    """

    every: int = 0
    """Steps between evaluations; 0 evaluates before and after training only."""
    prompts: int = 1024
    """Held-out prompts, the same each time; of a task that has fewer, each once. 0 evaluates never."""
    samples: int = 1
    """Answers to each prompt: the k of avg@k."""
    temperature: float = 1.0
    """Of the evaluation's sampling; 0 is greedy."""
    top_p: float = 1.0
    """The fewest of the most probable ids that together have at least this share are sampled among; 1: all."""
    max_tokens: int | None = None
    """Most tokens of an answer; the engine's, if not given."""
    task: Task | None = field(default=None, metadata={"registry": TASKS})
    """What is asked; the held-out part of what is trained on, if not given."""
    reward: Reward | None = field(default=None, metadata={"registry": REWARDS})
    """What decides, by giving 1 or more, whether an answer is right; if not given, what the task names for that, or
    ``exact`` if it names nothing."""

    def __post_init__(self) -> None:
        for name in ("every", "prompts", "temperature"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"eval.{name} must be >= 0; got {getattr(self, name)}")
        for name, most in (("every", 10**9), ("prompts", 10**7), ("samples", 10**5), ("max_tokens", 10**7)):
            if (getattr(self, name) or 0) > most:
                raise ConfigError(f"eval.{name} must be at most {most}; got {getattr(self, name)}")
        for name in ("samples", "max_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"eval.{name} must be at least 1; got {value}")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"eval.top_p must lie in (0, 1] (1: all ids); got {self.top_p}")
        if self.temperature and not 1e-6 <= self.temperature <= 1e3:
            raise ConfigError(f"eval.temperature must be 0 (greedy) or lie in 1e-6 .. 1e3; got {self.temperature}")
        if not self.temperature and self.samples > 1:
            raise ConfigError(
                f"eval.temperature = 0 is greedy: eval.samples = {self.samples} would be the same answer each time; "
                "set samples = 1, or a temperature"
            )

    def due(self, step: int, last: int) -> bool:
        """True if an evaluation follows this step."""
        return self.prompts > 0 and (step in (0, last) or (self.every > 0 and step % self.every == 0))
