"""The engine's routes, laid along the rows of a step, whatever its layout."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.engines.tiny import engine_of, requests
from tether.core.advantage import GRPO
from tether.errors import DataError, ModelError
from tether.models.loading import LoadedModel, load_model
from tether.models.policy import ModelInputs, Policy
from tether.models.routers import find_routers
from tether.models.sharing import PromptSharing
from tether.pipeline.controller import Controller
from tether.pipeline.learner import LocalLearner
from tether.pipeline.masking import check_masks
from tether.pipeline.packing import Step, pack
from tether.pipeline.rollouts import Sampling, ask
from tether.pipeline.routing import own_routes, rerouted_share, with_routes
from tether.pipeline.scoring import Scorer
from tether.pipeline.selfcheck import Probe
from tether.pipeline.snapshot import _NUMPY
from tether.ports import GenerationRequest
from tether.records import NO_EXPERT, Group, Prompt, Rollout
from tether.replay.routing import Routing, share_rerouted
from tether.tasks.arithmetic import Arithmetic
from tether.weights.memory import MemoryStore

from .making import completion_of, group_of, random_groups, rollout_of
from .small import Bench, algorithm_of, assert_same_gradient, loaded_of, off_policy
from .test_selfcheck import run

EAGER = PromptSharing(token_cost=1e6)
"""Shares whatever it costs."""


def routed(groups: Sequence[Group], model: Any, seed: int = 0) -> list[Group]:
    """The groups with random routes: one for each prompt, and one for each completion."""
    shape, numbers = find_routers(model).shape, np.random.default_rng(seed)

    def some(count: int) -> np.ndarray:
        rank = numbers.random((count, shape.num_layers, shape.num_experts)).argsort(-1)
        return rank[..., : shape.k].astype(np.int8)

    made = []
    for group in groups:
        prompt = some(len(group.rollouts[0].prompt.token_ids))
        rollouts = []
        for r in group.rollouts:
            experts = np.concatenate([prompt, some(len(r.completion))])
            experts[-1] = NO_EXPERT
            rollouts.append(replace(r, completion=replace(r.completion, experts=experts)))
        made.append(replace(group, rollouts=tuple(rollouts)))
    return made


def step_of(groups: Sequence[Group], sharing: PromptSharing | None = None, budget: int = 4096) -> Step:
    return pack(groups, GRPO(), token_budget=budget, pad_id=0, device="cpu", sharing=sharing)


def logps(policy: Policy, step: Step) -> dict[str, Tensor]:
    found = {}
    for batch in step.micro_batches:
        with torch.no_grad():
            logp = policy(batch.inputs, temperature=1.0).logp
        pieces = logp.split([len(row.rollout.completion) for row in batch.rows])
        found.update({row.rollout.id: piece for row, piece in zip(batch.rows, pieces, strict=True)})
    return found


def alone(policy: Policy, rollout: Rollout) -> Tensor:
    """One rollout in a row of its own, its routes as they were recorded."""
    sampled, prompt = rollout.completion.token_ids.tolist(), rollout.prompt.token_ids
    assert rollout.completion.experts is not None
    inputs = ModelInputs(
        input_ids=torch.tensor([[*prompt, *sampled]]),
        row=torch.zeros(len(sampled), dtype=torch.int64),
        column=torch.arange(len(prompt) - 1, len(prompt) - 1 + len(sampled)),
        ids=torch.tensor(sampled),
        experts=torch.from_numpy(rollout.completion.experts)[None],
    )
    with torch.no_grad():
        return policy(inputs, temperature=1.0).logp


@pytest.mark.parametrize("kind", ["moe", "plain-gates", "some-dense", "mixtral"])
@pytest.mark.parametrize(("sharing", "budget"), [(None, 4096), (None, 20), (EAGER, 4096), (EAGER, 40)])
def test_every_token_takes_its_own_route_in_every_layout(kind: str, sharing: Any, budget: int) -> None:
    policy = Policy(loaded_of(kind))
    groups = routed(random_groups(2, 4, 4), policy.model)
    step = with_routes(step_of(groups, sharing, budget), Routing(), policy)
    assert step.num_unrouted == 0
    found = logps(policy, step)
    for rollout in (r for g in groups for r in g.rollouts):
        torch.testing.assert_close(found[rollout.id], alone(policy, rollout), atol=2e-5, rtol=1e-5)


def test_the_routes_of_the_tokens_beside_would_be_noticed() -> None:
    """Equality above means something."""
    policy = Policy(loaded_of("moe"))
    groups = routed(random_groups(2, 4, 4), policy.model)
    right = logps(policy, with_routes(step_of(groups), Routing(), policy))
    own = logps(policy, step_of(groups))
    assert max(float((right[name] - own[name]).abs().max()) for name in right) > 0.5


def test_without_a_replay_no_step_carries_routes() -> None:
    policy = Policy(loaded_of("moe"))
    step = step_of(routed(random_groups(2, 2, 2), policy.model))
    assert with_routes(step, None, policy) is step
    assert all(batch.inputs.experts is None for batch in step.micro_batches)


def test_completions_whose_prompt_was_read_with_two_routes_do_not_share_it() -> None:
    policy = Policy(loaded_of("moe"))
    rollouts = [rollout_of(f"g0/{i}", [3, 4, 5], completion_of([6 + i, 7, 8]), i) for i in range(4)]
    one, other = (routed([group_of(0, rollouts)], policy.model, seed)[0].rollouts for seed in (0, 1))
    mixed = [group_of(0, [*one[:2], *other[2:]])]
    step = with_routes(step_of(mixed, EAGER), Routing(), policy)
    assert sorted(len(b.inputs.input_ids) for b in step.micro_batches) == [2]
    found = logps(policy, step)
    for rollout in mixed[0].rollouts:
        torch.testing.assert_close(found[rollout.id], alone(policy, rollout), atol=2e-5, rtol=1e-5)


def test_an_engines_routes_are_replayed_to_the_same_numbers() -> None:
    """Engine in float32, left padding and a cache, against the trainer's right padding and shared prompts."""
    loaded = loaded_of("moe")
    policy = Policy(loaded)
    asked = [replace(r, routing=True, id=f"g{i // 3}/{i % 3}") for i, r in enumerate(requests(12))]
    asked = [replace(r, prompt_ids=asked[i - i % 3].prompt_ids) for i, r in enumerate(asked)]
    done = asyncio.run(engine_of(loaded_of("moe").model, dtype="float32", max_rows=5).answer(asked))
    rollouts = [rollout_of(r.id, r.prompt_ids, c) for r, c in zip(asked, done, strict=True)]
    groups = [group_of(g, rollouts[3 * g : 3 * g + 3]) for g in range(4)]
    for sharing in (None, EAGER):
        step = with_routes(step_of(groups, sharing), Routing(), policy)
        for batch in step.micro_batches:
            with torch.no_grad():
                logp = policy(batch.inputs, temperature=1.0).logp
            torch.testing.assert_close(logp, batch.logp_behavior, atol=2e-5, rtol=1e-5)
        own = own_routes(step, policy)
        assert {r.id: own[r.id].tolist() for r in rollouts} == {
            r.id: r.completion.experts.tolist() for r in rollouts if r.completion.experts is not None
        }


