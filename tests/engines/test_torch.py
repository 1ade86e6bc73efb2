import asyncio
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.tiny import (
    CONTEXT,
    VOCABULARY,
    ManualClock,
    NumberedStore,
    assert_same,
    build,
    engine_of,
    plain_forward,
    requests,
    sample,
    state,
)
from tether.engines.torch import Torch
from tether.errors import ConfigError, DataError, ModelError, NonFiniteError
from tether.models.loading import load_model
from tether.ports import GenerationRequest, RolloutEngine


@pytest.fixture(scope="module")
def moe() -> Any:
    return build("moe")


def test_it_is_a_rollout_engine(moe: Any) -> None:
    engine = engine_of(moe)
    assert isinstance(engine, RolloutEngine)
    assert engine.version == -1
    assert engine.capabilities.logp == "processed"
    assert sample(engine, []) == []


@pytest.mark.parametrize("kind", ["moe", "eager", "tied", "sliding", "gpt2"])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.3])
def test_float32_logp_and_entropy_equal_a_plain_forward(kind: str, temperature: float) -> None:
    model = build(kind)
    asked = requests(14, temperature=temperature)
    done = sample(engine_of(build(kind), dtype="float32", yield_every=4), asked)
    assert {c.finish for c in done} == {"stop", "length"}
    for request, completion in zip(asked, done, strict=True):
        logp, entropy = plain_forward(model, request, completion)
        np.testing.assert_allclose(completion.logp, logp.numpy(), atol=1e-5)
        np.testing.assert_allclose(completion.entropy, entropy.numpy(), atol=1e-5)
        assert completion.logp.dtype == completion.entropy.dtype == np.float32
        assert completion.token_ids.dtype == completion.version.dtype == np.int32


@pytest.mark.parametrize("kind", ["moe", "sliding", "gpt2"])
def test_a_sample_does_not_depend_on_the_batch_its_order_or_the_padding(kind: str) -> None:
    model = build(kind)
    asked = requests(12)
    together = sample(engine_of(model, dtype="float32"), asked)
    alone = [sample(engine_of(model, dtype="float32"), [request])[0] for request in asked]
    assert_same(together, alone)
    assert_same(sample(engine_of(model, dtype="float32"), asked[::-1]), together[::-1])
    assert_same(sample(engine_of(model, dtype="float32", max_rows=5, yield_every=1), asked), together)
    longest = GenerationRequest(
        id="long", prompt_ids=tuple(range(2, 22)) * 2, seed=0, max_tokens=CONTEXT - 40, temperature=1.0
    )
    assert_same(sample(engine_of(model, dtype="float32", yield_every=3), [longest, *asked])[1:], together)


def test_equal_requests_give_equal_completions_and_other_seeds_other_ones(moe: Any) -> None:
    one = requests(1)[0]
    first, twin, other = sample(engine_of(moe), [one, one, dataclasses.replace(one, seed=one.seed + 1)])
    assert_same([twin], [first])
    assert other.token_ids.tolist() != first.token_ids.tolist()


def test_the_global_random_state_is_left_alone(moe: Any) -> None:
    before = torch.get_rng_state()
    sample(engine_of(moe), requests(3))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("eos_ids", [(1,), (1, 7, 9)])
def test_the_end_of_sequence_is_kept_and_nothing_follows(moe: Any, eos_ids: tuple[int, ...]) -> None:
    asked = requests(40)
    done = sample(engine_of(moe, dtype="float32", eos_ids=eos_ids), asked)
    for request, completion in zip(asked, done, strict=True):
        ends = np.flatnonzero(np.isin(completion.token_ids, eos_ids)).tolist()
        if completion.finish == "stop":
            assert ends == [len(completion) - 1]
        else:
            assert ends == []
            assert len(completion) == request.max_tokens
    last = {int(c.token_ids[-1]) for c in done if c.finish == "stop"}
    assert last == set(eos_ids)


def test_finished_rows_leave_the_batch() -> None:
    model, sizes = build("moe"), []
    model.register_forward_pre_hook(lambda _, __, given: sizes.append(len(given["input_ids"])), with_kwargs=True)
    asked = [dataclasses.replace(requests(1)[0], seed=i, max_tokens=limit) for i, limit in enumerate([2, 2, 2, 8])]
    sample(engine_of(model, eos_ids=(VOCABULARY,), yield_every=2), asked)
    assert sizes == [1, 4, 1, 1, 1, 1, 1, 1]  # the prompt they share, all rows, the one that is left


