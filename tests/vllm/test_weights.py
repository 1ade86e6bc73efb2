"""Publications: whole or not at all, and what vLLM holds afterwards is what was published."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from tether.errors import ModelError
from tether.weights.memory import MemoryStore

from .world import Versions, clock, opened, plain, requests, run, trainer


def assert_holds(engine, versions, number):
    """Greedy ids and log-probs are the trainer's."""
    asked = requests(4, temperature=0.0)
    for request, made in zip(asked, run(engine.answer(asked)), strict=True):
        np.testing.assert_allclose(made.logp, versions.plain(number, request, made), atol=1e-4)


def test_every_publication_changes_the_weights_to_the_trainers(moe):
    versions = Versions()
    engine = moe.engine(versions.store, clock())
    told = []
    for number, publication in enumerate(versions.publications):
        assert run(engine.load(publication)) == publication.fingerprint
        assert engine.version == 8 * number
        assert moe.core._engine.get_weight_version() == str(8 * number)
        assert_holds(engine, versions, number)
        told.append([m.logp.tolist() for m in run(engine.answer(requests(4, temperature=0.0)))])
    assert told[0] != told[1] != told[2]


@pytest.mark.parametrize(
    "part", ["embed_tokens", "lm_head", "q_proj", "o_proj", "gate_up_proj", "down_proj", "mlp.gate.", "norm"]
)
def test_a_change_of_any_kind_of_weight_arrives(moe, part):
    """vLLM lays weights out anew, each kind in its own way; two of them it forgets."""
    store, model = MemoryStore("float32"), trainer().model
    engine = moe.engine(store, clock())
    run(engine.load(store.publish(0, model.state_dict())))
    changed = {
        name: tensor + 0.05 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1))
        if part in name or ("lm_head" in name and part == "embed_tokens") or ("embed" in name and part == "lm_head")
        else tensor
        for name, tensor in model.state_dict().items()
    }
    changed["lm_head.weight"] = changed["model.embed_tokens.weight"]
    run(engine.load(store.publish(1, changed)))
    reference = opened_trainer(changed)
    asked = requests(3, temperature=0.0)
    for request, made in zip(asked, run(engine.answer(asked)), strict=True):
        np.testing.assert_allclose(made.logp, plain(reference, request, made), atol=1e-4)


def opened_trainer(weights):
    from tether.models.loading import load_model

    loaded = load_model("tiny-moe")
    loaded.model.load_state_dict(weights)
    return loaded


def test_a_publication_that_skips_one_is_refused_and_the_engine_keeps_its_version(moe):
    versions = Versions()
    engine = moe.engine(versions.store, clock())
    run(engine.load(versions.publications[0]))
    with pytest.raises(ModelError, match="a version was missed"):
        run(engine.load(versions.publications[2]))
    assert engine.version == 0
    assert_holds(engine, versions, 0)


def test_the_publication_that_is_held_may_come_again(moe):
    versions = Versions()
    engine = moe.engine(versions.store, clock())
    for _ in range(2):
        assert run(engine.load(versions.publications[1])) == versions.publications[1].fingerprint
    assert_holds(engine, versions, 1)


@pytest.mark.parametrize("fault", ["fingerprint", "missing", "shape"])
def test_weights_that_are_not_what_was_announced_change_nothing(moe, fault, monkeypatch):
    versions = Versions()
    engine = moe.engine(versions.store, clock())
    run(engine.load(versions.publications[0]))
    store, weights = MemoryStore("float32"), dict(versions.models[1].model.state_dict())
    store.publish(0, weights)
    if fault == "missing":
        del weights["model.norm.weight"]
    if fault == "shape":
        weights["model.norm.weight"] = weights["model.norm.weight"][:-1]
    publication = announced = store.publish(8, weights)
    if fault == "fingerprint":
        publication = replace(publication, fingerprint="0" * 64)
    monkeypatch.setattr(versions.store, "fetch", lambda publication: store.fetch(announced))
    with pytest.raises(ModelError, match=r"must be those of the publication|must fit the engine's model"):
        run(engine.load(publication))
    assert engine.version == 0
    assert_holds(engine, versions, 0)


def test_an_engine_whose_reload_broke_says_that_it_is_lost(moe, monkeypatch):
    versions = Versions()
    engine = moe.engine(versions.store, clock())
    run(engine.load(versions.publications[0]))

    def broken(weights):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(moe.core, "reload", broken)
        with pytest.raises(ModelError, match="this engine is lost, open it anew"):
            run(engine.load(versions.publications[1]))
    for call in (engine.generate(requests(1)[0]), engine.answer(requests(1)), engine.load(versions.publications[1])):
        with pytest.raises(ModelError, match="out of memory"):
            run(call)


def test_a_load_that_breaks_while_rows_are_under_way_is_heard_by_nobody_else(endless, monkeypatch):
    versions, asked = Versions(), requests(2)

    async def main():
        time = clock()
        engine = endless.engine(versions.store, time)
        await engine.load(versions.publications[0])
        running = [asyncio.create_task(engine.generate(r)) for r in asked]
        await time.until(0.05)
        monkeypatch.setattr(versions.store, "fetch", lambda publication: {})
        with pytest.raises(ModelError):
            await engine.load(versions.publications[1], "keep")
        return await asyncio.gather(*running)

    assert [made.version.tolist() for made in run(main())] == [[0] * 12] * 2


def test_a_dense_model_with_a_tied_head_in_bfloat16_has_a_mismatch_and_holds_what_was_published():
    dense = opened("tiny-dense", "bfloat16")
    versions = Versions("tiny-dense", "bfloat16")
    engine = dense.engine(versions.store, clock())
    for number, publication in enumerate(versions.publications):
        run(engine.load(publication))
        asked = requests(8)
        made = run(engine.answer(asked))
        gaps = np.concatenate([versions.plain(number, r, m) - m.logp for r, m in zip(asked, made, strict=True)])
        assert 1e-4 < np.abs(gaps).mean() < 0.1


def test_the_transfer_api_brings_every_version_as_the_reload_does():
    apart = opened("tiny-moe", "float32", transfer="handover")
    versions = Versions()
    engine = apart.engine(versions.store, clock())
    for number, publication in enumerate(versions.publications):
        assert run(engine.load(publication)) == publication.fingerprint
        assert_holds(engine, versions, number)