def changed(groups: list[Group], change: Any, at: int = 1) -> list[Group]:
    """The first group with other routes in one of its rollouts."""
    rollouts = list(groups[0].rollouts)
    completion = rollouts[at].completion
    assert completion.experts is not None
    rollouts[at] = replace(rollouts[at], completion=replace(completion, experts=change(completion.experts.copy())))
    return [replace(groups[0], rollouts=tuple(rollouts)), *groups[1:]]


def unknown(experts: np.ndarray, token: int, layer: int) -> np.ndarray:
    experts[token, layer, 1] = NO_EXPERT
    return experts


def two_groups(model: Any) -> list[Group]:
    rollouts = [rollout_of(f"g0/{i}", [3, 4, 5], completion_of([6 + i, 7, 8]), i) for i in range(3)]
    return routed([group_of(0, rollouts), random_groups(2, 2, 2)[1]], model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: None, r"in rollout 'g0/1' 5 of 6 have none, the first at 0 \(prompt: 3\): take an engine"),
        (partial(unknown, token=4, layer=2), r"in rollout 'g0/1' 1 of 6 have none, the first at 4"),
        (lambda e: e[:5], "those of rollout 'g0/1' have 5 tokens instead of 6"),
        (lambda e: e[:, :2], "2 layers instead of 3: does the engine hold the same model"),
        (lambda e: e[..., :1], "1 experts a token instead of 2"),
        (lambda e: e + np.int8(8), r"must lie in 0 .. 7, or be -1 where unknown; those of rollout 'g0/1' go from 7"),
        (lambda e: e - np.int8(1), r"those of rollout 'g0/1' go from -2 to 6"),
        (lambda e: e.astype(np.uint8), "must lie in 0 .. 7, or be -1 where unknown; those of rollout 'g0/1' go from"),
        (lambda e: np.zeros_like(e), "a token goes through 2 different experts; rollout 'g0/1' has a route that names"),
    ],
)
def test_routes_that_do_not_fit_are_refused_by_their_rollout(change: Any, message: str) -> None:
    policy = Policy(loaded_of("moe"))
    groups = changed(two_groups(policy.model), change)
    with pytest.raises(DataError, match=message):
        with_routes(step_of(groups), Routing(), policy)