@pytest.mark.parametrize("kind", ["moe", "sliding", "gpt2"])
def test_a_prompt_that_several_requests_share_is_read_once(kind: str) -> None:
    """Wherever its requests stand among the others, and whatever their limits."""
    model, sizes = build(kind), []
    model.register_forward_pre_hook(lambda _, __, given: sizes.append(given["input_ids"].shape), with_kwargs=True)
    prompts = [r.prompt_ids for r in requests(3)]
    asked = [dataclasses.replace(r, prompt_ids=prompts[i * 7 % 3]) for i, r in enumerate(requests(24))]
    done = sample(engine_of(model, dtype="float32"), asked)
    width = max(map(len, prompts))
    assert sizes[0] == (3, width)
    assert sizes[1] == (24, 1)
    for request, completion in zip(asked, done, strict=True):
        logp, entropy = plain_forward(model, request, completion)
        np.testing.assert_allclose(completion.logp, logp.numpy(), atol=1e-5)
        np.testing.assert_allclose(completion.entropy, entropy.numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", ["moe", "sliding", "gpt2"])
def test_the_head_is_not_copied_for_every_row(kind: str) -> None:
    """torch copies the weights a row when the hidden states cannot be laid flat, as a slice of a prompt's cannot."""
    model, flat = build(kind), []
    head = model.get_output_embeddings()
    head.register_forward_pre_hook(lambda _, given: flat.append(given[0].is_contiguous()))
    sample(engine_of(model, dtype="float32"), requests(5))
    assert all(flat)


def test_padding_that_equals_the_end_of_sequence_changes_nothing(moe: Any) -> None:
    asked = requests(20)
    assert_same(
        sample(engine_of(moe, dtype="float32", pad_id=1), asked),
        sample(engine_of(moe, dtype="float32", pad_id=0), asked),
    )


def test_temperatures_and_limits_may_differ_by_row(moe: Any) -> None:
    base = requests(1)[0]
    asked = [
        dataclasses.replace(base, temperature=temperature, max_tokens=limit)
        for temperature in (0.0, 0.5, 2.0)
        for limit in (1, 9, 20)
    ]
    together = sample(engine_of(moe, dtype="float32", eos_ids=(VOCABULARY,)), asked)
    assert [len(c) for c in together] == [1, 9, 20] * 3
    alone = [sample(engine_of(moe, dtype="float32", eos_ids=(VOCABULARY,)), [r])[0] for r in asked]
    assert_same(together, alone)


def test_greedy_takes_the_most_probable_token(moe: Any) -> None:
    (done,) = sample(
        engine_of(moe, dtype="float32"), [dataclasses.replace(requests(1, alternatives=2)[0], temperature=0.0)]
    )
    assert done.top_k_ids is not None
    assert done.token_ids.tolist() == done.top_k_ids[:, 0].tolist()


def test_alternatives_are_reported_to_those_who_ask(moe: Any) -> None:
    plain, some = requests(2)
    asked = [plain, dataclasses.replace(some, alternatives=3), dataclasses.replace(some, alternatives=VOCABULARY)]
    none, three, every = sample(engine_of(moe, dtype="float32"), asked)
    assert none.top_k_ids is None
    assert none.top_k_logp is None
    assert three.top_k_ids is not None
    assert three.top_k_logp is not None
    assert every.top_k_logp is not None
    assert three.top_k_ids.shape == three.top_k_logp.shape == (len(three), 3)
    assert (np.diff(three.top_k_logp, axis=1) <= 0).all()
    np.testing.assert_allclose(np.exp(every.top_k_logp).sum(axis=1), 1.0, atol=1e-5)


def test_bfloat16_differs_from_float32_by_a_little() -> None:
    model = build("moe")
    asked = requests(16)
    exact = {r.id: r for r in asked}
    done = sample(engine_of(build("moe").to(torch.bfloat16)), asked)
    gaps = np.concatenate(
        [plain_forward(model, exact[r.id], c)[0].numpy() - c.logp for r, c in zip(asked, done, strict=True)]
    )
    assert 1e-4 < np.abs(gaps).mean() < 0.3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_embedded_model_samples_near_the_float32_trainer(dtype: str) -> None:
    trainer = load_model("tiny-moe")
    store = NumberedStore(dtype)
    engine = Torch(dtype=dtype).open("tiny-moe", store=store, clock=ManualClock(), device="cpu")
    published = store.publish(0, state(trainer.model))
    assert asyncio.run(engine.load(published)) == published.fingerprint
    prompt = tuple(trainer.tokenizer("4+3=").input_ids)
    asked = [GenerationRequest(id=str(i), prompt_ids=prompt, seed=i, max_tokens=12, temperature=1.0) for i in range(32)]
    answered = list(zip(asked, sample(engine, asked), strict=True))
    trained = np.concatenate([plain_forward(trainer.model, request, answer)[0].numpy() for request, answer in answered])
    sampled = np.concatenate([answer.logp for _, answer in answered])
    if dtype == "float32":
        np.testing.assert_allclose(sampled, trained, rtol=1e-5, atol=1e-5)
    else:
        assert 1e-4 < np.abs(sampled - trained).mean() < 0.1


def test_time_is_spent_in_forward_passes_every_few_tokens(moe: Any) -> None:
    clock = ManualClock()
    engine = engine_of(moe, clock=clock, eos_ids=(VOCABULARY,), yield_every=8)
    sample(engine, [dataclasses.replace(requests(1)[0], max_tokens=20)])
    assert clock.spent == [("generate_token", 8.0), ("generate_token", 8.0), ("generate_token", 4.0)]


def test_every_token_carries_the_version_that_made_it() -> None:
    clock, store = ManualClock(), NumberedStore("float32")
    engine = engine_of(build("moe"), clock=clock, store=store, dtype="float32", eos_ids=(VOCABULARY,), yield_every=4)
    asyncio.run(engine.load(store.publish(0, state(build("moe")))))
    asked = [dataclasses.replace(r, max_tokens=15) for r in requests(3)]
    undisturbed = sample(engine, asked)
    assert all(set(c.version.tolist()) == {0} for c in undisturbed)

    newer = store.publish(8, state(build("moe", seed=1)))
    clock.spent.clear()
    clock.at_yield = lambda count: engine.load(newer, "keep") if count == 2 else None
    disturbed = sample(engine, asked)
    for before, after in zip(undisturbed, disturbed, strict=True):
        assert after.version.tolist() == [0] * 8 + [8] * 7
        assert after.token_ids[:8].tolist() == before.token_ids[:8].tolist()
        np.testing.assert_allclose(after.logp[:8], before.logp[:8], atol=1e-6)
        assert after.token_ids.tolist() != before.token_ids.tolist()


def test_the_cache_is_kept_when_the_weights_change() -> None:
    """The first token after an update is made by new weights that look at keys of the old ones."""
    clock, store = ManualClock(), NumberedStore("float32")
    old, new = build("moe"), build("moe", seed=1)
    engine = engine_of(build("moe"), clock=clock, store=store, dtype="float32", eos_ids=(VOCABULARY,), yield_every=4)
    newer = store.publish(8, state(new))
    clock.at_yield = lambda count: engine.load(newer, "keep") if count == 1 else None
    request = dataclasses.replace(requests(3)[2], max_tokens=6)
    (done,) = sample(engine, [request])
    ids = torch.tensor([[*request.prompt_ids, *done.token_ids[:4].tolist()]])
    with torch.no_grad():
        cached = old(input_ids=ids[:, :-1], use_cache=True).past_key_values
        logits = new(input_ids=ids[:, -1:], past_key_values=cached).logits[0, -1]
    np.testing.assert_allclose(done.logp[4], torch.log_softmax(logits, -1)[done.token_ids[4]].item(), atol=1e-5)


@pytest.mark.parametrize("kind", ["moe", "tied"])
def test_a_load_changes_the_outputs_and_acknowledges_what_arrived(kind: str) -> None:
    store, other = NumberedStore("float32"), build(kind, seed=1)
    engine = engine_of(build(kind), store=store, dtype="float32")
    asked = requests(4)
    at_first = sample(engine, asked)
    first, second = store.publish(0, state(build(kind))), store.publish(5, state(other))
    assert first.fingerprint != second.fingerprint
    assert asyncio.run(engine.load(second)) == second.fingerprint
    assert engine.version == 5
    assert_same(sample(engine, asked), sample(engine_of(other, dtype="float32"), asked))
    again = store.publish(9, state(build(kind)))
    assert asyncio.run(engine.load(again)) == again.fingerprint == first.fingerprint
    assert_same(sample(engine, asked), at_first)


def test_one_name_of_tied_weights_is_enough() -> None:
    store = NumberedStore("float32")
    other = build("tied", seed=1)
    once = dict(other.named_parameters())
    assert "lm_head.weight" not in once
    engine = engine_of(build("tied"), store=store, dtype="float32")
    asyncio.run(engine.load(store.publish(0, once)))
    asked = requests(4)
    assert_same(sample(engine, asked), sample(engine_of(other, dtype="float32"), asked))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("missing", "missing 'model.norm.weight'"),
        ("unexpected", "unexpected 'module.model.norm.weight'"),
        ("shape", r"'model.norm.weight' has shape \(3,\) instead of \(64,\)"),
        ("untied", "'model.embed_tokens.weight' and 'lm_head.weight' are tied but differ"),
    ],
)
def test_weights_that_do_not_fit_are_refused_whole(fault: str, message: str) -> None:
    store = NumberedStore("float32")
    engine = engine_of(build("tied"), store=store, dtype="float32")
    asyncio.run(engine.load(store.publish(0, state(build("tied")))))
    held = {name: tensor.clone() for name, tensor in state(engine._loaded.model).items()}
    wrong = dict(state(build("tied", seed=1)))
    if fault in ("missing", "unexpected"):
        norm = wrong.pop("model.norm.weight")
    if fault == "unexpected":
        wrong["module.model.norm.weight"] = norm
    if fault == "shape":
        wrong["model.norm.weight"] = torch.ones(3)
    if fault == "untied":
        wrong["lm_head.weight"] = wrong["lm_head.weight"] + 1
    with pytest.raises(ModelError, match=message):
        asyncio.run(engine.load(store.publish(8, wrong)))
    assert engine.version == 0
    assert all(torch.equal(tensor, held[name]) for name, tensor in state(engine._loaded.model).items())


