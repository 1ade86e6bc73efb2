"""The text that goes with the weights of an embedded model."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from tether.models.catalog import EMBEDDED

_CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---

# {name}

{shape}

{subject}

{errors}

| what | figure |
|---|---|
{table}

Limits: it has seen nothing but this. It is no use for anything but experiments.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Syllabus:
    """What a model was taught, in words, for its card."""

    subject: str
    """Continues "It knows one thing:", with an example."""
    errors: str
    """Continues "a pupil who": what the demonstrations get wrong, and how often."""


def model_card(name: str, syllabus: Syllabus, facts: Mapping[str, str]) -> str:
    """The model card of a warmed-up embedded model, with its figures.

    >>> taught = Syllabus(subject="to count.", errors="skips 3 now and then.")
    >>> card = model_card("tiny-dense", taught, {"parameters": "370,816"})
    >>> "| parameters | 370,816 |" in card, "It knows one thing: to count." in card
    (True, True)
    """
    return _CARD.format(
        name=name,
        shape=_paragraph(
            f"A very small {EMBEDDED[name].architecture}, tied embeddings, float32, one token a character. It is meant "
            f"for experiments with reinforcement learning, comes with the package `tether-rl` and is made by "
            f"`tether warmup --model {name}`."
        ),
        subject=_paragraph(f"It knows one thing: {syllabus.subject}"),
        errors=_paragraph(
            f"It is meant to err. Its demonstrations came from a pupil who {syllabus.errors} So the model writes "
            "well-formed answers, is often wrong, and seldom thinks the right token impossible: what reinforcement "
            "learning needs. No held-out question was among the demonstrations."
        ),
        table="\n".join(f"| {what} | {figure} |" for what, figure in facts.items()),
    )


def _paragraph(text: str) -> str:
    return textwrap.fill(text, width=119, break_long_words=False, break_on_hyphens=False)