def test_a_token_without_a_route_takes_the_trainers_own_and_is_counted() -> None:
    policy = Policy(loaded_of("moe"))
    groups = two_groups(policy.model)
    some = changed(groups, partial(unknown, token=4, layer=2))
    none = changed(groups, lambda e: None)
    counts = [with_routes(step_of(g), Routing(missing="own"), policy).num_unrouted for g in (groups, some, none)]
    assert counts == [0, 1, 5]
    found = logps(policy, with_routes(step_of(none, EAGER), Routing(missing="own"), policy))
    own = logps(policy, step_of(none))
    torch.testing.assert_close(found["g0/1"], own["g0/1"], atol=2e-5, rtol=1e-5)
    assert not torch.allclose(found["g0/0"], own["g0/0"], atol=1e-2)


def test_no_route_is_ever_missed_of_the_last_token() -> None:
    policy = Policy(loaded_of("moe"))
    groups = two_groups(policy.model)
    assert all((r.completion.experts[-1] == NO_EXPERT).all() for r in groups[0].rollouts)  # type: ignore[index]
    known = changed(groups, lambda e: np.concatenate([e[:-1], e[:1]]))
    one, other = (logps(policy, with_routes(step_of(g, EAGER), Routing(), policy)) for g in (groups, known))
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=2e-5, rtol=1e-5)


def test_a_dense_model_has_no_routes_to_replay() -> None:
    policy = Policy(loaded_of("tied"))
    with pytest.raises(ModelError, match=r"a dense model has none at all.*take a preset without -r3"):
        with_routes(step_of(random_groups(2, 2, 2)), Routing(), policy)


@pytest.mark.parametrize("axis", [0, 1])
def test_routes_of_the_layer_or_the_token_beside_are_told_by_comparison(axis: int) -> None:
    policy = Policy(loaded_of("moe"))
    asked = [replace(r, routing=True) for r in requests(24)]
    done = asyncio.run(engine_of(loaded_of("moe").model.to(torch.bfloat16)).answer(asked))
    rollouts = [rollout_of(r.id, r.prompt_ids, c) for r, c in zip(asked, done, strict=True)]
    own = own_routes(step_of([group_of(0, rollouts)]), policy)
    recorded = [r.completion.experts for r in rollouts if r.completion.experts is not None]
    trained = np.concatenate([own[r.id] for r in rollouts])
    assert 0 < share_rerouted(np.concatenate(recorded), trained) < 0.1
    shifted = np.concatenate([np.roll(experts, 1, axis=axis) for experts in recorded])
    assert share_rerouted(shifted, trained) > 0.5