def test_weights_damaged_on_the_way_are_refused() -> None:
    class Damaging(NumberedStore):
        def fetch(self, publication: Any) -> Any:
            return {name: tensor + 1 for name, tensor in super().fetch(publication).items()}

    store = Damaging("float32")
    engine = engine_of(build("tied"), store=store, dtype="float32")
    with pytest.raises(ModelError, match="announced as"):
        asyncio.run(engine.load(store.publish(0, state(build("tied")))))
    assert engine.version == -1


def test_logits_that_are_not_numbers_name_request_position_and_version() -> None:
    store, clock = NumberedStore("float32"), ManualClock()
    engine = engine_of(build("moe"), store=store, clock=clock, dtype="float32", eos_ids=(VOCABULARY,), yield_every=4)
    broken = dict(state(build("moe")))
    broken["lm_head.weight"] = torch.full_like(broken["lm_head.weight"], float("nan"))
    published = store.publish(3, broken)
    clock.at_yield = lambda count: engine.load(published, "keep") if count == 1 else None
    with pytest.raises(NonFiniteError, match=r"request 'r0' has NaN or infinity at position 4 .* made by version 3"):
        sample(engine, [dataclasses.replace(requests(1)[0], max_tokens=8)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_ids": ()}, "must have at least one token; request 'r0' has none"),
        ({"prompt_ids": (2, VOCABULARY)}, r"must lie in 0 .. 23; request 'r0' has 2 .. 24"),
        ({"max_tokens": 0}, "must be at least 1; request 'r0' asks for 0"),
        ({"prompt_ids": (2, 3), "max_tokens": CONTEXT - 1}, r"fit the context of 64 tokens; request 'r0' has 2 \+ 63"),
        ({"temperature": float("nan")}, "temperature must be finite"),
        ({"temperature": -0.1}, "temperature must be finite and at least 0"),
        ({"alternatives": VOCABULARY + 1}, "alternatives must lie in 0 .. 24"),
    ],
)
def test_requests_that_cannot_be_served_are_refused_before_any_work(
    moe: Any, change: dict[str, Any], message: str
) -> None:
    engine = engine_of(moe)
    sound, faulty = requests(2)[1], dataclasses.replace(requests(1)[0], **change)
    with pytest.raises(DataError, match=message):
        sample(engine, [faulty])
    with pytest.raises(DataError, match=message):
        asyncio.run(engine.answer([sound, faulty]))
    assert engine.busy_s == 0


def test_the_whole_context_may_be_used_by_every_row() -> None:
    """A row that ends early runs on in its block; learned positions have no entry beyond the context."""
    model = build("gpt2")
    sizes = [(CONTEXT - 2, 2), (2, CONTEXT - 2), (CONTEXT - 1, 1)]
    asked = [GenerationRequest(id=str(p), prompt_ids=(3,) * p, seed=p, max_tokens=n, temperature=1.0) for p, n in sizes]
    done = sample(engine_of(model, dtype="float32", eos_ids=(VOCABULARY,)), asked)
    assert [len(c) for c in done] == [n for _, n in sizes]
    logp, _ = plain_forward(model, asked[1], done[1])
    np.testing.assert_allclose(done[1].logp, logp.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    "options", [{"dtype": "int8"}, {"temperature": -1.0}, {"max_tokens": 0}, {"max_rows": 0}, {"yield_every": 0}]
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"engine.{next(iter(options))} must"):
        Torch(**options)
