"""What an evaluation found: every sample with what made it and what it was judged to be, and the numbers from that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tether.errors import RewardError
from tether.evals.at_k import average_at, average_of_each, majority_at, pass_at
from tether.evals.estimators import Interval, proportion
from tether.journal.evaluated import FAILED, Evaluated
from tether.records import Metric, Metrics

Answers = tuple[tuple[str | None, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How it was asked: part of every result, for no number means anything without it."""

    task: str
    criterion: str
    """Label of what decided whether an answer is right."""
    seed: int
    """Of problems and samples: with the same seed two versions get the same random numbers."""
    samples: int
    """Answers to each problem, the k of avg@k."""
    temperature: float
    max_tokens: int
    top_p: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What was answered; arrays are ``[n, k]``, a row for each of n problems, an entry for each of k samples.

    A sample about which the criterion raised is neither right nor wrong: it is ``failed``, counted as such, and left
    out of every mean; a problem of which all samples failed is left out with them.
    """

    protocol: Protocol
    version: int
    """Of the weights that were asked about."""
    prompt_ids: tuple[str, ...]
    problems: tuple[str, ...]
    """Which problem of its source each row is; empty where a source does not tell."""
    references: tuple[str, ...]
    versions: NDArray[np.int64]
    """Of the weights that made each sample's last token."""
    correct: NDArray[np.bool_]
    """False, too, where the criterion failed: ask ``judged`` first."""
    extracted: Answers
    """What was taken to be each final answer, by criteria that look for one."""
    status: tuple[tuple[str, ...], ...]
    """The criterion's word; ``failed`` where it raised."""
    length: NDArray[np.int64]
    """Tokens of each answer."""
    truncated: NDArray[np.bool_]
    """Answers cut at ``max_tokens``."""
    failure: str = ""
    """The first error of the criterion, if there was one."""

    @property
    def keys(self) -> tuple[str, ...]:
        """By which each problem is found again in another evaluation."""
        return tuple(p or i for p, i in zip(self.problems, self.prompt_ids, strict=True))

    @property
    def judged(self) -> NDArray[np.bool_]:
        """``[n, k]`` samples that are right or wrong, that is, about which the criterion did not raise."""
        return np.array([[word != FAILED for word in row] for row in self.status], np.bool_)

    @property
    def num_failed(self) -> int:
        """Samples about which the criterion raised."""
        return int((~self.judged).sum())

    @property
    def accuracy(self) -> Interval:
        """avg@k: the mean over problems of the share of right samples; of one sample each by Wilson's interval, else
        by a bootstrap over problems."""
        if self.protocol.samples == 1:
            return proportion(int((self.correct & self.judged).sum()), int(self.judged.sum()))
        return average_at(self.correct, self.judged)

    @property
    def mean(self) -> float:
        """The value of ``accuracy``, without the work of its interval."""
        shares = average_of_each(self.correct, self.judged)
        return float(shares[~np.isnan(shares)].mean())

    def pass_at(self, k: int) -> Interval:
        """pass@k: the chance that one of k samples of a problem is right, over the problems with k judged ones."""
        known = self.judged.sum(1) >= k
        return pass_at(self.correct[known], k, self.judged[known])

    @property
    def majority(self) -> Interval:
        """maj@k: share of problems whose most frequent extracted answer is right; of a tie, the answer seen first."""
        known = np.flatnonzero(self.judged.any(1))
        return majority_at([self.extracted[row] for row in known], self.correct[known].tolist())

    @property
    def has_answers(self) -> bool:
        """Whether the criterion looks for a final answer at all: what has none cannot be voted on."""
        return any(answer is not None for row in self.extracted for answer in row)

    @property
    def no_answer_share(self) -> float:
        """Share of samples in which no final answer was found."""
        return float(np.mean([answer is None for row in self.extracted for answer in row]))

    def estimates(self) -> dict[str, Interval]:
        """Every estimate by its name: accuracy, which is avg@k, and of several samples pass@k and maj@k.

        What has too few judged samples for a name goes without it.
        """
        k, most = self.protocol.samples, int(self.judged.sum(1).max())
        found = {"accuracy": self.accuracy}
        if k > 1:
            found[f"avg@{k}"] = found["accuracy"]
            if most == k:
                found[f"pass@{k}"] = self.pass_at(k)
            if self.has_answers:
                found[f"maj@{k}"] = self.majority
        return found

    def metrics(self) -> Metrics:
        """For the journal."""
        n, length = float(self.judged.any(1).sum()), self.length.ravel()
        metrics, size = {}, float(length.size)
        for name, (value, low, high) in self.estimates().items():
            metrics[f"eval/{name}"] = Metric(value, "mean", n)
            metrics[f"eval/{name}_low"] = Metric(low, "last", n)
            metrics[f"eval/{name}_high"] = Metric(high, "last", n)
        metrics["eval/length_mean"] = Metric(float(length.mean()), "mean", size)
        metrics["eval/length_median"] = Metric(float(np.median(length)), "last", size)
        metrics["eval/length_p95"] = Metric(float(np.quantile(length, 0.95, method="inverted_cdf")), "last", size)
        metrics["eval/truncated_fraction"] = Metric(float(self.truncated.mean()), "mean", size)
        if self.has_answers:
            metrics["eval/no_answer_fraction"] = Metric(self.no_answer_share, "mean", size)
        if self.num_failed:
            metrics["eval/failed"] = Metric(float(self.num_failed), "sum")
        return metrics

    def lines(self, step: int) -> list[Evaluated]:
        """The problems for ``evals.jsonl``."""
        p = self.protocol
        return [
            Evaluated(
                step=step,
                version=self.version,
                task=p.task,
                criterion=p.criterion,
                problem=self.problems[row],
                prompt_id=self.prompt_ids[row],
                reference=self.references[row],
                seed=p.seed,
                temperature=p.temperature,
                top_p=p.top_p,
                max_tokens=p.max_tokens,
                versions=tuple(self.versions[row].tolist()),
                correct=tuple(
                    None if word == FAILED else right
                    for word, right in zip(self.status[row], self.correct[row].tolist(), strict=True)
                ),
                extracted=self.extracted[row],
                status=self.status[row],
                length=tuple(self.length[row].tolist()),
                truncated=tuple(self.truncated[row].tolist()),
            )
            for row in range(len(self.problems))
        ]


def joined(pieces: Sequence[Evaluation]) -> Evaluation:
    """Several sets of problems, asked of the same weights in the same way, as one evaluation.

    Raises ``RewardError`` if no sample at all could be judged.
    """
    first = pieces[0]
    whole = replace(
        first,
        prompt_ids=tuple(name for piece in pieces for name in piece.prompt_ids),
        problems=tuple(name for piece in pieces for name in piece.problems),
        references=tuple(text for piece in pieces for text in piece.references),
        versions=np.concatenate([piece.versions for piece in pieces]),
        correct=np.concatenate([piece.correct for piece in pieces]),
        extracted=tuple(row for piece in pieces for row in piece.extracted),
        status=tuple(row for piece in pieces for row in piece.status),
        length=np.concatenate([piece.length for piece in pieces]),
        truncated=np.concatenate([piece.truncated for piece in pieces]),
        failure=next((piece.failure for piece in pieces if piece.failure), ""),
    )
    if not whole.judged.any():
        num, why = whole.num_failed, whole.failure
        raise RewardError(f"an evaluation needs samples that can be judged; all {num} failed, the first so: {why}")
    return whole
