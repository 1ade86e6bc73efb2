"""Laws of what is observed of a step: one answer for every split over micro-batches and ranks; fates sum to 1."""

from __future__ import annotations

import dataclasses
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tether.core.algorithm import Algorithm
from tether.core.loss import measure_scope, policy_loss
from tether.core.measures import observed
from tether.core.memory import EdgeStatistics
from tether.core.rule import PolicyTokens, Traits, Weight
from tether.core.seen import spans
from tether.corrections.tis import TIS
from tether.records import Metrics
from tether.rules.ppo import PPO
from tether.rules.sat import SAT

from .batches import Drawn, algorithm_of, batches, counts, split_by_response, with_proximal

few = settings(max_examples=20)


@dataclasses.dataclass(frozen=True)
class Outliers:
    """A mask over tokens that have moved far."""

    traits: ClassVar[Traits] = Traits(reads="total", is_mask=True, keeps_pull_back=False)

    def __call__(self, log_ratio, policy, tokens, stats):
        return Weight((log_ratio.abs() <= 0.3).float())


ALGORITHMS = {
    "ppo": algorithm_of(PPO()),
    "sat and a mask": algorithm_of(SAT(), corrections=(Outliers(),)),
    "gspo and two corrections": algorithm_of(PPO(), level="sequence", corrections=(TIS(), Outliers())),
}
everywhere = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)


def seen(parts: list[Drawn], algorithm: Algorithm, stats: EdgeStatistics | None = None, across=None) -> Metrics:
    """What is observed of these micro-batches, with the statistics of the step."""
    ready = [(with_proximal(tokens, algorithm), logp) for tokens, logp in parts]
    stats = stats or measure_scope(algorithm, [(logp, t) for t, logp in ready])
    denominator = counts([t for t, _ in ready])
    terms = [policy_loss(PolicyTokens(logp), t, algorithm, stats, denominator) for t, logp in ready]
    return observed([(logp, t) for t, logp in ready], terms, spans([t for t, _ in ready], across), across)


def assert_same(left: Metrics, right: Metrics) -> None:
    assert left.keys() == right.keys()
    for name, metric in left.items():
        other = right[name]
        assert (metric.merge, metric.count) == (other.merge, other.count), name
        one = metric.value if isinstance(metric.value, dict) else {"": metric.value}
        two = other.value if isinstance(other.value, dict) else {"": other.value}
        assert one.keys() == two.keys(), name
        for label in one:
            assert math.isclose(one[label], two[label], rel_tol=1e-9, abs_tol=1e-12), (name, label)


@everywhere
@given(drawn=batches(), cut=st.integers(0, 12))
@few
def test_a_split_into_micro_batches_gives_the_same_metrics(algorithm, drawn, cut):
    assert_same(seen(split_by_response(drawn, cut), algorithm), seen([drawn], algorithm))


def gathers(size: int):
    """An all-gather for each of several ranks, which are threads."""
    held: list[Tensor] = [torch.empty(0)] * size
    barrier = threading.Barrier(size, timeout=30)

    def gather(rank: int, share: Tensor) -> list[Tensor]:
        held[rank] = share
        barrier.wait()
        everything = list(held)
        barrier.wait()
        return everything

    return [lambda share, rank=rank: gather(rank, share) for rank in range(size)]


@everywhere
@given(drawn=batches(), cut=st.integers(0, 12))
@few
def test_every_rank_has_the_metrics_of_the_whole_step(algorithm, drawn, cut):
    tokens, logp = drawn
    stats = measure_scope(algorithm, [(logp, with_proximal(tokens, algorithm))])
    sides = split_by_response(drawn, cut)
    with ThreadPoolExecutor(2) as pool:
        ranks = [
            pool.submit(seen, [side], algorithm, stats, across) for side, across in zip(sides, gathers(2), strict=True)
        ]
        for rank in ranks:
            assert_same(rank.result(), seen([drawn], algorithm))


@everywhere
@given(drawn=batches())
@few
def test_fates_are_a_partition_by_side_by_staleness_and_by_turn(algorithm, drawn):
    got = seen([drawn], algorithm)
    n = int(drawn[0].trainable.sum())
    if not n:
        assert got == {}
        return
    fates = {name: metric for name, metric in got.items() if name.startswith("fate/") and "/by_" not in name}
    assert len(fates) == 15
    assert math.fsum(metric.value for metric in fates.values()) == pytest.approx(1.0)
    kept = math.fsum(metric.value for name, metric in fates.items() if name.startswith("fate/kept"))
    assert got["clip/fraction"].value == pytest.approx(1 - kept)
    for kind in ("staleness", "turn"):
        summed = dict.fromkeys(got[f"{kind}/histogram"].value, 0.0)
        for fate in ("kept", "clipped", "masked"):
            for label, count in got[f"fate/{fate}/by_{kind}"].value.items():
                summed[label] += count
        assert summed == got[f"{kind}/histogram"].value
        assert sum(summed.values()) == n
        moved = math.fsum(got[f"mismatch/abs_sum_by_{kind}"].value.values())
        assert moved / n == pytest.approx(got["mismatch/abs_mean"].value, abs=1e-12)


@everywhere
@given(drawn=batches(), poison=st.sampled_from([math.nan, math.inf, -math.inf, 1e30]))
@few
def test_untrainable_tokens_are_not_observed(algorithm, drawn, poison):
    tokens, logp = drawn

    def spoil(x: Tensor) -> Tensor:
        return torch.where(tokens.trainable, x, poison)

    wild = torch.where(tokens.trainable, tokens.staleness, 10**9)
    dirty = dataclasses.replace(
        tokens, logp_behavior=spoil(tokens.logp_behavior), advantage=spoil(tokens.advantage), staleness=wild
    )
    assert_same(seen([(dirty, spoil(logp))], algorithm), seen([drawn], algorithm))


@everywhere
@given(drawn=batches(), scale=st.sampled_from([0.0, 1e3]))
@few
def test_everything_observed_is_finite(algorithm, drawn, scale):
    tokens, logp = drawn
    far = tokens.logp_behavior + scale * (logp - tokens.logp_behavior)
    for name, metric in seen([(tokens, far)], algorithm).items():
        values = metric.value.values() if isinstance(metric.value, dict) else [metric.value]
        assert all(map(math.isfinite, values)), name
