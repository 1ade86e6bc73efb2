"""What the engine sampled among, laid along the tokens of a step, in every pass that enters a ratio."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.engines.tiny import engine_of, requests
from tether.core import logprobs
from tether.core.advantage import GRPO
from tether.core.truncation import Limits, kept_of
from tether.errors import DataError
from tether.models.policy import Policy
from tether.models.sharing import PromptSharing
from tether.pipeline.average import WeightAverage
from tether.pipeline.learner import LocalLearner
from tether.pipeline.masking import check_masks
from tether.pipeline.old_policy import Cost, Rescoring, narrowed
from tether.pipeline.packing import Step, pack
from tether.pipeline.rollouts import Sampling
from tether.pipeline.scoring import Scorer
from tether.pipeline.selfcheck import Probe
from tether.pipeline.support import with_lost_mass, with_support
from tether.placement.ray_host import moved
from tether.ports import GenerationRequest
from tether.proximal.ewma import EWMAProximal
from tether.records import Group, KeptSets, Rollout, Truncation
from tether.replay.support import Support
from tether.weights.memory import MemoryStore

from .making import group_of, random_groups, rollout_of
from .small import Bench, algorithm_of, assert_same_gradient, loaded_of, naive_logp

EAGER = PromptSharing(token_cost=1e6)
"""Shares whatever it costs."""
LAYOUTS = [(None, 4096), (None, 20), (EAGER, 4096), (EAGER, 40)]
CUT = Truncation(top_p=0.6)


def step_of(groups: Sequence[Group], sharing: PromptSharing | None = None, budget: int = 4096) -> Step:
    return pack(groups, GRPO(), token_budget=budget, pad_id=0, device="cpu", sharing=sharing)


def kept_in(groups: Sequence[Group], *, seed: int = 0) -> list[Group]:
    """The groups with random sets, each of which holds its sampled id."""
    numbers = np.random.default_rng(seed)

    def some(rollout: Rollout) -> Rollout:
        ids = [
            np.union1d(numbers.choice(24, numbers.integers(0, 12), replace=False), [token])
            for token in rollout.completion.token_ids
        ]
        starts = np.cumsum([0, *map(len, ids)])
        kept = KeptSets(ids=np.concatenate(ids).astype(np.int32), starts=starts.astype(np.int64))
        return replace(rollout, completion=replace(rollout.completion, kept=kept))

    return [replace(group, rollouts=tuple(map(some, group.rollouts))) for group in groups]


def changed(groups: Sequence[Group], token: int, ids: Sequence[int]) -> list[Group]:
    """The first rollout with another set for one of its tokens."""
    first = groups[0].rollouts[0]
    kept = first.completion.kept
    assert kept is not None
    sets = [kept.of(t).tolist() for t in range(len(kept))]
    sets[token] = list(ids)
    other = KeptSets(
        ids=np.array([i for one in sets for i in one], np.int32),
        starts=np.cumsum([0, *map(len, sets)]).astype(np.int64),
    )
    rollouts = (replace(first, completion=replace(first.completion, kept=other)), *groups[0].rollouts[1:])
    return [replace(groups[0], rollouts=rollouts), *groups[1:]]


@torch.no_grad()
def alone(model: Any, rollout: Rollout) -> Tensor:
    """Log-probs of one rollout over its sets, from the model's own logits."""
    prompt, ids, kept = rollout.prompt.token_ids, rollout.completion.token_ids.tolist(), rollout.completion.kept
    assert kept is not None
    logits = model(input_ids=torch.tensor([[*prompt, *ids]]), use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    mask = torch.zeros_like(logits, dtype=torch.bool)
    for t in range(len(ids)):
        mask[t, torch.from_numpy(kept.of(t).astype(np.int64))] = True
    return logits.masked_fill(~mask, -torch.inf).log_softmax(-1)[torch.arange(len(ids)), ids]


def logps(policy: Policy, step: Step) -> dict[str, Tensor]:
    found = {}
    for batch in step.micro_batches:
        with torch.no_grad():
            logp = policy(batch.inputs, temperature=1.0).logp
        pieces = logp.split([len(row.rollout.completion) for row in batch.rows])
        found.update({row.rollout.id: piece for row, piece in zip(batch.rows, pieces, strict=True)})
    return found


@pytest.mark.parametrize(("sharing", "budget"), LAYOUTS)
def test_every_token_takes_its_own_set_in_every_layout(sharing: Any, budget: int) -> None:
    policy = Policy(loaded_of("tied"))
    groups = kept_in(random_groups(2, 4, 4))
    found = logps(policy, with_support(step_of(groups, sharing, budget), Support(), policy))
    for rollout in (r for g in groups for r in g.rollouts):
        torch.testing.assert_close(found[rollout.id], alone(policy.model, rollout), atol=2e-5, rtol=1e-5)


def test_without_a_replay_no_step_carries_sets() -> None:
    policy = Policy(loaded_of("tied"))
    step = step_of(kept_in(random_groups(2, 2, 2)))
    assert with_support(step, None, policy) is step
    assert with_lost_mass(step, None) is step
    assert all(batch.inputs.kept is None for batch in step.micro_batches)


def sampled(kind: str, cut: Truncation, temperature: float = 1.0) -> tuple[Policy, list[Rollout]]:
    """Engine and trainer in float32 with the same weights."""
    loaded = loaded_of(kind)
    engine = engine_of(copy.deepcopy(loaded.model), eos_ids=loaded.eos_ids, context=loaded.context, dtype="float32")
    asked = [replace(r, truncation=cut, kept=True, temperature=temperature) for r in requests(24)]
    done = asyncio.run(engine.answer(asked))
    rollouts = [rollout_of(r.id, r.prompt_ids, c, i % 2) for i, (r, c) in enumerate(zip(asked, done, strict=True))]
    return Policy(loaded), rollouts


@pytest.mark.parametrize("kind", ["tied", "moe"])
@pytest.mark.parametrize("temperature", [0.8, 1.0])
@pytest.mark.parametrize("cut", [CUT, Truncation(top_k=4), Truncation(min_p=0.3), Truncation(top_k=9, top_p=0.8)])
def test_at_equal_weights_every_ratio_is_one_with_the_replay_and_off_by_the_lost_mass_without(
    kind: str, temperature: float, cut: Truncation
) -> None:
    policy, rollouts = sampled(kind, cut, temperature)
    behavior = np.concatenate([r.completion.logp for r in rollouts])
    replayed = Scorer(policy, 400, temperature, support=Support())(rollouts)
    np.testing.assert_allclose(np.exp(replayed - behavior), 1.0, atol=1e-5)
    without = Scorer(policy, 400, temperature)(rollouts)
    off = []
    for r in rollouts:
        ids = torch.tensor([[*r.prompt.token_ids, *r.completion.token_ids.tolist()]])
        with torch.no_grad():
            logits = policy.model(input_ids=ids, use_cache=False).logits[0, len(r.prompt.token_ids) - 1 : -1]
        logp = (logits.float() / temperature).log_softmax(-1)
        off.append(kept_of(logp, Limits.of([cut] * len(logp), logp.device)).log_mass.numpy())
    np.testing.assert_allclose(without - behavior, np.concatenate(off), atol=3e-5)
    assert (without - behavior).min() < -0.2


def test_a_sampled_id_that_is_not_in_its_set_is_an_error_that_names_it() -> None:
    policy = Policy(loaded_of("tied"))
    groups = kept_in(random_groups(2, 1, 3))
    token = len(groups[0].rollouts[0].completion) - 1
    own = int(groups[0].rollouts[0].completion.token_ids[token])
    bad = changed(groups, token, [(own + 1) % 24, (own + 2) % 24])
    with pytest.raises(DataError, match=rf"in rollout 'g0/0' token {token} is id {own}, which is not among the 2 kept"):
        with_support(step_of(bad), Support(missing="own"), policy)


def test_sets_that_name_an_id_twice_or_one_that_is_none_are_refused() -> None:
    policy = Policy(loaded_of("tied"))
    groups = kept_in(random_groups(2, 1, 3))
    own = int(groups[0].rollouts[0].completion.token_ids[0])
    with pytest.raises(DataError, match="the set of token 0 of rollout 'g0/0' names one twice"):
        with_support(step_of(changed(groups, 0, [own, (own + 1) % 24, own])), Support(), policy)
    with pytest.raises(DataError, match=r"kept ids must lie in 0 .. 23; those of rollout 'g0/0' go from \d+ to 24"):
        with_support(step_of(changed(groups, 0, [own, 24])), Support(), policy)


def test_the_order_within_a_set_says_nothing() -> None:
    policy = Policy(loaded_of("tied"))
    groups = kept_in(random_groups(2, 1, 3))
    kept = groups[0].rollouts[0].completion.kept
    assert kept is not None
    other = changed(groups, 0, kept.of(0)[::-1].tolist())
    one, two = (logps(policy, with_support(step_of(g), Support(), policy)) for g in (groups, other))
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=1e-6, rtol=1e-6)


