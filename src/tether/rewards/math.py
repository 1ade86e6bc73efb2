"""One if an answer to a mathematical problem is right, else zero: judged by the verifier, within limits."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from tether.errors import ConfigError, DataError, VerifierError
from tether.records import Answer, Grade, Prompt
from tether.registry import REWARDS
from tether.verifier.gate import too_large
from tether.verifier.policies import Policies
from tether.verifier.pool import Verifier
from tether.verifier.verdict import Mode, Verdict


@REWARDS.register("math")
@dataclass(frozen=True, slots=True, kw_only=True)
class Math:
    r"""``1`` if the response ends in the value of the reference, by the rules of ``mode``; else ``0``.

    The modes are those of ``tether verify``, told in docs/verifier.md. Why an answer got nothing stands in the grade's
    status: ``wrong``, ``no_answer``, ``parse_error`` (it could not be read), ``timeout`` (its limit of time or memory
    was reached) and ``too_large`` (refused unread, as ``10^{10^{10}}``); all of these give 0. A reference that cannot
    be read is a fault of the data, and a verifier that cannot start one of the machine: both fail the rollout instead.

    >>> prompt = Prompt(id="aime/0", text="...", token_ids=(6,), reference="025")
    >>> grade = Math(mode="strict-int")(prompt, Answer(r"so it is \boxed{25}"))
    >>> grade.value, grade.status, grade.extracted, grade.stage
    (1.0, 'correct', '25', 'boxed:integer')
    """

    mode: Mode = "robust"
    """``robust``: by mathematics; ``upstream``: as the prime_math score; ``strict-int``: one integer from 0 to 999."""
    policies: Policies = Policies()
    """For mode ``robust``, what counts as the same where users disagree."""
    limit_s: float = 1.0
    """Seconds of CPU time an answer, whatever else the machine does."""
    workers: int = 1
    """Processes beside each one that asks, shared by all rewards with the same options."""
    undecided: Literal["wrong", "fail"] = "wrong"
    """What becomes of an answer that the verifier could not decide, for its limit was reached or a worker died over it:
    ``wrong`` gives 0, ``fail`` fails the rollout, which then is trained on by nobody."""

    def __post_init__(self) -> None:
        if self.mode != "robust" and self.policies != Policies():
            raise ConfigError(f"policies belong to mode 'robust', and the mode is {self.mode!r}; leave them out")
        _verifier(self)  # refuses what cannot work; nothing starts

    def __call__(self, prompt: Prompt, answer: Answer) -> Grade:
        """1.0 or 0.0, with the answer that was found and what decided."""
        if not prompt.reference.strip():
            raise DataError(
                f"the reward 'math' needs a reference; that of prompt {prompt.id} is empty; drop the prompt"
            )
        verdict = _verifier(self).verdict(answer.text, prompt.reference)
        if verdict.stage.startswith("reference:") or (verdict.status == "too_large" and too_large(prompt.reference)):
            raise DataError(
                f"the reward 'math' (mode {self.mode}) must be able to read the reference; of prompt {prompt.id} it is "
                f"{prompt.reference!r:.200}: {verdict.status}, {verdict.stage}; mend it, drop it, or take another mode"
            )
        if self.undecided == "fail" and _is_undecided(verdict):
            raise VerifierError(
                f"an answer must be decided (undecided is 'fail'); of prompt {prompt.id} it ended as {verdict.status}, "
                f"{verdict.stage}; raise limit_s, or set undecided to 'wrong'"
            )
        stage = f"{verdict.stage}:{verdict.policy}" if verdict.policy else verdict.stage
        return Grade(value=float(verdict.is_correct), status=verdict.status, extracted=verdict.extracted, stage=stage)


def _is_undecided(verdict: Verdict) -> bool:
    """Whether the verdict says something of the verifier and not of the answer."""
    return verdict.status == "timeout" or verdict.stage == "worker died" or verdict.stage.startswith("raised ")


@functools.cache  # one a process for all rewards that are alike; its workers end with the process
def _verifier(reward: Math) -> Verifier:
    policies = reward.policies if reward.mode == "robust" else None
    return Verifier(reward.mode, policies=policies, workers=reward.workers, limit_s=reward.limit_s)
