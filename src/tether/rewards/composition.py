"""Several rewards as one: each asked for itself, its grade kept, the weighted sum trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tether.errors import ConfigError, RewardError
from tether.ports import Reward
from tether.records import Answer, Grade, Judgement, Prompt
from tether.rewards.scoring import Asked, grades

When = Literal["always", "right", "wrong"]
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
    when: When = "always"
    """Which answers it is asked about: all, or those that are right or wrong by the part that decides."""


@dataclass(frozen=True, slots=True)
class Composition:
    """``sum_i weight_i reward_i``, and whether the answer is right, which one of the rewards decides.

    A part whose reward says ``needs_end`` gives 0 to an answer that was cut, without being asked; every other reward
    judges it as it is. A part ``when`` right or wrong has no grade, and adds nothing, where the answer is not.

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
        if self.decider.when != "always":
            raise ConfigError(
                f"part {self.decider.label!r} decides whether an answer is right, so it is asked always; its when is "
                f"{self.decider.when!r}: let another part decide, by reward.decides"
            )

    @property
    def gathers(self) -> bool:
        """Whether it would rather be asked about many answers at once."""
        return any(getattr(part.reward, "gathers", False) for part in self.parts)

    def __call__(self, prompt: Prompt, answer: Answer) -> Judgement:
        """Ask every part; raises ``RewardError``, naming the rollout, if one of them has no grade to give."""
        (told,) = self.judge_all([(prompt, answer)])
        if isinstance(told, RewardError):
            raise told
        return told

    def judge_all(self, asked: Sequence[Asked]) -> list[Judgement | RewardError]:
        """The judgement of each of several answers, or the error of the first part that has no grade for it."""
        known: list[dict[str, Grade]] = [{} for _ in asked]
        failed: dict[int, RewardError] = {}
        decider = self.decider
        for part in (decider, *(part for part in self.parts if part is not decider)):
            wanted = [n for n in range(len(asked)) if n not in failed and self._wants(part, known[n])]
            for n, told in zip(wanted, _grades(part.reward, [asked[n] for n in wanted]), strict=True):
                if isinstance(told, RewardError):
                    failed[n] = told
                else:
                    known[n][part.label] = told
        return [failed.get(n) or self._judgement(given) for n, given in enumerate(known)]

    @property
    def decider(self) -> Part:
        """The part that says whether an answer is right."""
        return next((part for part in self.parts if part.label == self.decides), self.parts[0])

    def _is_right(self, known: dict[str, Grade]) -> bool:
        return known[self.decider.label].value >= RIGHT

    def _wants(self, part: Part, known: dict[str, Grade]) -> bool:
        return part.when == "always" or (part.when == "right") == self._is_right(known)

    def _judgement(self, known: dict[str, Grade]) -> Judgement:
        ordered = {part.label: known[part.label] for part in self.parts if part.label in known}
        return Judgement(
            reward=sum(part.weight * known[part.label].value for part in self.parts if part.label in known),
            grades=ordered,
            is_right=self._is_right(known),
        )


def alone(reward: Reward, label: str) -> Composition:
    """One reward as a whole."""
    return Composition((Part(label=label, reward=reward),))


def _grades(reward: Reward, asked: Sequence[Asked]) -> list[Grade | RewardError]:
    needs_end = getattr(reward, "needs_end", False)
    whole = [one for one in asked if not (needs_end and one[1].is_cut)]
    told = iter(grades(reward, whole))
    return [Grade(value=0.0, status=CUT) if needs_end and answer.is_cut else next(told) for _, answer in asked]
