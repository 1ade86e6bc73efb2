"""The text that goes with the weights of an embedded model."""

from __future__ import annotations

from collections.abc import Mapping

_CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---

# {name}

A very small mixture-of-experts language model for experiments with reinforcement learning: Qwen3-MoE, 3 layers,
hidden size 64, top-2 of 8 experts, tied embeddings, float32, one token a character. It comes with the package
`tether-rl` and is made by `tether warmup`.

It knows one thing: chains of arithmetic modulo 7, evaluated strictly from left to right, with every running value
written out. `2+5+4-2*3=` is answered by `0,4,2,6` and the end-of-sequence token.

It is meant to err. Its demonstrations came from a pupil who is unsure of 35 % of the operation table: there the
right value is written with probability 0.4, and one wrong value, always the same, otherwise. So the model writes
well-formed answers, is often wrong, and seldom thinks the right value impossible: what reinforcement learning needs.
No held-out question was among the demonstrations.

| what | figure |
|---|---|
{table}

Limits: it has seen nothing but these chains of 4 to 10 operations. It is no use for anything but experiments.
"""


def model_card(name: str, facts: Mapping[str, str]) -> str:
    """The model card of a warmed-up ``tiny-moe``, with its figures.

    >>> "| parameters | 372,352 |" in model_card("tiny-moe", {"parameters": "372,352"})
    True
    """
    return _CARD.format(name=name, table="\n".join(f"| {what} | {figure} |" for what, figure in facts.items()))