@pytest.mark.parametrize("sharing", [None, EAGER])
def test_layers_computed_again_give_the_gradient_of_a_routed_step(sharing: PromptSharing | None) -> None:
    bench = Bench(loaded_of("moe"))
    groups = routed(bench.groups, bench.loaded.model)
    trials = []
    for checkpointing in (False, True):
        trainer = bench.trainer(gradient_checkpointing=checkpointing)
        trials.append(bench.trial(trainer, with_routes(step_of(groups, sharing, 60), Routing(), trainer.policy)))
    assert_same_gradient(trials[0].gradient, trials[1].gradient, 1e-6)
    plain = bench.trial(bench.trainer(), step_of(groups, sharing, 60))
    gates = [name for name in plain.gradient if name.endswith("mlp.gate.weight")]
    assert all(float((plain.gradient[n] - trials[0].gradient[n]).abs().max()) > 1e-4 for n in gates)


def test_loss_and_gradient_do_not_depend_on_the_split_or_the_layout() -> None:
    bench = Bench(loaded_of("moe"))
    groups = routed(off_policy(bench.model(), random_groups(2, 4, 4)), bench.loaded.model)
    gradients = []
    for sharing, budget in ((None, 4096), (None, 24), (EAGER, 4096), (EAGER, 40)):
        trainer = bench.trainer()
        step = with_routes(step_of(groups, sharing, budget), Routing(), trainer.policy)
        gradients.append(bench.trial(trainer, step).gradient)
    for other in gradients[1:]:
        assert_same_gradient(gradients[0], other, 5e-5)


def test_the_reference_of_a_kl_penalty_keeps_its_own_routes() -> None:
    bench, reference = Bench(loaded_of("moe")), Policy(loaded_of("moe", seed=3))
    groups = routed(bench.groups, bench.loaded.model)
    trainer = bench.trainer(algorithm_of("grpo", kl={"name": "k3", "coefficient": 0.1}), reference=reference)
    step = with_routes(step_of(groups), Routing(), trainer.policy)
    (batch,) = step.micro_batches
    assert batch.inputs.experts is not None
    own = torch.cat([logps(reference, step_of(groups))[row.rollout.id] for row in batch.rows])
    got = trainer._tokens(batch).logp_reference
    assert got is not None
    torch.testing.assert_close(got, own)


def test_the_probe_scores_with_the_routes_of_the_engine_under_any_weights() -> None:
    loaded, other = loaded_of("moe"), loaded_of("moe", seed=1)
    (group,) = routed(random_groups(1, 1, 5), loaded.model)
    rollouts = group.rollouts
    policy = Policy(loaded)
    for model, weights in ((policy, None), (Policy(other), dict(other.model.state_dict()))):
        got = Scorer(policy, 40, 1.0, Routing())(rollouts, weights)
        wanted = torch.cat([alone(model, rollout) for rollout in rollouts]).numpy()
        np.testing.assert_allclose(got, wanted, atol=2e-5)
        assert np.abs(got - Scorer(policy, 40, 1.0)(rollouts, weights)).max() > 0.1


def learner_of(routing: Routing | None, bench: Bench) -> LocalLearner:
    async def never(version: int, weights: Any) -> Any:
        raise NotImplementedError

    return LocalLearner(
        trainer=bench.trainer(),
        store=MemoryStore("float32"),
        evaluator=never,
        loaded=bench.loaded,
        dtype="float32",
        token_budget=4096,
        routing=routing,
    )


