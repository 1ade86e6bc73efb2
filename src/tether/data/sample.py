"""Short sums, made here, in the layout of DAPO-Math-17k: to train on without a download."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'
"""The words that DAPO-Math-17k puts around every problem; a reward or a model may count on them."""

_ASKED = ("What is {}?", "How much is {}?", "Work out {}.")

MOST_ROWS = 1500
"""Of about 2,100 problems that there are."""


def sample_rows(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """``count`` different problems of one addition, subtraction or multiplication.

    >>> row = next(sample_rows(1))
    >>> row["prompt"][0]["content"].removeprefix(BEFORE).removesuffix(AFTER), row["reward_model"]["ground_truth"]
    ('How much is 18 + 14?', '32')
    """
    source, made = random.Random(f"sample/{seed}"), set[str]()
    while len(made) < count:
        text, answer = _problem(source)
        if text in made:
            continue
        made.add(text)
        yield {
            "data_source": "tether_sample",
            "prompt": [{"content": f"{BEFORE}{text}{AFTER}", "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": str(answer), "style": "rule"},
            "extra_info": {"index": f"sample-{seed}-{len(made) - 1}"},
        }


def _problem(source: random.Random) -> tuple[str, int]:
    operator = source.choice("+-*")
    most = 10 if operator == "*" else 20
    left, right = source.randint(1, most), source.randint(1, most)
    if operator == "-":
        left, right = max(left, right), min(left, right)
    answer = {"+": left + right, "-": left - right, "*": left * right}[operator]
    return source.choice(_ASKED).format(f"{left} {operator} {right}"), answer
