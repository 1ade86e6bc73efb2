"""Rewards as a user would write them."""

from __future__ import annotations

import asyncio
import functools
import threading

import tether.records
from tether.records import Answer, Grade

WEIGHT = 3
BATCHES: list[list[str]] = []
"""What ``sizes`` was asked, call by call."""
UNDER_WAY = {"now": 0, "most": 0}
LOOPS: list[asyncio.AbstractEventLoop] = []


def length(prompt, response):
    return len(response)


def broken(prompt, response):
    raise ZeroDivisionError("no luck")


def tokens(prompt, answer):
    return answer.num_tokens


def cut(prompt, what: Answer):
    return Grade(value=-float(what.is_cut), status="cut" if what.is_cut else "whole")


def cut_from_afar(prompt, what: tether.records.Answer):
    return -float(what.is_cut)


def text_called_answer(prompt, answer: str):
    return len(answer)


def sizes(prompts, responses):
    BATCHES.append(list(responses))
    if "raise" in responses:
        raise LookupError("one of them")
    return [len(response) + len(prompt.text) for prompt, response in zip(prompts, responses, strict=True)]


def token_sizes(prompts, answers: list[Answer]):
    return [answer.num_tokens for answer in answers]


def one_short(prompts, responses):
    return [1.0] * (len(responses) - 1)


def none_for_bad(prompts, responses):
    return [None if response == "bad" else 1.0 for response in responses]


def one_number(prompts, responses):
    return 0.5


async def slowly(prompt, response):
    LOOPS.append(asyncio.get_running_loop())
    UNDER_WAY["now"] += 1
    UNDER_WAY["most"] = max(UNDER_WAY["most"], UNDER_WAY["now"])
    try:
        await asyncio.sleep(600.0 if response == "hang" else 0.01)
        if response == "raise":
            raise LookupError("no judge")
        if response == "nan":
            return float("nan")
        return float(len(response))
    finally:
        UNDER_WAY["now"] -= 1


async def all_slowly(prompts, responses):
    await asyncio.sleep(0.001)
    return [len(response) for response in responses]


async def stuck(prompt, response):
    """Keeps its whole loop from going on, as a call that blocks does."""
    threading.Event().wait(600.0 if response == "hang" else 0.0)
    return 1.0


class Judge:
    async def __call__(self, prompt, response):
        return 2.0


judge = Judge()
twice = functools.partial(lambda factor, prompt, response: factor * len(response), 2)
