"""The model's own time for a step's shapes: bare decoding, one forward and backward of plain rows, AdamW. No loop."""

from __future__ import annotations

import sys
import time

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import DynamicCache
from turns import Setting, Turns


class Clock:
    """Wall seconds since it was last read."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        spent, self._last = now - self._last, now
        return spent


@torch.inference_mode()
def decode(model, ids: torch.Tensor, tokens: int) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """Forwards alone: the next token is the likeliest, so that nothing is drawn."""
    cache, row = DynamicCache(config=model.config), ids
    for _ in range(tokens):
        logits = model(input_ids=row, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        row = logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, row], dim=1)
    return ids


def main() -> None:
    setting = Setting.read(sys.argv[1])
    turns = Turns()
    tokenizer = AutoTokenizer.from_pretrained(setting.model)
    model = AutoModelForCausalLM.from_pretrained(setting.model, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=setting.lr, betas=setting.betas, weight_decay=0.0)
    texts, count = setting.texts(), setting.prompts_per_step
    turns.ready()
    for step in range(setting.steps):
        clock = Clock()
        prompts = torch.tensor([tokenizer.encode(t) for t in texts[step * count : (step + 1) * count]])
        ids = decode(model, prompts.repeat_interleave(setting.group_size, dim=0), setting.max_tokens).clone()
        parts = {"generate_s": clock.lap()}
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=setting.max_tokens + 1).logits[:, :-1]
        functional.cross_entropy(logits.flatten(0, 1), ids[:, -setting.max_tokens :].flatten()).backward()
        del logits
        parts["train_s"] = clock.lap()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        parts["adamw_s"] = clock.lap()
        turns.done(setting.max_tokens * len(ids), **parts)


if __name__ == "__main__":
    main()