def test_a_token_whose_set_is_not_known_is_an_error_or_takes_the_whole_vocabulary_and_is_counted() -> None:
    policy = Policy(loaded_of("tied"))
    groups = changed(kept_in(random_groups(2, 2, 3)), 0, [])
    with pytest.raises(DataError, match=r"in rollout 'g0/0' it is not of 1 of \d+ tokens, the first at 0"):
        with_support(step_of(groups), Support(), policy)
    step = with_support(step_of(groups), Support(missing="own"), policy)
    assert step.num_unsupported == 1
    first = groups[0].rollouts[0]
    full = naive_logp(policy.model, first.prompt.token_ids, first.completion.token_ids.tolist())
    torch.testing.assert_close(logps(policy, step)[first.id][0], full[0], atol=2e-5, rtol=1e-5)
    bare = random_groups(2, 2, 3)
    with pytest.raises(DataError, match="what every token was sampled among must be known"):
        with_support(step_of(bare), Support(), policy)
    all_own = with_support(step_of(bare), Support(missing="own"), policy)
    assert all_own.num_unsupported == all_own.denominator.num_tokens
    for name, logp in logps(policy, step_of(bare)).items():
        assert torch.equal(logps(policy, all_own)[name], logp)


def learner_of(bench: Bench, **changes: Any) -> LocalLearner:
    async def never(version: int, weights: Any) -> Any:
        raise NotImplementedError

    settings: dict[str, Any] = {
        "trainer": bench.trainer(),
        "store": MemoryStore("float32"),
        "evaluator": never,
        "loaded": bench.loaded,
        "dtype": "float32",
        "token_budget": 4096,
    }
    return LocalLearner(**{**settings, **changes})


