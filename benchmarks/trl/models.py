"""The folder that all competitors read: a tiny random Qwen3, or a given model; and prompts of one length for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 49152
"""That of SmolLM2: in a model of 7 M parameters, most of the work is in the head."""


def tiny_qwen3(folder: Path) -> None:
    """Four layers of width 128, 7.1 M parameters, random; a token is a word ``w<id>``."""
    vocabulary = {f"w{i}": i for i in range(VOCABULARY - 2)} | {"<end>": VOCABULARY - 2, "<pad>": VOCABULARY - 1}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<pad>").save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=VOCABULARY - 2,
        pad_token_id=VOCABULARY - 1,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


def unending(source: Path, folder: Path) -> None:
    """A copy of a model that ends with a special token it never uses: every completion is whole."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    used = {tokenizer.eos_token, tokenizer.bos_token, tokenizer.pad_token, tokenizer.unk_token, "<|im_start|>"}
    unused = [str(token) for token in tokenizer.added_tokens_decoder.values() if str(token) not in used]
    if not unused:
        raise SystemExit(f"{source} has no unused special token to end with; give another model")
    tokenizer.eos_token = unused[-1]
    tokenizer.save_pretrained(folder)
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            table = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps({**table, "eos_token_id": tokenizer.eos_token_id}))


def texts_of(folder: Path, count: int, length: int) -> list[str]:
    """Texts of random words, each of exactly so many tokens."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    words = _words(tokenizer)
    draw = torch.Generator().manual_seed(1)
    texts: list[str] = []
    while len(texts) < count:
        ids = [words[i] for i in torch.randint(len(words), (length,), generator=draw).tolist()]
        text = tokenizer.decode(ids)
        if tokenizer.encode(text) == ids:
            texts.append(text)
    return texts


def _words(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids that stay themselves in any neighborhood: whole words with the space before them."""
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return [i for i, piece in enumerate(pieces) if piece[0] in "Ġ▁w" and piece[1:].isalnum() and len(piece) > 2]


def quiet() -> None:
    """No progress bars."""
    transformers.utils.logging.disable_progress_bar()
