"""A GGUF file becomes a model that can be trained and saved: every 4-bit block written out exactly."""

import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel

from tether.errors import ModelError
from tether.models import smollm2
from tether.models.loading import load_model, save_model

gguf = pytest.importorskip("gguf", reason="the extra smollm2 is not installed")
pytest.importorskip("accelerate", reason="the extra smollm2 is not installed")

HIDDEN, INNER, HEADS, HEAD = 64, 128, 2, 32
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "Ġa"]
TEMPLATE = "{% for turn in messages %}<|im_start|>{{ turn.content }}<|im_end|>{% endfor %}"
SHAPES = {
    "token_embd": (len(TOKENS), HIDDEN),
    "blk.0.attn_q": (HEADS * HEAD, HIDDEN),
    "blk.0.attn_k": (HEAD, HIDDEN),
    "blk.0.attn_v": (HEAD, HIDDEN),
    "blk.0.attn_output": (HIDDEN, HEADS * HEAD),
    "blk.0.ffn_gate": (INNER, HIDDEN),
    "blk.0.ffn_up": (INNER, HIDDEN),
    "blk.0.ffn_down": (HIDDEN, INNER),
}
NORMS = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file of one layer in the format of the real one, and the numbers that its blocks stand for."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    source, kind, numbers = np.random.default_rng(0), gguf.GGMLQuantizationType.Q4_1, {}
    for name, shape in SHAPES.items():
        blocks = gguf.quants.quantize(source.normal(size=shape).astype(np.float32), kind)
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=kind)
        numbers[name] = torch.tensor(gguf.quants.dequantize(blocks, kind))
    for name in NORMS:
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, numbers


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_weight_is_a_plain_number_that_can_be_trained_and_saved(written, dtype, tmp_path, capfd):
    path, numbers = written
    loaded = smollm2.read(path, dtype)
    assert capfd.readouterr().err == ""
    weights = load_model(str(save_model(loaded, tmp_path / "m")), dtype=dtype).model.state_dict()
    for theirs, ours in {"token_embd": "embed_tokens", "blk.0.ffn_down": "layers.0.mlp.down_proj"}.items():
        assert torch.equal(weights[f"model.{ours}.weight"], numbers[theirs].to(weights["model.norm.weight"].dtype))
    assert str(weights["model.norm.weight"].dtype) == f"torch.{dtype}"
    assert all(p.requires_grad and not p.is_meta for p in loaded.model.parameters())


def test_tokenizer_and_limits_come_from_the_file(written):
    loaded = smollm2.read(written[0], "float32")
    assert (loaded.eos_ids, loaded.pad_id, loaded.context) == ((2,), 2, 256)
    assert loaded.tokenizer.model_max_length == 256
    assert loaded.tokenizer.chat_template == TEMPLATE
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("7 + 5 is é")) == "7 + 5 is é"


def test_a_file_that_the_libraries_cannot_read_names_their_versions(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"x\.gguf cannot be read by transformers 5\..*, gguf .*, accelerate "):
        smollm2.read(tmp_path / "x.gguf", "float32")
