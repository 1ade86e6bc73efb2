import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tether.core.truncation import Limits
from tether.engines import sampling
from tether.engines.sampling import sample, uniforms
from tether.records import Truncation


def seeds(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


def draws(logits: torch.Tensor, temperature: float, count: int) -> torch.Tensor:
    """Ids drawn from one row of logits at ``count`` positions of one seed."""
    uniform = torch.from_numpy(uniforms(seeds(11), 0, count)[0])
    return sample(logits.expand(count, -1), torch.full((count,), temperature), uniform).ids


@given(
    rows=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=6),
    start=st.integers(0, 10_000),
    cut=st.integers(0, 8),
)
def test_a_uniform_depends_on_seed_and_position_only(rows: list[int], start: int, cut: int) -> None:
    whole = uniforms(seeds(*rows), start, 8)
    assert ((whole >= 0) & (whole < 1)).all()
    parts = np.concatenate([uniforms(seeds(*rows), start, cut), uniforms(seeds(*rows), start + cut, 8 - cut)], axis=1)
    assert (whole == parts).all()
    assert (whole[::-1] == uniforms(seeds(*rows[::-1]), start, 8)).all()


def test_uniforms_of_neighbouring_seeds_and_positions_are_uniform_and_unrelated() -> None:
    block = uniforms(np.arange(2000, dtype=np.uint64), 0, 50)
    counts, _ = np.histogram(block, bins=100, range=(0, 1))
    assert ((counts - 1000.0) ** 2 / 1000.0).sum() < 148  # 99.9 % point of chi-square with 99 degrees of freedom
    assert abs(np.corrcoef(block[:-1].ravel(), block[1:].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(block[:, :-1].ravel(), block[:, 1:].ravel())[0, 1]) < 0.01


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.3])
def test_frequencies_match_the_tempered_probabilities(temperature: float) -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0, float("-inf"), 1.0, -3.0, 0.5, 0.0]])
    count = 200_000
    expected = torch.softmax(logits[0].double() / temperature, -1) * count
    observed = torch.bincount(draws(logits, temperature, count), minlength=8).double()
    possible = expected > 0
    statistic = ((observed - expected)[possible] ** 2 / expected[possible]).sum()
    assert observed[3] == 0
    assert statistic < 22.5  # 99.9 % point with 6 degrees of freedom


@given(
    logits=st.lists(st.one_of(st.floats(-30, 30), st.just(float("-inf"))), min_size=1, max_size=12).filter(
        lambda row: any(x > float("-inf") for x in row)
    ),
    uniform=st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2**-53])),
)
@settings(max_examples=300)
def test_a_token_of_probability_zero_is_never_drawn(logits: list[float], uniform: float) -> None:
    drawn = sample(torch.tensor([logits]), torch.ones(1), torch.tensor([uniform], dtype=torch.float64))
    assert logits[int(drawn.ids)] > float("-inf")
    assert torch.isfinite(drawn.logp).all()
    assert torch.isfinite(drawn.entropy).all()


def test_logp_and_entropy_belong_to_the_distribution_sampled_from() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    drawn = sample(logits, torch.tensor([0.5, 1.0, 1.3]), torch.full((3,), 0.99, dtype=torch.float64), top_k=2)
    for row, temperature in enumerate((0.5, 1.0, 1.3)):
        expected = torch.log_softmax(logits[row] / temperature, -1)
        assert drawn.ids[row] == 2
        torch.testing.assert_close(drawn.logp[row], expected[2])
        torch.testing.assert_close(drawn.entropy[row], -(expected.exp() * expected).sum())
        assert drawn.top_k_ids is not None
        assert drawn.top_k_logp is not None
        assert drawn.top_k_ids[row].tolist() == [2, 1]
        torch.testing.assert_close(drawn.top_k_logp[row], expected[[2, 1]])


def test_logp_stays_float32_for_bfloat16_logits() -> None:
    logits = torch.tensor([[0.0, 3.0]], dtype=torch.bfloat16)
    drawn = sample(logits, torch.ones(1), torch.zeros(1, dtype=torch.float64))
    assert drawn.logp.dtype == torch.float32
    torch.testing.assert_close(drawn.logp, torch.log_softmax(logits.float(), -1)[:, drawn.ids[0]])


