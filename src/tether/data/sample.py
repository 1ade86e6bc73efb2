"""Short sums, made here, in the layout of DAPO-Math-17k: to train on without a download."""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator
from typing import Any

BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'
"""The words that DAPO-Math-17k puts around every problem; a reward or a model may count on them."""

_ASKED = ("What is {}?", "How much is {}?", "What is the result of {}?")
_LARGEST = 12
_SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}

MOST_ROWS = 300
"""Of 366 problems that there are."""


def sample_rows(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """``count`` different problems of one addition, subtraction or multiplication of numbers from 1 to 12.

    Each is asked in one wording only, so that none is held out in one and trained on in another.

    >>> row = next(sample_rows(1))
    >>> row["prompt"][0]["content"].removeprefix(BEFORE).removesuffix(AFTER), row["reward_model"]["ground_truth"]
    ('What is the result of 7 + 10?', '17')
    """
    numbers = range(1, _LARGEST + 1)
    problems = [(a, sign, b) for sign in _SIGNS for a in numbers for b in numbers if sign != "-" or a >= b]
    source = random.Random(f"sample/{seed}")
    for index, (left, sign, right) in enumerate(source.sample(problems, count)):
        text = source.choice(_ASKED).format(f"{left} {sign} {right}")
        yield {
            "data_source": "tether_sample",
            "prompt": [{"content": f"{BEFORE}{text}{AFTER}", "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": str(_SIGNS[sign](left, right)), "style": "rule"},
            "extra_info": {"index": f"sample-{seed}-{index}"},
        }
