"""tether in regime ``sync``, one step a turn, by the way a user's run goes: a recipe, then ``config.build.train``."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from turns import Setting, Turns

from tether.config.build import train
from tether.config.overrides import apply
from tether.config.recipe import from_tables
from tether.records import Event
from tether.registry import TASKS
from tether.tasks.task import Problem, Split


@cache
def _texts(setting: str) -> list[str]:
    return Setting.read(setting).texts()


@TASKS.register("texts")
@dataclass(frozen=True, kw_only=True)
class Texts:
    """The prompts of the comparison, in their order.

    >>> Texts(setting="/tmp/setting.json").reward
    'turns:score_of'
    """

    setting: str
    """The setting's file."""
    reward: str = "turns:score_of"
    """The reward of the comparison."""

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """A text; there are no references and no demonstrations."""
        return Problem(text=_texts(self.setting)[index], reference="", demonstration="")


def main() -> None:
    setting = Setting.read(sys.argv[1])
    turns, rollouts = Turns(), setting.prompts_per_step * setting.group_size
    recipe = from_tables(
        apply(
            {
                "run": {"steps": setting.steps, "device": "cpu", "samples": 0},
                "model": {"path": setting.model},
                "task": {"name": "texts", "setting": sys.argv[1]},
                "engine": {"kind": "torch", "dtype": "float32", "temperature": 1.0, "max_tokens": setting.max_tokens},
                "pipeline": {
                    "regime": "sync",
                    "lag": 1,
                    "prompts_per_step": setting.prompts_per_step,
                    "group_size": setting.group_size,
                },
                "algorithm": {"preset": "grpo"},
                "trainer": {
                    "lr": setting.lr,
                    "warmup": 0,
                    "betas": list(setting.betas),
                    "grad_clip": setting.grad_clip,
                },
                "eval": {"prompts": 0},
                "checkpoint": {"every": 0},
            },
            sys.argv[2:],
        ),
        "trl",
    )

    def observe(event: Event) -> None:
        if event.event == "start":
            turns.ready()
        elif event.event in ("step", "skip"):
            metrics = event.metrics
            parts = {name.removeprefix("time/"): m.value for name, m in metrics.items() if name.startswith("time/")}
            turns.done(round(metrics["rollout/length_mean"].value * rollouts), **parts)

    with tempfile.TemporaryDirectory() as folder:
        train(recipe, Path(folder) / "run", (observe,))


if __name__ == "__main__":
    main()