@pytest.mark.parametrize("entropy", [0.0, 0.01])
@pytest.mark.parametrize("of", ["full", "kept"])
def test_gradients_do_not_depend_on_how_a_step_is_split_nor_on_checkpoints(
    monkeypatch: pytest.MonkeyPatch, entropy: float, of: Any
) -> None:
    bench = Bench(loaded_of("tied"))
    groups = kept_in(bench.groups)
    algorithm = algorithm_of(entropy=entropy)
    gradients = []
    for sharing, budget, chunk in ((None, 4096, 1 << 24), (None, 30, 1 << 24), (EAGER, 60, 1 << 24), (None, 4096, 24)):
        monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", chunk)
        trainer = bench.trainer(algorithm)
        step = with_support(step_of(groups, sharing, budget), Support(entropy=of), trainer.policy)
        gradients.append(bench.trial(trainer, step).gradient)
    for other in gradients[1:]:
        assert_same_gradient(gradients[0], other, 1e-4)


def test_the_replay_enters_the_gradient_and_the_entropy_where_it_is_asked_for() -> None:
    bench = Bench(loaded_of("tied"))
    groups = kept_in(bench.groups)
    told = {}
    for support in (None, Support(), Support(entropy="kept")):
        trainer = bench.trainer()
        told[support] = bench.trial(trainer, with_support(step_of(groups), support, trainer.policy))
    full, replayed, kept = told.values()
    assert replayed.number("policy/entropy") == pytest.approx(full.number("policy/entropy"), abs=1e-6)
    assert kept.number("policy/entropy") < full.number("policy/entropy") - 0.1
    assert_same_gradient(replayed.gradient, kept.gradient)
    with pytest.raises(AssertionError):
        assert_same_gradient(replayed.gradient, full.gradient, 1e-2)


def test_a_learner_trains_on_the_sets_and_tells_how_many_tokens_had_none() -> None:
    bench = Bench(loaded_of("tied"))
    groups = changed(kept_in(bench.groups), 0, [])
    report = asyncio.run(learner_of(bench, support=Support(missing="own")).step(step_of(groups)))
    num_tokens = sum(len(r.completion) for g in groups for r in g.rollouts)
    assert report.metrics["replay/unsupported_fraction"].value == pytest.approx(1 / num_tokens)
    bench.model()
    rollout = groups[0].rollouts[1]
    torch.testing.assert_close(report.logp[rollout.id], alone(bench.loaded.model, rollout), atol=2e-5, rtol=1e-5)
    plain = asyncio.run(learner_of(bench).step(step_of(groups)))
    assert "replay/unsupported_fraction" not in plain.metrics
    assert "mismatch/lost_mass_mean" not in plain.metrics


@pytest.mark.parametrize("budget", [4096, 30])
def test_the_mass_lost_to_a_truncation_that_is_not_replayed_is_told(budget: int) -> None:
    bench = Bench(loaded_of("tied"))
    report = asyncio.run(learner_of(bench, truncation=CUT).step(step_of(bench.groups, budget=budget)))
    masses = []
    for rollout in (r for g in bench.groups for r in g.rollouts):
        prompt, ids = rollout.prompt.token_ids, rollout.completion.token_ids.tolist()
        with torch.no_grad():
            logits = bench.model()(input_ids=torch.tensor([[*prompt, *ids]]), use_cache=False).logits[0]
        logp = logits[len(prompt) - 1 : -1].float().log_softmax(-1)
        kept = kept_of(logp, Limits.of([CUT] * len(logp), logp.device)).mask
        masses.append((logp.exp() * ~kept).sum(-1))
    wanted = torch.cat(masses)
    mean, largest = (report.metrics[f"mismatch/lost_mass_{name}"] for name in ("mean", "max"))
    assert (mean.merge, largest.merge) == ("mean", "max")
    assert mean.value == pytest.approx(float(wanted.mean()), rel=1e-4)
    assert largest.value == pytest.approx(float(wanted.max()), rel=1e-4)
    assert mean.count == len(wanted)


