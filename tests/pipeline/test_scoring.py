"""The trainer's model with other weights in the place of its own."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from tether.models.policy import Policy
from tether.pipeline.scoring import Scorer
from tether.weights.memory import MemoryStore

from .making import random_groups
from .small import loaded_of, naive_logp, same_weights

ROLLOUTS = [rollout for group in random_groups(0, 3, 3) for rollout in group.rollouts]


@pytest.fixture(scope="module", params=["moe", "tied"])
def kind(request):
    return request.param


def expected(model, temperature=0.7):
    pieces = [naive_logp(model, r.prompt.token_ids, r.completion.token_ids.tolist(), temperature) for r in ROLLOUTS]
    return torch.cat(pieces).numpy()


def test_tokens_are_scored_in_the_order_of_their_rollouts_at_the_temperature(kind):
    loaded = loaded_of(kind)
    for budget in (4096, 24):
        assert Scorer(Policy(loaded), budget, 0.7)(ROLLOUTS) == pytest.approx(expected(loaded.model), abs=1e-5)


def test_other_weights_score_as_a_model_that_has_them_and_leave_no_trace(kind):
    one, other = loaded_of(kind, seed=0), loaded_of(kind, seed=1)
    before = copy.deepcopy(one.model.state_dict())
    apart = {name: tensor.clone() for name, tensor in other.model.state_dict().items()}  # tied names come twice
    scorer = Scorer(Policy(one), 4096, 0.7)
    assert scorer(ROLLOUTS, apart) == pytest.approx(expected(other.model), abs=1e-5)
    assert same_weights(one.model.state_dict(), before)
    assert scorer(ROLLOUTS) == pytest.approx(expected(one.model), abs=1e-5)
    assert all(parameter.grad is None for parameter in one.model.parameters())


def test_a_publication_that_lacks_a_parameter_is_not_scored_with_the_models_own():
    loaded = loaded_of("moe")
    weights = dict(loaded.model.state_dict())
    del weights["model.norm.weight"]
    with pytest.raises(AssertionError, match="holds every parameter"):
        Scorer(Policy(loaded), 4096, 1.0)(ROLLOUTS, weights)


@pytest.mark.parametrize(
    ("theirs", "ours", "wider", "narrower"),
    [
        ("bfloat16", torch.float32, True, False),
        ("bfloat16", torch.bfloat16, True, False),
        ("float32", torch.float32, False, False),
        ("float32", torch.bfloat16, False, True),
    ],
)
def test_the_formats_of_both_sides_are_scored(theirs, ours, wider, narrower):
    loaded = loaded_of("moe")
    loaded.model.to(ours)
    policy, store = Policy(loaded), MemoryStore(theirs)
    published = store.fetch(store.publish(0, policy.weights()))
    scores = Scorer(policy, 4096, 1.0).scores(ROLLOUTS, (published, None), is_current=True)
    assert scores.previous is None
    assert (scores.wider is not None, scores.narrower is not None) == (wider, narrower)
    if theirs == "float32" and ours == torch.float32:
        assert np.array_equal(scores.published, scores.current)
    if narrower:
        assert np.array_equal(scores.narrower, scores.current)
    if wider:
        assert 0 < np.abs(scores.wider - scores.published).mean() < 0.3
    stale = Scorer(policy, 4096, 1.0).scores(ROLLOUTS, (published, published), is_current=False)
    assert stale.current is None
    assert np.array_equal(stale.previous, stale.published)
