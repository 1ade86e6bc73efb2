"""Models come whole or not at all, with every reason said; saved ones come back equal."""

import dataclasses
import json
import shutil

import pytest
import torch

from tests.models.small import logits, small, write
from tether.errors import ModelError
from tether.models import loading
from tether.models.fingerprint import fingerprint
from tether.models.loading import load_model, load_tokenizer, resolve_source, save_model


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def folder(written, tmp_path):
    """A model folder that a test may damage."""
    return shutil.copytree(written, tmp_path / "model")


def change(file, **changes):
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def test_embedded_folder_and_hub_name_are_told_apart(folder, monkeypatch):
    assert resolve_source("tiny-moe").endswith("tiny_moe")
    monkeypatch.chdir(folder.parent)
    assert resolve_source("model") == str(folder.resolve())
    assert resolve_source("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize("source", ["tiny-mow", "/no/such/folder", "./missing/model", "a/b/c", ""])
def test_what_is_neither_lists_the_embedded_names_and_the_ways_out(source):
    with pytest.raises(
        ModelError, match=r"are tiny-moe, tiny-dense, .*; or give a folder that exists, or a hub name such as"
    ):
        resolve_source(source)


def test_hub_name_without_network_is_one_clear_message():
    with pytest.raises(ModelError, match=r"'tether-test/absent' cannot be loaded: .*; check the name and the network"):
        load_model("tether-test/absent")


def test_loaded_model_is_pinned_and_ready(folder):
    loaded = load_model(str(folder))
    assert not loaded.model.training
    assert loaded.model.dtype == torch.float32
    assert loaded.model.get_experts_implementation() == {"": "grouped_mm"}
    assert loaded.model.config.output_router_logits is False
    assert (loaded.eos_ids, loaded.pad_id, loaded.context) == ((1,), 0, 512)
    assert loaded.source == str(folder.resolve())


def test_load_balance_loss_is_off_even_where_the_folder_asks_for_it(folder):
    change(folder / "config.json", output_router_logits=True)
    loaded = load_model(str(folder))
    output = loaded.model(input_ids=torch.tensor([[2, 3]]), labels=torch.tensor([[2, 3]]))
    assert output.aux_loss is None


def test_experts_run_as_a_loop_where_torch_has_no_grouped_product(folder, monkeypatch):
    grouped = logits(load_model(str(folder)))
    monkeypatch.delattr(torch.nn.functional, "grouped_mm", raising=False)
    monkeypatch.delattr(torch, "_grouped_mm", raising=False)
    loaded = load_model(str(folder))
    assert loaded.model.get_experts_implementation() == {"": "eager"}
    torch.testing.assert_close(logits(loaded), grouped, rtol=1e-5, atol=1e-5)


def test_dense_model_loads_as_well(tmp_path):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        eos_token_id=1,
        pad_token_id=0,
    )
    Qwen3ForCausalLM(config).save_pretrained(tmp_path / "dense")
    small().tokenizer.save_pretrained(tmp_path / "dense")
    assert load_model(str(tmp_path / "dense"), dtype="bfloat16").model.dtype == torch.bfloat16


def test_unknown_dtype_is_refused(folder):
    with pytest.raises(ModelError, match=r"one of float32, bfloat16; got 'int4'"):
        load_model(str(folder), dtype="int4")


def test_every_end_of_sequence_id_counts(folder):
    change(folder / "generation_config.json", eos_token_id=[1, 20, 21])
    assert load_model(str(folder)).eos_ids == (1, 20, 21)
    change(folder / "generation_config.json", eos_token_id=20)
    assert load_model(str(folder)).eos_ids == (1, 20)


def test_padding_falls_back_to_an_end_of_sequence_id(folder):
    change(folder / "tokenizer_config.json", pad_token=None)
    assert load_model(str(folder)).pad_id == 1


def test_tokenizer_without_an_end_is_refused(folder):
    change(folder / "tokenizer_config.json", eos_token=None)
    with pytest.raises(ModelError, match=r"needs an end-of-sequence token.* has none; set eos_token"):
        load_tokenizer(str(folder))


def test_tokenizer_larger_than_the_embedding_is_refused(tmp_path):
    write(tmp_path / "model", small(vocab_size=20))
    with pytest.raises(ModelError, match=r"has 20 rows for 24 tokens"):
        load_model(str(tmp_path / "model"))


def test_folder_without_configuration_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"holds config.json; .* does not"):
        load_model(str(tmp_path))


def test_pickled_weights_are_refused_without_being_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"safetensors only, .* holds pytorch_model.bin; save it again"):
        load_model(str(folder))


def test_remote_code_is_never_run(folder):
    (folder / "modeling_own.py").write_text("raise SystemExit('remote code ran')")
    change(folder / "config.json", auto_map={"AutoModelForCausalLM": "modeling_own.Own"}, model_type="own")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(str(folder))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_damaged_file_is_one_clear_message(folder, name):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match=r"cannot be loaded: .*; check its files"):
        load_model(str(folder))


def test_weights_that_would_start_at_random_are_refused(folder):
    change(folder / "config.json", num_hidden_layers=2, layer_types=None)
    with pytest.raises(ModelError, match=r"lacks \d+ of them, such as model.layers.1.* start at random"):
        load_model(str(folder))


def test_saved_model_comes_back_equal(tmp_path):
    loaded = small()
    change_free = save_model(loaded, tmp_path / "deep" / "model", card="# A card\n")
    again = load_model(str(change_free))
    assert fingerprint(again.model.state_dict()) == fingerprint(loaded.model.state_dict())
    torch.testing.assert_close(logits(again), logits(loaded), rtol=0, atol=0)
    assert again.tokenizer.get_vocab() == loaded.tokenizer.get_vocab()
    assert again.eos_ids == loaded.eos_ids
    assert (change_free / "README.md").read_text() == "# A card\n"
    assert (change_free / "generation_config.json").is_file()
    assert not list(change_free.glob("*.bin"))


def test_tokenizer_files_do_not_change_from_save_to_save(tmp_path):
    first = save_model(small(), tmp_path / "first")
    second = save_model(load_model(str(first)), tmp_path / "second")
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"):
        assert (first / name).read_text() == (second / name).read_text(), name


def test_bfloat16_survives_saving(folder, tmp_path):
    loaded = load_model(str(folder), dtype="bfloat16")
    again = load_model(str(save_model(loaded, tmp_path / "bf16")), dtype="bfloat16")
    assert fingerprint(again.model.state_dict()) == fingerprint(loaded.model.state_dict())


def test_saving_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loading, "flush", full)
    with pytest.raises(ModelError, match=r"cannot write the model to .*No space left.*make room"):
        save_model(small(), tmp_path / "home" / "model")
    assert list((tmp_path / "home").iterdir()) == []


def test_saving_over_something_is_refused(tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(ModelError, match=r"new folder; .* exists; choose another, or remove it"):
        save_model(small(), tmp_path / "model")


def test_progress_bars_of_others_are_left_as_they_were(folder):
    from transformers.utils import logging

    was_on = logging.is_progress_bar_enabled()
    load_model(str(folder))
    assert logging.is_progress_bar_enabled() == was_on


def test_loaded_model_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        small().pad_id = 3