def test_a_reference_keeps_the_whole_vocabulary() -> None:
    bench = Bench(loaded_of("tied"))
    groups = kept_in(bench.groups)
    reference = Policy(loaded_of("tied"))
    table = {"name": "low_var_kl", "coefficient": 1e-3}
    trainer = bench.trainer(algorithm_of(kl=table), reference=reference)
    (batch,) = with_support(step_of(groups), Support(), trainer.policy).micro_batches
    found = trainer._tokens(batch).logp_reference
    assert found is not None
    (plain,) = step_of(groups).micro_batches
    with torch.no_grad():
        assert torch.equal(found, reference(plain.inputs, temperature=1.0, entropy="none").logp)


def test_the_running_average_and_past_versions_take_the_sets_too() -> None:
    bench = Bench(loaded_of("tied"))
    groups = kept_in(bench.groups)
    trainer = bench.trainer()
    policy = trainer.policy
    (batch,) = with_support(step_of(groups), Support(), policy).micro_batches
    wanted = torch.cat([alone(policy.model, row.rollout) for row in batch.rows])
    masters = dict(policy.model.named_parameters())
    average = WeightAverage(policy, EWMAProximal(), masters, 1.0)
    torch.testing.assert_close(average.logp(batch.inputs), wanted, atol=2e-5, rtol=1e-5)
    old = torch.full_like(wanted, torch.nan)
    old[::2] = -1.0
    rescoring = Rescoring(policy=policy, temperature=1.0, cost=Cost())
    with torch.no_grad():
        filled = rescoring.filled(old, batch, 0, {})
    torch.testing.assert_close(filled[1::2], wanted[1::2], atol=2e-5, rtol=1e-5)
    assert (filled[::2] == -1.0).all()
    one = narrowed(batch.inputs, torch.arange(len(wanted)) == 5)
    with torch.no_grad():
        torch.testing.assert_close(policy(one, temperature=1.0).logp, wanted[5:6], atol=2e-5, rtol=1e-5)


def test_sets_go_with_a_micro_batch_to_another_device() -> None:
    policy = Policy(loaded_of("tied"))
    (batch,) = with_support(step_of(kept_in(random_groups(2, 1, 3))), Support(), policy).micro_batches
    kept = moved(batch, "meta").inputs.kept
    assert kept is not None
    assert (kept.ids.device.type, kept.sizes.device.type) == ("meta", "meta")
    assert len(kept) == len(batch.advantage)


def test_masked_tokens_change_nothing_where_sets_are_replayed() -> None:
    bench = Bench(loaded_of("tied"))
    (group,) = kept_in(random_groups(1, 1, 8))
    check_masks(bench.trainer(), group.rollouts, 60, support=Support())
    asyncio.run(learner_of(bench, support=Support()).check_masks(group.rollouts))
    (bare,) = random_groups(1, 1, 8)
    with pytest.raises(DataError, match="what every token was sampled among must be known"):
        check_masks(bench.trainer(), bare.rollouts, 60, support=Support())


@pytest.mark.parametrize(("kept", "cut"), [(True, CUT), (False, Truncation())])
def test_the_probe_samples_truncated_only_where_that_is_replayed(kept: bool, cut: Truncation) -> None:
    """Else the distance that it measures would be the lost mass."""
    sampling = Sampling(seed=3, group_size=4, temperature=1.0, max_tokens=9, truncation=CUT, kept=kept)
    probe = object.__new__(Probe)
    probe.sampling, probe.options = sampling, type("Options", (), {"tokens": 4})()
    (prompt,) = {r.prompt.id: r.prompt for r in random_groups(1, 1, 2)[0].rollouts}.values()
    request: GenerationRequest = probe._request(0, prompt, 4)
    assert (request.truncation, request.kept) == (cut, kept)


def test_a_group_of_one_rollout_without_tokens_needs_no_set() -> None:
    policy = Policy(loaded_of("tied"))
    groups = kept_in(random_groups(2, 1, 2))
    first = groups[0].rollouts[0].completion
    nothing = replace(
        first,
        **{name: getattr(first, name)[:0] for name in ("token_ids", "logp", "entropy", "version")},
        kept=None,
    )
    rollouts = [rollout_of("g0/9", groups[0].rollouts[0].prompt.token_ids, nothing), *groups[0].rollouts]
    step = with_support(step_of([group_of(0, rollouts)]), Support(), policy)
    assert len(logps(policy, step)["g0/9"]) == 0