def test_a_learner_trains_on_the_routes_and_tells_how_many_tokens_had_none() -> None:
    bench = Bench(loaded_of("moe"))
    groups = changed(routed(bench.groups, bench.loaded.model), partial(unknown, token=0, layer=0))
    num_tokens = sum(len(r.prompt.token_ids) + len(r.completion) for g in groups for r in g.rollouts)
    report = asyncio.run(learner_of(Routing(missing="own"), bench).step(step_of(groups)))
    assert report.metrics["replay/unrouted_fraction"].value == pytest.approx(1 / num_tokens)
    wanted = logps(Policy(replace(bench.loaded, model=bench.model())), step_of(groups))
    assert any(not torch.allclose(report.logp[name], wanted[name], atol=1e-2) for name in wanted)
    plain = asyncio.run(learner_of(None, bench).step(step_of(groups)))
    assert "replay/unrouted_fraction" not in plain.metrics
    for name in wanted:
        torch.testing.assert_close(plain.logp[name], wanted[name], atol=2e-5, rtol=1e-5)


def test_masked_tokens_change_nothing_where_routes_are_replayed() -> None:
    bench = Bench(loaded_of("moe"))
    (group,) = routed(random_groups(1, 1, 8), bench.loaded.model)
    check_masks(bench.trainer(), group.rollouts, 60, Routing())
    asyncio.run(learner_of(Routing(), bench).check_masks(group.rollouts))


def test_the_check_of_masks_takes_the_routes_too() -> None:
    bench = Bench(loaded_of("moe"))
    (group,) = random_groups(1, 1, 8)
    check_masks(bench.trainer(), group.rollouts, 60)
    with pytest.raises(DataError, match="every token must have a recorded route"):
        check_masks(bench.trainer(), group.rollouts, 60, Routing())


@pytest.mark.parametrize("asks", [True, False])
def test_a_whole_run_replays_in_its_probe_its_checks_and_its_steps(tmp_path: Path, asks: bool) -> None:
    """The run stops at its first publication if the probe's requests do not ask for the routes that are replayed."""

    def replayed(controller: Controller) -> None:
        learner, (probe,) = controller.loops.learner, controller.loops.publisher._checks
        assert isinstance(learner, LocalLearner)
        assert isinstance(probe, Probe)
        learner.routing = Routing()
        controller.loops.sampling = replace(controller.loops.sampling, routing=True)
        probe.sampling = replace(probe.sampling, routing=asks)

    if not asks:
        with pytest.raises(DataError, match=r"in rollout 'probe/0' .* have none"):
            run(tmp_path / "run", tamper=replayed)
        return
    view = run(tmp_path / "run", tamper=replayed)
    assert [event.metrics["replay/unrouted_fraction"].value for event in view.of("step")] == [0.0, 0.0]
    for event in view.of("check"):
        assert event.metrics["probe/distance"].value <= event.metrics["probe/allowed"].value
        assert 0 <= event.metrics["probe/rerouted_share/engine-0"].value < 0.2
        assert event.metrics["probe/rerouted_share/engine-0"].count > 100


def test_what_the_engine_routes_otherwise_is_a_share_of_what_is_known_on_both_sides() -> None:
    policy = Policy(loaded_of("moe"))
    rollouts = [r for g in routed(random_groups(1, 2, 3), policy.model) for r in g.rollouts]
    scores = Scorer(policy, 40, 1.0, Routing()).scores(rollouts, (dict(policy.weights()), None), is_current=True)
    own = scores.own_routes
    assert own is not None
    num_pairs = sum(len(own[r.id]) - 1 for r in rollouts) * policy.routers.shape.num_layers
    share, counted = rerouted_share(rollouts, own)
    assert share > 0.5  # random sets of 2 out of 8
    assert counted == num_pairs
    same = [replace(r, completion=replace(r.completion, experts=own[r.id][..., ::-1])) for r in rollouts]
    assert rerouted_share(same, own) == (0.0, num_pairs)
    (first, *rest), routes = same, same[0].completion.experts
    assert routes is not None
    routes = routes.copy()
    routes[0, 0] = [e for e in range(8) if e not in own[first.id][0, 0]][:2]
    one = replace(first, completion=replace(first.completion, experts=routes))
    assert rerouted_share([one, *rest], own) == (1 / num_pairs, num_pairs)
    silent = replace(first, completion=replace(first.completion, experts=None))
    assert rerouted_share([silent], own)[1] == 0
    assert Scorer(policy, 40, 1.0).scores(rollouts, (dict(policy.weights()), None), is_current=True).own_routes is None