def test_greedy_rows_take_the_largest_logit_and_report_temperature_one() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.5], [0.0, 1.0, 0.5]])
    drawn = sample(logits, torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.0], dtype=torch.float64))
    assert drawn.ids.tolist() == [1, 0]
    torch.testing.assert_close(drawn.logp[0], torch.log_softmax(logits[0], -1)[1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_a_number_marks_its_own_logp_only(bad: float) -> None:
    logits = torch.tensor([[0.0, bad, 1.0], [0.0, 1.0, 1.0]])
    drawn = sample(logits, torch.ones(2), torch.full((2,), 0.5, dtype=torch.float64))
    assert torch.isnan(drawn.logp).tolist() == [True, False]


@pytest.mark.parametrize("vocabulary", [257, 512, 1000])
def test_a_large_vocabulary_is_inverted_as_a_small_one(vocabulary: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searching block by block gives the ids that one running sum gives."""
    torch.manual_seed(0)
    logits = torch.randn(400, vocabulary) * 6
    logits[:, torch.rand(vocabulary) < 0.3] = -torch.inf
    logits[:, 256:300] = -torch.inf
    uniform = torch.rand(400, dtype=torch.float64)
    uniform[:40] = 0.0
    in_blocks = sample(logits, torch.ones(400), uniform)
    monkeypatch.setattr(sampling, "_BLOCK", vocabulary)
    at_once = sample(logits, torch.ones(400), uniform)
    assert in_blocks.ids.tolist() == at_once.ids.tolist()
    assert torch.isfinite(in_blocks.logp).all()


@given(seed=st.integers(0, 2**32), scale=st.floats(0.1, 40))
@settings(max_examples=60, deadline=None)
def test_no_block_yields_a_token_of_probability_zero(seed: int, scale: float) -> None:
    numbers = torch.Generator().manual_seed(seed)
    logits = torch.randn(8, 700, generator=numbers) * scale
    logits[torch.rand(8, 700, generator=numbers) < 0.9] = -torch.inf
    logits[:, 699] = 0.0
    uniform = torch.rand(8, generator=numbers, dtype=torch.float64)
    uniform[:2], uniform[2:4] = 0.0, 1 - 2**-53
    drawn = sample(logits, torch.ones(8), uniform)
    probability = torch.softmax(logits, -1).gather(-1, drawn.ids[:, None])
    assert (probability > 0).all()


def test_frequencies_match_in_a_large_vocabulary() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 600)
    count = 60_000
    expected = torch.softmax(logits[0].double(), -1) * count
    observed = torch.bincount(draws(logits, 1.0, count), minlength=600).double()
    assert ((observed - expected) ** 2 / expected).sum() < 711  # 99.9 % point with 599 degrees of freedom


def test_rows_are_drawn_alike_in_lots_and_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    logits, temperature = torch.randn(7, 300), torch.tensor([1.0, 0.0, 0.5, 2.0, 1.0, 0.0, 1.0])
    uniform = torch.rand(7, dtype=torch.float64)
    cuts = [Truncation(), Truncation(top_p=0.5), Truncation(top_k=3), Truncation(min_p=0.2)]
    limits = Limits.of([cuts[i % 4] for i in range(7)], logits.device, reports=True)
    at_once = sample(logits, temperature, uniform, top_k=3, limits=limits)
    monkeypatch.setattr(sampling, "_LOT", 600)
    for one, other in zip(sample(logits, temperature, uniform, top_k=3, limits=limits), at_once, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)
    assert sample(logits, temperature, uniform).top_k_ids is None


def test_without_greedy_rows_the_answer_is_the_same() -> None:
    torch.manual_seed(0)
    logits, temperature, uniform = torch.randn(5, 40), torch.rand(5) + 0.5, torch.rand(5, dtype=torch.float64)
    some, none = (sample(logits, temperature, uniform, may_be_greedy=may) for may in (True, False))
    assert torch.equal(some.ids, none.ids)
    assert torch.equal(some.logp, none.logp)
