"""An adapter on its way: trained, published, loaded by an engine that then samples with it, saved, resumed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("peft")

from peft import PeftModel
from safetensors.torch import load_file

from tether.cli.export import export
from tether.config.build import train
from tether.config.learning import engine_of, evaluator_of, learner_of
from tether.config.recipe import Recipe, load
from tether.errors import ConfigError, ModelError, RunDirectoryError
from tether.journal.reader import RunView
from tether.models.fingerprint import fingerprint
from tether.models.loading import DTYPES, load_model
from tether.models.lora import BASE, base_fingerprint
from tether.pipeline.learner import LEARNER_FILE, LocalLearner
from tether.pipeline.packing import Step
from tether.placement.inline import FreeClock
from tether.ports import GenerationRequest, RolloutEngine, WeightStore
from tether.records import Completion
from tether.weights.directory import DirectoryStore
from tether.weights.memory import MemoryStore

from .making import random_groups
from .small import naive_logp, off_policy, step_of

MODELS = ["tiny-dense", "tiny-moe"]


def recipe_of(model: str, dtype: str = "float32", *settings: str, rank: int = 4) -> Recipe:
    fixed = ["trainer.lr=0.02", "trainer.warmup=0", "eval.prompts=8", "run.steps=3", "algorithm.preset=grpo"]
    return load(
        "quickstart", [f"model.path={model}", f"model.lora_rank={rank}", f"engine.dtype={dtype}", *fixed, *settings]
    )


def parts_of(recipe: Recipe, store: WeightStore) -> tuple[LocalLearner, Any]:
    return learner_of(recipe, store, "cpu"), engine_of(recipe, store, FreeClock(), "cpu")


def step_for(learner: LocalLearner, seed: int) -> Step:
    return step_of(off_policy(learner.loaded.model, random_groups(seed, 4, 4)))


def train_step(learner: LocalLearner, seed: int) -> None:
    assert asyncio.run(learner.step(step_for(learner, seed))).updated


def answers(engine: RolloutEngine, temperature: float) -> list[Completion]:
    asked = [
        GenerationRequest(id=f"{i}", prompt_ids=(6 + i, 12, 5, 15), seed=i, max_tokens=12, temperature=temperature)
        for i in range(6)
    ]
    ask = getattr(engine, "answer", engine.generate)
    return list(asyncio.run(ask(asked)))


def greedy(model: Any, prompt: list[int]) -> list[int]:
    ids = list(prompt)
    while len(ids) < len(prompt) + 12:
        with torch.no_grad():
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        if ids[-1] == 1:
            break
    return ids[len(prompt) :]


@pytest.mark.parametrize(("kind", "model"), [("memory", "tiny-moe"), ("directory", "tiny-dense")])
def test_after_each_load_the_engine_answers_and_scores_as_the_trainer_would(model, kind, tmp_path):
    store = MemoryStore("float32") if kind == "memory" else DirectoryStore(tmp_path, "float32")
    learner, engine = parts_of(recipe_of(model), store)
    base = load_model(model).model
    seen: set[str] = set()
    for update in range(4):
        publication = asyncio.run(learner.publish())
        assert asyncio.run(engine.load(publication)) == publication.fingerprint
        seen.add(publication.fingerprint)
        trained = learner.loaded.model
        for i, completion in enumerate(answers(engine, temperature=0.0)):
            prompt = [6 + i, 12, 5, 15]
            assert completion.token_ids.tolist() == greedy(trained, prompt)
            if update == 0:
                assert completion.token_ids.tolist() == greedy(base, prompt)
        gaps = []
        for i, completion in enumerate(answers(engine, temperature=1.0)):
            ids = completion.token_ids.tolist()
            own = naive_logp(trained, [6 + i, 12, 5, 15], ids).numpy()
            np.testing.assert_allclose(completion.logp, own, atol=2e-4)
            gaps.append(np.abs(own - naive_logp(base, [6 + i, 12, 5, 15], ids).numpy()).max())
        assert (max(gaps) > 0.05) == (update > 0)  # the adapter takes effect, and did not at first
        train_step(learner, update)
    assert len(seen) == 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_base_drifts_on_neither_side(dtype):
    learner, engine = parts_of(recipe_of("tiny-moe", dtype), store := MemoryStore(dtype))
    before = base_fingerprint(learner.loaded.model, torch.float32)
    held = base_fingerprint(engine._loaded.model, DTYPES[dtype])
    assert before == fingerprint(load_model("tiny-moe").model.state_dict())
    for update in range(3):
        train_step(learner, update)
        publication = asyncio.run(learner.publish())
        assert bytes(store.fetch(publication)[BASE].tolist()).hex() == held
        asyncio.run(engine.load(publication))
        asyncio.run(learner.evaluate())
        assert base_fingerprint(learner.loaded.model, torch.float32) == before
        assert base_fingerprint(engine._loaded.model, DTYPES[dtype]) == held


@pytest.mark.parametrize(("model", "most"), [("tiny-dense", 0.1), ("tiny-moe", 0.03)])
def test_a_publication_holds_the_adapter_alone(model, most):
    learner = learner_of(recipe_of(model), MemoryStore("float32"), "cpu")
    whole = learner_of(recipe_of(model, rank=0), MemoryStore("float32"), "cpu")
    one, other = asyncio.run(learner.publish()), asyncio.run(whole.publish())
    assert 0 < one.num_bytes < most * other.num_bytes


def test_an_engine_with_another_base_refuses_and_keeps_what_it_holds():
    store = MemoryStore("float32")
    learner, _ = parts_of(recipe_of("tiny-moe"), store)
    engine = engine_of(recipe_of("tiny-moe-sorting"), store, FreeClock(), "cpu")
    before = fingerprint(engine._loaded.model.state_dict())
    train_step(learner, 0)
    with pytest.raises(ModelError, match="must meet the weights that it was trained on"):
        asyncio.run(engine.load(asyncio.run(learner.publish())))
    assert engine.version == -1
    assert fingerprint(engine._loaded.model.state_dict()) == before


@pytest.mark.parametrize(("here", "there"), [(4, 0), (0, 4), (4, 2)])
def test_an_engine_of_another_form_refuses(here, there):
    store = MemoryStore("float32")
    learner = learner_of(recipe_of("tiny-dense", rank=here), store, "cpu")
    engine = engine_of(recipe_of("tiny-dense", rank=there), store, FreeClock(), "cpu")
    with pytest.raises(ModelError, match="published weights must fit the engine's model"):
        asyncio.run(engine.load(asyncio.run(learner.publish())))


def test_the_learner_scores_an_adapter_as_an_engine_of_the_dtype_does():
    store = MemoryStore("bfloat16")
    learner, engine = parts_of(recipe_of("tiny-dense", "bfloat16"), store)
    train_step(learner, 0)
    publication = asyncio.run(learner.publish())
    asyncio.run(engine.load(publication))
    rollouts = [rollout for group in random_groups(5, 2, 3) for rollout in group.rollouts]
    scores = asyncio.run(learner.score(rollouts, publication, 1.0))
    expected = [naive_logp(engine._loaded.model, r.prompt.token_ids, r.completion.token_ids.tolist()) for r in rollouts]
    distance = np.abs(scores.published - torch.cat(expected).numpy())
    assert distance.mean() < 0.05
    assert scores.wider is not None
    assert np.abs(scores.wider - scores.current).mean() < np.abs(scores.published - scores.current).mean()


def test_a_resumed_learner_goes_on_to_the_last_bit_from_the_adapter_alone(tmp_path):
    recipe = recipe_of("tiny-moe", "bfloat16")
    first, second = MemoryStore("bfloat16"), MemoryStore("bfloat16")
    learner = learner_of(recipe, first, "cpu")
    asyncio.run(learner.publish())
    train_step(learner, 0)
    held = asyncio.run(learner.publish())
    train_step(learner, 1)
    torch.save(learner.captured().state, tmp_path / LEARNER_FILE)
    saved = torch.load(tmp_path / LEARNER_FILE, weights_only=True)
    assert all(".lora_" in name for name in saved["trainer"]["parameters"])
    assert (tmp_path / LEARNER_FILE).stat().st_size < 400_000  # the model alone has 1.5 MB

    resumed = learner_of(recipe, second, "cpu")
    assert asyncio.run(resumed.restore(tmp_path)).fingerprint == held.fingerprint
    step = step_for(learner, 2)
    for one in (learner, resumed):
        asyncio.run(one.step(step))
    assert asyncio.run(learner.publish()).fingerprint == asyncio.run(resumed.publish()).fingerprint
    assert fingerprint(learner.loaded.model.state_dict()) == fingerprint(resumed.loaded.model.state_dict())


@pytest.mark.parametrize("model", ["tiny-moe", pytest.param("tiny-dense", marks=pytest.mark.long)])
def test_a_run_trains_an_adapter_and_leaves_a_plain_model_with_the_adapter_beside(model, tmp_path):
    folder = train(recipe_of(model, "bfloat16", "pipeline.lag=1"), tmp_path / "run")
    assert RunView(folder).status == "finished"
    saved, base = load_model(str(folder / "model")), load_model(model)
    own, before = saved.model.state_dict(), base.model.state_dict()
    changed = {name.rpartition(".")[0].rpartition(".")[2] for name in own if not torch.equal(own[name], before[name])}
    attention = {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert changed == attention | ({"gate_proj", "up_proj", "down_proj"} if model == "tiny-dense" else set())
    assert (folder / "model" / "adapter" / "adapter_model.safetensors").is_file()


def test_what_cannot_be_adapted_is_refused_before_the_run_directory_is_made(tmp_path):
    recipe = recipe_of("tiny-moe", "bfloat16", 'model.lora_targets=["gate_up_proj"]')
    with pytest.raises(ModelError, match="experts of this model are one tensor"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.lora_rank=-1"], "must lie in 0 .. 4096"),
        (["model.lora_rank=0", 'model.lora_targets=["q_proj"]'], "means no adapter; set a rank"),
        (["model.lora_alpha=0"], "model.lora_alpha must lie in"),
        (["trainer.dtype=bfloat16"], "engine in float32 would not hold one that was rounded"),
        (["model.dtype=bfloat16"], "engine in float32 would not hold one that was rounded"),
    ],
)
def test_recipes_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        recipe_of("tiny-moe", "float32", *settings)


def test_a_coarse_trainer_and_a_coarse_engine_hold_the_same_base():
    settings = ("trainer.dtype=bfloat16",)
    learner, engine = parts_of(recipe_of("tiny-dense", "bfloat16", *settings), MemoryStore("bfloat16"))
    train_step(learner, 0)
    asyncio.run(engine.load(asyncio.run(learner.publish())))
    assert engine.version == 1


def test_a_checkpoint_of_another_adapter_is_told(tmp_path: Path):
    learner = learner_of(recipe_of("tiny-dense"), MemoryStore("float32"), "cpu")
    asyncio.run(learner.publish())
    torch.save(learner.captured().state, tmp_path / LEARNER_FILE)
    other = learner_of(recipe_of("tiny-dense", rank=2), MemoryStore("float32"), "cpu")
    with pytest.raises(Exception, match="a checkpoint must hold the parameters of the model that is trained"):
        asyncio.run(other.restore(tmp_path))


def test_an_evaluator_of_old_log_probs_scores_an_adapter_as_the_trainer_does():
    store = MemoryStore("float32")
    recipe = recipe_of("tiny-dense")
    learner, evaluator = learner_of(recipe, MemoryStore("float32"), "cpu"), evaluator_of(recipe, store, "cpu")
    train_step(learner, 0)
    publication = store.publish(0, learner.trainer.policy.weights())
    asyncio.run(evaluator.load(publication))
    (rollout, *_) = random_groups(5, 1, 2)[0].rollouts
    expected = naive_logp(learner.loaded.model, rollout.prompt.token_ids, rollout.completion.token_ids.tolist())
    np.testing.assert_allclose(asyncio.run(evaluator.score(rollout)), expected.numpy(), atol=1e-5)
    with pytest.raises(ModelError, match="must meet the weights that it was trained on"):
        asyncio.run(evaluator_of(recipe_of("tiny-dense-sorting"), store, "cpu").load(publication))


@pytest.mark.long
def test_an_exported_run_is_the_model_with_the_adapter_merged_or_the_adapter_alone(tmp_path):
    """What the engine samples with an adapter beside its base is what the merged model says."""
    folder = train(recipe_of("tiny-dense", "float32", "pipeline.lag=1", "eval.prompts=0"), tmp_path / "run")
    export(folder, tmp_path / "merged")
    export(folder, tmp_path / "alone", adapter=True)
    merged, base = load_model(str(tmp_path / "merged")).model, load_model("tiny-dense").model
    store = MemoryStore("float32")
    engine = engine_of(recipe_of("tiny-dense"), store, FreeClock(), "cpu")
    tensors = load_file(tmp_path / "alone" / "adapter_model.safetensors")
    named = {n.removeprefix("base_model.model.").replace(".weight", ".default.weight"): t for n, t in tensors.items()}
    named[BASE] = engine._loaded.model.get_buffer(BASE)
    asyncio.run(engine.load(store.publish(3, named)))
    gaps = []
    for i, completion in enumerate(answers(engine, temperature=1.0)):
        prompt, ids = [6 + i, 12, 5, 15], completion.token_ids.tolist()
        np.testing.assert_allclose(completion.logp, naive_logp(merged, prompt, ids).numpy(), atol=1e-4)
        gaps.append(np.abs(completion.logp - naive_logp(base, prompt, ids).numpy()).max())
    assert max(gaps) > 0.05
    for i, completion in enumerate(answers(engine, temperature=0.0)):
        assert completion.token_ids.tolist() == greedy(merged, [6 + i, 12, 5, 15])
    elsewhere = PeftModel.from_pretrained(base, tmp_path / "alone").merge_and_unload().state_dict()
    for name, tensor in merged.state_dict().items():
        torch.testing.assert_close(elsewhere[name], tensor, atol=1e-6, rtol=1e-5)


@pytest.mark.long
def test_a_run_of_all_weights_has_no_adapter_to_export(tmp_path):
    folder = train(recipe_of("tiny-dense", rank=0), tmp_path / "run")
    with pytest.raises(RunDirectoryError, match="trained all weights and has no adapter"):
        export(folder, tmp_path / "out", adapter=True)
    assert not (tmp_path / "out").exists()
