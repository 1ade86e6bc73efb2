"""An adapter: what it changes, what it leaves, what travels, what is saved."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("peft")

from tests.engines.tiny import build
from tether.errors import ConfigError, ModelError
from tether.models.fingerprint import fingerprint
from tether.models.loading import LoadedModel, load_model, save_model
from tether.models.lora import (
    BASE,
    Lora,
    adapt,
    base_fingerprint,
    check_base,
    is_adapted,
    plain,
    published,
    whole,
)
from tether.models.policy import Policy

from .small import logits, small, write

FLOAT = torch.float32
ALL = {"q_proj", "k_proj", "v_proj", "o_proj"}
DENSE = ALL | {"gate_proj", "up_proj", "down_proj"}


def loaded_of(kind: str, seed: int = 0) -> LoadedModel:
    return dataclasses.replace(small(), model=build(kind, seed).eval())


def moved(loaded: LoadedModel, seed: int = 0) -> LoadedModel:
    """As if it had been trained: B is not 0 any more."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if ".lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return loaded


@pytest.mark.parametrize(("kind", "layers"), [("moe", ALL), ("tied", DENSE), ("sliding", DENSE)])
def test_every_linear_layer_but_head_routers_and_experts_gets_an_adapter_that_changes_nothing(kind, layers):
    loaded = loaded_of(kind)
    before, base = logits(loaded), fingerprint(loaded.model.state_dict())
    assert not is_adapted(loaded.model)
    adapt(loaded.model, Lora(rank=2), dtype=FLOAT)
    assert is_adapted(loaded.model)
    trained = {name for name, parameter in loaded.model.named_parameters() if parameter.requires_grad}
    assert {name.partition(".lora_")[0].rpartition(".")[2] for name in trained} == layers
    assert trained == published(loaded.model).keys() - {BASE}
    assert torch.equal(logits(loaded), before)
    assert base_fingerprint(loaded.model, FLOAT) == base
    assert not torch.equal(logits(moved(loaded)), before)
    assert base_fingerprint(loaded.model, FLOAT) == base


def test_a_layer_with_an_adapter_is_w_plus_alpha_over_rank_times_b_a():
    loaded = loaded_of("tied")
    layer = loaded.model.model.layers[0].mlp.up_proj
    x = torch.randn(3, layer.in_features, generator=torch.Generator().manual_seed(1))
    weight = layer.weight.detach().clone()
    adapt(loaded.model, Lora(rank=4, alpha=12.0, targets=("up_proj",)), dtype=FLOAT)
    moved(loaded)
    layer = loaded.model.model.layers[0].mlp.up_proj
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    torch.testing.assert_close(layer(x), x @ (weight + 3.0 * b @ a).T)


