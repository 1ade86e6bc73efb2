import asyncio
import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engines.tiny import (
    NumberedStore,
    Ready,
    assert_equal_bits,
    build,
    engine_of,
    requests,
    sample,
    state,
    through_a_file,
)
from tether.engines import packed
from tether.engines.decoding import RowBatch
from tether.engines.packed import LEAST, PackedLinear, pack_linear_layers
from tether.models.lora import Lora, adapt, published

HAS_KERNEL = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
pytestmark = pytest.mark.skipif(not HAS_KERNEL, reason="this processor has no bfloat16 kernel to pack for")


@pytest.fixture
def packs_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small layers as well, so that a small model tells."""
    monkeypatch.setattr(packed, "LEAST", 1)


def layer_of(bias: bool = True, dtype: torch.dtype = torch.bfloat16) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(512, 256, bias=bias, dtype=dtype).requires_grad_(False)


def plain(layer: nn.Linear, given: Tensor) -> Tensor:
    return nn.functional.linear(given, layer.weight, layer.bias)


def packed_layers(model: nn.Module) -> list[str]:
    return [name for name, layer in model.named_modules() if isinstance(layer, PackedLinear)]


def model_of(kind: str, seed: int = 0) -> Any:
    return build(kind, seed).to(torch.bfloat16)


def logits_of(model: Any) -> Tensor:
    """Of every position of two prompts."""
    ids = torch.arange(2, 22).view(2, 10)
    with torch.inference_mode():
        return model(input_ids=ids).logits


def unpacked(model: Any) -> Any:
    """A copy with plain layers."""
    other = copy.deepcopy(model)
    for layer in other.modules():
        if isinstance(layer, PackedLinear):
            layer.__class__ = nn.Linear
    return other


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1,), (16,), (64,), (500,), (16, 1), (4, 40), (0,)])
def test_a_packed_layer_gives_the_plain_one_s_values(shape: Sequence[int], bias: bool) -> None:
    layer, given = layer_of(bias), torch.randn(*shape, 512).bfloat16()
    expected = plain(layer, given)
    pack_linear_layers(layer)
    assert type(layer) is PackedLinear
    got = layer(given)
    assert got.dtype == torch.bfloat16
    assert got.shape == expected.shape
    torch.testing.assert_close(got, expected, rtol=2**-8, atol=1e-3)


def test_a_view_with_gaps_gives_what_its_copy_gives() -> None:
    layer, given = layer_of(), torch.randn(4, 6, 512).bfloat16()
    pack_linear_layers(layer)
    for view in (given[:, -1:], given.transpose(0, 1), given[0, 0]):
        assert torch.equal(layer(view), layer(view.contiguous()))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_weight_written_to_is_packed_anew(mode: Any) -> None:
    layer, given = layer_of(), torch.randn(16, 512).bfloat16()
    pack_linear_layers(layer)
    with torch.inference_mode():
        before = layer(given)
    with mode():
        layer.weight.copy_(layer.weight.flip(0))
    with torch.inference_mode():
        after = layer(given)
        torch.testing.assert_close(after, plain(layer, given), rtol=2**-8, atol=1e-3)
    assert (after - before).abs().max() > 0.1


def test_a_weight_is_packed_once_for_all_calls_until_it_is_written_to() -> None:
    layer, given = layer_of(), torch.randn(16, 512).bfloat16()
    pack_linear_layers(layer)
    layer(given)
    first = layer._packed
    layer(given)
    layer.bias.fill_(1)
    layer(given)
    assert layer._packed is first
    layer.weight.fill_(1)
    layer(given)
    assert layer._packed is not first


def test_a_bias_is_the_live_one() -> None:
    layer, given = layer_of(), torch.randn(16, 512).bfloat16()
    pack_linear_layers(layer)
    layer(given)
    layer.bias.fill_(3)
    torch.testing.assert_close(layer(given), plain(layer, given), rtol=2**-8, atol=1e-3)


def test_small_layers_and_other_formats_and_other_kinds_of_layers_stay_plain() -> None:
    class Scaled(nn.Linear):
        pass

    small = nn.Linear(LEAST // 64, 63, dtype=torch.bfloat16)
    kinds = [small, layer_of(dtype=torch.float32), Scaled(512, 256, dtype=torch.bfloat16), nn.Embedding(512, 256)]
    model = nn.Sequential(*kinds, nn.Linear(LEAST // 64, 64, dtype=torch.bfloat16))
    pack_linear_layers(model)
    assert packed_layers(model) == ["4"]


def test_a_copy_takes_as_many_bytes_as_its_weight() -> None:
    layer = layer_of()
    pack_linear_layers(layer)
    assert layer._packed is None
    layer(torch.randn(16, 512).bfloat16())
    assert layer._packed.numel() * layer._packed.element_size() == layer.weight.nbytes


def test_names_weights_and_copies_are_those_of_the_plain_layer() -> None:
    layer, given = layer_of(), torch.randn(16, 512).bfloat16()
    before = layer.state_dict(keep_vars=True)
    pack_linear_layers(layer)
    layer(given)
    after = layer.state_dict(keep_vars=True)
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(given), layer(given))
    twin.weight.fill_(0)
    assert not torch.equal(twin(given), layer(given))


def test_a_small_model_keeps_its_layers() -> None:
    model = model_of("tied")
    engine_of(model)
    assert packed_layers(model) == []


@pytest.mark.usefixtures("packs_all")
def test_a_float32_engine_keeps_its_layers() -> None:
    model = build("tied")
    engine_of(model, dtype="float32")
    assert packed_layers(model) == []


@pytest.mark.usefixtures("packs_all")
@pytest.mark.parametrize("kind", ["tied", "moe", "sliding"])
def test_an_engine_s_model_gives_the_logits_of_plain_layers(kind: str) -> None:
    model = model_of(kind)
    engine_of(model)
    assert "lm_head" in packed_layers(model)
    expected = logits_of(unpacked(model))
    assert (logits_of(model) - expected).abs().max() <= 2**-6 * expected.abs().max()


@pytest.mark.usefixtures("packs_all")
def test_after_every_load_the_engine_samples_from_the_new_weights_alone() -> None:
    """Against an engine that never held others: the same bits."""
    store = NumberedStore("bfloat16")
    model, asked = model_of("tied"), requests(6)
    engine = engine_of(model, store=store)
    for version in range(3):
        publication = store.publish(version, state(model_of("tied", seed=version + 1)))
        asyncio.run(engine.load(publication))
        got = sample(engine, asked)
        fresh = engine_of(model_of("tied", seed=7), store=store)
        asyncio.run(fresh.load(publication))
        assert_equal_bits(got, sample(fresh, asked))
        assert torch.equal(logits_of(model), logits_of(unpacked(model)))


def tensors_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.usefixtures("packs_all")
def test_what_the_engine_holds_is_what_was_published() -> None:
    store, model = NumberedStore("bfloat16"), model_of("tied")
    engine = engine_of(model, store=store)
    sample(engine, requests(2))
    other = model_of("tied", seed=3)
    publication = store.publish(0, state(other))
    assert asyncio.run(engine.load(publication)) == publication.fingerprint
    sample(engine, requests(2))
    assert tensors_equal(published(model), published(other))


@pytest.mark.usefixtures("packs_all")
def test_adapted_layers_are_packed_below_their_adapter_and_a_load_changes_the_adapter_alone() -> None:
    model = model_of("tied")
    adapt(model, Lora(rank=2), dtype=torch.bfloat16)
    engine = engine_of(model, store=(store := NumberedStore("bfloat16")))
    assert any(name.endswith("q_proj.base_layer") for name in packed_layers(model))
    before = logits_of(model)
    bases = {name: model.get_submodule(name)._packed for name in packed_layers(model) if "base_layer" in name}
    loaded = {name: torch.ones_like(t) if ".lora_B." in name else t for name, t in published(model).items()}
    asyncio.run(engine.load(store.publish(0, loaded)))
    after = logits_of(model)
    assert not torch.equal(after, before)
    assert torch.equal(after, logits_of(unpacked(model)))
    assert all(model.get_submodule(name)._packed is copy_ for name, copy_ in bases.items())


@pytest.mark.usefixtures("packs_all")
def test_rows_restored_from_a_file_go_on_to_the_same_bits() -> None:
    model, asked = model_of("tied"), requests(5)
    ready = Ready(model)
    engine_of(model)
    batch = RowBatch.of(ready, asked)
    batch.advance(0, 4)
    other_model = model_of("tied")
    engine_of(other_model)
    other = RowBatch(Ready(other_model))
    other.restore(through_a_file(batch.state()))
    for one in (batch, other):
        while one.drafts:
            one.advance(0, 4)
    assert_equal_bits(*([draft.completion() for draft in one._drafts] for one in (batch, other)))
