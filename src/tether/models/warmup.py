"""Supervised pre-training of an embedded model: it learns the form of an answer, and part of the substance.

The warm-up stops on purpose while the model still errs, so that reinforcement learning has something to teach and a
signal to teach it with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tether.tasks.task import Problem, Task


def examples(task, tokenizer, *, seed: int, first: int, count: int):
    problems = [task.problem("train", seed, first + i) for i in range(count)]
    rows = []
    for p in problems:
        prompt = tokenizer(p.text)["input_ids"]
        answer = [*tokenizer(p.demonstration)["input_ids"], tokenizer.eos_token_id]
        rows.append((prompt, answer))
    width = max(len(a) + len(b) for a, b in rows)
    ids = torch.full((count, width), tokenizer.pad_token_id)
    labels = torch.full((count, width), -100)
    for i, (p, a) in enumerate(rows):
        ids[i, : len(p) + len(a)] = torch.tensor(p + a)
        labels[i, len(p) : len(p) + len(a)] = torch.tensor(a)
    return ids, labels


@torch.no_grad()
def sample(model, tokenizer, texts, *, temperature, generator, max_tokens=32):
    from collections import defaultdict

    out = [""] * len(texts)
    stopped = [False] * len(texts)
    buckets = defaultdict(list)
    encoded = [tokenizer(t)["input_ids"] for t in texts]
    for i, e in enumerate(encoded):
        buckets[len(e)].append(i)
    for rows in buckets.values():
        ids = torch.tensor([encoded[i] for i in rows])
        cache, produced = None, []
        alive = torch.ones(len(rows), dtype=torch.bool)
        for _ in range(max_tokens):
            o = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = o.past_key_values
            logits = o.logits[:, -1].float()
            if temperature == 0:
                nxt = logits.argmax(-1)
            else:
                nxt = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)[:, 0]
            nxt = torch.where(alive, nxt, tokenizer.pad_token_id)
            produced.append(nxt)
            alive &= nxt != tokenizer.eos_token_id
            if not alive.any():
                break
            ids = nxt[:, None]
        m = torch.stack(produced, 1)
        for r, i in enumerate(rows):
            stopped[i] = not bool(alive[r])
            out[i] = tokenizer.decode(m[r], skip_special_tokens=True)
    return out, stopped
