"""The shapes and the alphabet of the embedded models: a mixture of experts and a dense one of the same size.

Qwen3 (arXiv:2505.09388) with about 0.37 million parameters: small enough to train on two cores. The mixture has a
router, so that everything that goes wrong between an engine and a trainer of a large mixture goes wrong here as well;
the dense model has everything but the router, so that what is the router's fault can be told. Weights come from
``tether warmup``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

PAD, EOS = "<pad>", "<eos>"
ALPHABET = "0123456789+-*=,()/%:;?"
"""One id a character, after padding and end of sequence; some are spare."""
CONTEXT = 512

_SHAPE: Final[dict[str, Any]] = {
    "vocab_size": 2 + len(ALPHABET),
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # engines on CPUs refuse smaller heads
    "max_position_embeddings": CONTEXT,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},  # texts are short: no slow rotations
    "initializer_range": 0.1,  # hidden size 64: with the usual 0.02 nothing is learnt for a thousand updates
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
"""What both have in common."""

_EXPERTS: Final = 8
_EXPERT_SIZE: Final = 64


def build_moe(**changes: Any) -> PreTrainedModel:
    """A new mixture of experts in float32; ``changes`` replace configuration keys (tests build smaller ones)."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    shape: dict[str, Any] = {
        "intermediate_size": _EXPERT_SIZE,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": _EXPERT_SIZE,
        "num_experts": _EXPERTS,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "output_router_logits": False,  # no load-balance loss
    }
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**(_SHAPE | shape | changes)))


def build_dense(**changes: Any) -> PreTrainedModel:
    """A new dense model in float32, as wide as all experts of the mixture together; ``changes`` as there."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = {"intermediate_size": _EXPERTS * _EXPERT_SIZE}
    return Qwen3ForCausalLM(Qwen3Config(**(_SHAPE | shape | changes)))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The character tokenizer: one id a character, nothing added, unknown characters refused.

    >>> tokenizer = build_tokenizer()
    >>> tokenizer("4+3=")["input_ids"]
    [6, 12, 5, 15]
    >>> tokenizer.decode([6, 12, 5, 15])
    '4+3='
    >>> tokenizer.pad_token_id, tokenizer.eos_token_id
    (0, 1)
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: number for number, token in enumerate((PAD, EOS, *ALPHABET))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # not in it: an unknown character is an error
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=EOS,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
