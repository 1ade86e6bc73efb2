"""Several rewards as one: each asked for itself, its grade kept, the weighted sum trained on."""

from __future__ import annotations

from dataclasses import dataclass

from tether.errors import ConfigError
from tether.ports import Reward
from tether.records import Answer, Grade, Judgement, Prompt
from tether.rewards.scoring import grade

RIGHT = 1.0
"""What a reward that decides gives a right answer, at least."""
CUT = "cut"
"""Status where a reward that needs an end was not asked about an answer that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A reward with its place in the sum."""

    label: str
    """Its name in the journal."""
    reward: Reward
    weight: float = 1.0
    """In the sum; 0 asks it and logs it all the same."""


@dataclass(frozen=True, slots=True)
class Composition:
    """``sum_i weight_i reward_i``, and whether the answer is right, which one of the rewards decides.

    A part whose reward says ``needs_end`` gives 0 to an answer that was cut, without being asked; every other reward
    judges it as it is.

    >>> parts = Part(label="two", reward=lambda p, a: 2.0), Part(label="size", reward=lambda p, a: 4, weight=-0.5)
    >>> judgement = Composition(parts)(Prompt(id="p", text="", token_ids=(1,), reference=""), Answer("ok"))
    >>> judgement.reward, judgement.grades["size"].value, judgement.is_right
    (0.0, 4.0, True)
    """

    parts: tuple[Part, ...]
    decides: str = ""
    """Label of the part that says whether an answer is right; empty: the first."""

    def __post_init__(self) -> None:
        labels = [part.label for part in self.parts]
        if not labels:
            raise ConfigError("a reward needs at least one part; add [[reward.parts]] with a name")
        if twice := sorted({label for label in labels if labels.count(label) > 1}):
            raise ConfigError(f"two parts of the reward are called {twice[0]!r}; give one of them another label")
        if self.decides and self.decides not in labels:
            raise ConfigError(f"reward.decides is {self.decides!r}, but the parts are {', '.join(labels)}")

    def __call__(self, prompt: Prompt, answer: Answer) -> Judgement:
        """Ask every part; raises ``RewardError``, naming the rollout, if one of them has no grade to give."""
        return self._judgement({part.label: _asked(part.reward, prompt, answer) for part in self.parts})

    def _judgement(self, grades: dict[str, Grade]) -> Judgement:
        return Judgement(
            reward=sum(part.weight * grades[part.label].value for part in self.parts),
            grades=grades,
            is_right=grades[self.decides or self.parts[0].label].value >= RIGHT,
        )


def alone(reward: Reward, label: str) -> Composition:
    """One reward as a whole."""
    return Composition((Part(label=label, reward=reward),))


def _asked(reward: Reward, prompt: Prompt, answer: Answer) -> Grade:
    if answer.is_cut and getattr(reward, "needs_end", False):
        return Grade(value=0.0, status=CUT)
    return grade(reward, prompt, answer)
