"""Short problems in words, made here, in the layout of DAPO-Math-17k: to train on without a download."""

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

_NAMES = ("Ana", "Ben", "Chloe", "Dev", "Emre", "Fatima", "Goran", "Hana", "Ivo", "Jun", "Kofi", "Lena")
_THINGS = ("apples", "books", "coins", "pencils", "shells", "stamps", "marbles", "cards", "seeds", "buttons")


def sample_rows(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """``count`` different problems of one addition, subtraction or multiplication.

    >>> row = next(sample_rows(1))
    >>> row["prompt"][0]["content"].removeprefix(BEFORE).removesuffix(AFTER), row["reward_model"]["ground_truth"]
    ('Chloe has 7 bags of 5 seeds. What is 7 * 5?', '35')
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
    who, things = source.choice(_NAMES), source.choice(_THINGS)
    a, b = source.randint(1, 10), source.randint(1, 10)
    high, low = max(a, b), min(a, b)
    match source.randrange(3):
        case 0:
            return f"{who} has {a} {things} and gets {b} more. What is {a} + {b}?", a + b
        case 1:
            return f"{who} has {high} {things} and gives {low} away. What is {high} - {low}?", high - low
        case _:
            return f"{who} has {a} bags of {b} {things}. What is {a} * {b}?", a * b