def test_the_same_seed_starts_the_same_adapter_and_leaves_the_random_state_alone():
    states = []
    for seed in (0, 0, 1):
        loaded = loaded_of("tied")
        torch.manual_seed(seed + 7)
        before = torch.get_rng_state()
        adapt(loaded.model, Lora(rank=2), dtype=FLOAT, seed=seed)
        assert torch.equal(torch.get_rng_state(), before)
        states.append(fingerprint(published(loaded.model)))
    assert states[0] == states[1] != states[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_travels_names_the_base_as_an_engine_of_the_dtype_holds_it(dtype):
    trainer, engine = loaded_of("tied"), loaded_of("tied")
    engine.model.to(dtype)
    for loaded in (trainer, engine):
        adapt(loaded.model, Lora(rank=2), dtype=dtype)
    check_base(engine.model, published(trainer.model))
    assert published(trainer.model)[BASE].dtype == torch.uint8
    assert bytes(published(trainer.model)[BASE].tolist()).hex() == base_fingerprint(engine.model, dtype)


def test_an_adapter_of_another_base_is_refused():
    one, other = loaded_of("tied", seed=0), loaded_of("tied", seed=1)
    for loaded in (one, other):
        adapt(loaded.model, Lora(rank=2), dtype=FLOAT)
    with pytest.raises(ModelError, match=r"must meet the weights that it was trained on; .* same model.path"):
        check_base(one.model, published(other.model))


def test_of_a_model_without_adapter_everything_travels():
    loaded = loaded_of("moe")
    assert published(loaded.model).keys() == loaded.model.state_dict().keys()
    assert whole(loaded.model, published(loaded.model)) == published(loaded.model)


def test_an_adapter_is_completed_by_the_base_in_its_own_dtype():
    loaded = loaded_of("tied")
    adapt(loaded.model, Lora(rank=2), dtype=torch.bfloat16)
    half = {name: t.bfloat16() if t.is_floating_point() else t for name, t in published(loaded.model).items()}
    completed = whole(loaded.model, half)
    assert completed.keys() == loaded.model.state_dict().keys() | {BASE}
    assert {t.dtype for name, t in completed.items() if name != BASE} == {torch.bfloat16}


@pytest.mark.parametrize("kind", ["moe", "tied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_model_is_merged_and_loads_like_any_other_and_has_the_adapter_beside(tmp_path, kind, dtype):
    from peft import PeftModel

    base = write(tmp_path / "base", loaded_of(kind))
    trained = load_model(str(base))
    adapt(trained.model, Lora(rank=2), dtype=FLOAT)
    moved(trained)
    before, own = logits(trained), fingerprint(published(trained.model))
    saved = load_model(str(save_model(trained, tmp_path / "saved", dtype=dtype)))
    assert saved.model.state_dict().keys() == load_model(str(base)).model.state_dict().keys()
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    if dtype == FLOAT:
        torch.testing.assert_close(logits(saved), before, atol=1e-4, rtol=1e-4)
    assert (logits(saved) - before).abs().max() < 0.3 * before.abs().max()
    assert fingerprint(published(trained.model)) == own
    assert torch.equal(logits(trained), before)
    elsewhere = PeftModel.from_pretrained(load_model(str(base)).model, tmp_path / "saved" / "adapter")
    torch.testing.assert_close(logits(dataclasses.replace(trained, model=elsewhere)), before)
    assert str(tmp_path) not in (tmp_path / "saved" / "adapter" / "adapter_config.json").read_text()


def test_merging_into_a_coarse_base_is_done_in_float32():
    fine, coarse = loaded_of("tied"), loaded_of("tied")
    for loaded in (fine, coarse):
        for parameter in loaded.model.parameters():
            parameter.data = parameter.data.bfloat16().float()  # both start from the same numbers
    coarse.model.to(torch.bfloat16)
    for loaded in (fine, coarse):
        adapt(loaded.model, Lora(rank=2), dtype=torch.bfloat16)
        moved(loaded)
    for parameter in fine.model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    one, other = plain(fine.model, torch.bfloat16), plain(coarse.model, torch.bfloat16)
    assert fingerprint(one.state_dict()) == fingerprint(other.state_dict())


def test_a_model_that_needs_no_change_is_saved_as_it_is():
    loaded = loaded_of("tied")
    assert plain(loaded.model, FLOAT) is loaded.model
    half = plain(loaded.model, torch.bfloat16)
    assert (half.dtype, loaded.model.dtype) == (torch.bfloat16, FLOAT)


@pytest.mark.parametrize(
    ("kind", "target", "message"),
    [
        ("moe", "gate", "routers are not adapted"),
        ("moe", "gate_up_proj", "experts of this model are one tensor"),
        ("moe", "down_proj", "experts of this model are one tensor"),
        ("tied", "embed_tokens", "embeddings, norms and the head have none"),
        ("tied", "lm_head", "embeddings, norms and the head have none"),
        ("tied", "query", "k_proj, o_proj, q_proj, up_proj, v_proj; got 'query'"),
        ("gpt2", "", "has none that can have one"),
    ],
)
def test_layers_that_cannot_have_an_adapter_are_refused_with_the_reason(kind, target, message):
    loaded = loaded_of(kind)
    before = copy.deepcopy(loaded.model.state_dict())
    with pytest.raises(ModelError, match=message):
        adapt(loaded.model, Lora(rank=2, targets=(target,) if target else ()), dtype=FLOAT)
    assert fingerprint(loaded.model.state_dict()) == fingerprint(before)
    assert not is_adapted(loaded.model)


def test_an_adapter_that_peft_puts_elsewhere_is_refused(monkeypatch):
    loaded = loaded_of("tied")

    def elsewhere(config, model):
        config.target_modules = {"up_proj"}
        return inject(config, model)

    import peft

    inject = peft.inject_adapter_in_model
    monkeypatch.setattr(peft, "inject_adapter_in_model", elsewhere)
    with pytest.raises(ModelError, match=r"peft must adapt the layers it was asked to; it adapted 3 and was asked"):
        adapt(loaded.model, Lora(rank=2, targets=("q_proj",)), dtype=FLOAT)


def test_without_peft_the_setting_is_refused_with_the_way_out(monkeypatch):
    monkeypatch.setattr("tether.models.lora.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'tether-rl\[lora\]'"):
        Lora(rank=2)


@pytest.mark.parametrize("options", [{"rank": 0}, {"rank": 2, "alpha": 0.0}, {"rank": 2, "alpha": float("nan")}])
def test_settings_that_cannot_work_are_refused(options):
    with pytest.raises(ConfigError, match=r"model\.lora_"):
        Lora(**options)


@pytest.mark.parametrize("name", ["tiny-dense", "tiny-moe"])
def test_a_policy_trains_the_adapter_of_an_embedded_model_alone(name: str):
    loaded = load_model(name)
    adapt(loaded.model, Lora(rank=2), dtype=FLOAT)
    policy = Policy(loaded, gradient_checkpointing=True)
    assert policy.weights().keys() == published(loaded.model).keys()
    trained = sum(p.numel() for p in loaded.model.parameters() if p.requires_grad)
    assert trained < 0.05 * sum(p.numel() for p in loaded.model.parameters())


def test_the_folder_of_an_adapter_holds_two_files(tmp_path: Path):
    loaded = loaded_of("tied")
    adapt(loaded.model, Lora(rank=2, targets=("v_proj",)), dtype=FLOAT)
    save_model(loaded, tmp_path / "saved")
    folder = tmp_path / "saved" / "adapter"
    assert sorted(p.name for p in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert json.loads((folder / "adapter_config.json").read_text())["target_modules"] == sorted(
        f"model.layers.{i}.self_attn.v_proj" for i in range(len(loaded.model.model.layers))
    )
