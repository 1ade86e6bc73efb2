"""Before training, an adapter that makes a difference is published: an engine without it is caught there and then."""

from __future__ import annotations

import asyncio

import pytest
import torch

pytest.importorskip("peft")

from tether.config.learning import learner_of
from tether.errors import ModelError, SelfCheckError
from tether.journal import RunView
from tether.models.fingerprint import fingerprint
from tether.ports import TRIAL
from tether.weights.memory import MemoryStore

from .test_lora import recipe_of
from .test_selfcheck import doctored_run

ADAPTER = ("model.lora_rank=4", "algorithm.preset=grpo")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["tiny-moe", "tiny-dense"])
@pytest.mark.parametrize("fault", ["without adapter", "scaled adapter", "stale"])
def test_an_engine_that_does_not_use_the_adapter_as_it_is_fails_before_training(tmp_path, fault, model, dtype):
    with pytest.raises(SelfCheckError, match=rf"'agreement' failed at version {TRIAL}: .*answer with its base alone"):
        doctored_run(tmp_path / "run", fault, *ADAPTER, f"model.path={model}", f"engine.dtype={dtype}")
    assert not RunView(tmp_path / "run").steps


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sound_engine_passes_the_trial_and_leaves_it(tmp_path, dtype):
    view = doctored_run(tmp_path / "run", "none", *ADAPTER, f"engine.dtype={dtype}")
    assert view.status == "finished"
    first, *_ = view.of("check")
    assert first.version == 0
    assert first.metrics["probe/is_undecided"].value == 0  # the trial's and version 0 are far apart
    assert first.metrics["probe/progress"].value == pytest.approx(1.0, abs=0.1)
    assert [event.version for event in view.of("publish")] == [0, 1, 2]


@pytest.mark.parametrize("sound_loads", [1, 2])
def test_an_adapter_that_arrives_at_first_and_no_more_is_caught_at_the_version_that_did_not(tmp_path, sound_loads):
    with pytest.raises(SelfCheckError, match=rf"failed at version {sound_loads - 1}: "):
        doctored_run(tmp_path / "run", "stale", *ADAPTER, "trainer.lr=0.02", sound_loads=sound_loads)


def test_a_trial_changes_nothing_that_is_trained_and_is_none_without_an_adapter():
    learner = learner_of(recipe_of("tiny-moe"), store := MemoryStore("float32"), "cpu")
    before = fingerprint(learner.loaded.model.state_dict()), torch.get_rng_state()
    publication = asyncio.run(learner.publish_trial())
    assert publication is not None
    assert publication.version == TRIAL
    assert fingerprint(learner.loaded.model.state_dict()) == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    tensors = store.fetch(publication)
    assert all(tensor.abs().sum() > 0 for name, tensor in tensors.items() if ".lora_B" in name)
    whole = learner_of(recipe_of("tiny-moe", rank=0), MemoryStore("float32"), "cpu")
    assert asyncio.run(whole.publish_trial()) is None


def test_a_base_that_was_written_into_is_not_saved(tmp_path):
    learner = learner_of(recipe_of("tiny-dense"), MemoryStore("float32"), "cpu")
    asyncio.run(learner.save_model(tmp_path / "sound"))
    with torch.no_grad():
        learner.loaded.model.get_input_embeddings().weight[0, 0] += 1
    with pytest.raises(ModelError, match="the base of an adapter must stay as it is"):
        asyncio.run(learner.save_model(tmp_path / "changed"))
    assert not (tmp_path / "changed").exists()