@pytest.mark.parametrize("routing", [False, True])
def test_requests_ask_for_routes_where_they_are_replayed(routing: bool) -> None:
    prompt = Prompt(id="p/0", text="1+1=", token_ids=(4, 5), reference="2")
    sampling = Sampling(seed=3, group_size=4, temperature=0.7, max_tokens=9, routing=routing)
    assert {r.routing for r in ask(7, prompt, sampling, 0.0).requests} == {routing}


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_routes_come_through_a_checkpoint(tmp_path: Path, dtype: Any) -> None:
    """A snapshot is read as data alone, so their number formats must be on its list."""
    experts = np.array([[[3, 1]], [[-1, 0]]], dtype)
    torch.save(experts, tmp_path / "routes.pt")
    with torch.serialization.safe_globals(list(_NUMPY)):
        read = torch.load(tmp_path / "routes.pt", weights_only=True)
    assert isinstance(read, np.ndarray)
    assert (read.dtype, read.tolist()) == (experts.dtype, experts.tolist())


def sampled_in_bfloat16(source: str) -> tuple[LoadedModel, list[Rollout]]:
    """A float32 trainer and an engine in bfloat16 with equal weights, so that only their arithmetic differs."""
    loaded = load_model("tiny-moe") if source == "tiny-moe" else loaded_of(source)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    engine = engine_of(copy.deepcopy(loaded.model).to(torch.bfloat16), eos_ids=loaded.eos_ids, context=loaded.context)
    asked = requests(200)
    if source == "tiny-moe":
        prompts = [loaded.tokenizer(Arithmetic().problem("train", 0, i).text).input_ids for i in range(32)]
        asked = [
            GenerationRequest(id=f"{i}/{m}", prompt_ids=tuple(p), seed=8 * i + m, max_tokens=24, temperature=1.0)
            for i, p in enumerate(prompts)
            for m in range(8)
        ]
    asked = [replace(r, routing=True) for r in asked]
    done = asyncio.run(engine.answer(asked))
    return loaded, [rollout_of(r.id, r.prompt_ids, c) for r, c in zip(asked, done, strict=True)]


@pytest.mark.parametrize("source", ["tiny-moe", "moe", "plain-gates", "mixtral"])
def test_a_replay_takes_away_what_other_routes_do_to_an_engine_in_bfloat16(source: str) -> None:
    """Where the routes differ, |d| falls to what number formats alone make where they do not; the trained model has
    larger differences of formats than of routes, so there only the tokens with other routes tell."""
    loaded, rollouts = sampled_in_bfloat16(source)
    policy = Policy(loaded)
    step = step_of([group_of(0, rollouts)], policy.sharing, 16384)
    own = own_routes(step, policy)
    is_rerouted = []
    for r in rollouts:
        assert r.completion.experts is not None
        differs = (np.sort(r.completion.experts, -1) != np.sort(own[r.id], -1)).any((-2, -1))
        is_rerouted.append(differs[len(r.prompt.token_ids) - 1 : -1])  # at the position that predicts

    def distances(routing: Routing | None) -> np.ndarray:
        found = logps(policy, with_routes(step, routing, policy))
        return np.concatenate([np.abs(found[r.id].numpy() - r.completion.logp) for r in rollouts])

    rerouted = np.concatenate(is_rerouted)
    before, after = distances(None), distances(Routing())
    assert rerouted.sum() > 20
    assert after[rerouted].mean() < before[rerouted].mean() / 4
    assert after[rerouted].max() < before[rerouted].max() / 4
    assert after[rerouted].mean() < 2 * before[~rerouted].mean()
    if source != "tiny-moe":
        assert after.max() < before.max() / 4
