"""Rewards that judge many at once: who is asked together, and that a run ends as ever."""

import asyncio
import threading
import time

import pytest

from tether.errors import RewardError
from tether.pipeline.gathering import Gathering
from tether.pipeline.rollouts import score_here
from tether.pipeline.schedule import Schedule
from tether.placement.inline import Inline
from tether.records import Answer, Judgement, Prompt
from tether.rewards.composition import alone

from .running import Run, World
from .test_faults import COSTS

SCHEDULE = Schedule(regime="fully-async", lag=2, prompts_per_step=2, group_size=3)
PROMPT = Prompt(id="p", text="?", token_ids=(1,), reference="!")


class Together:
    """A reward that remembers its batches; of a text its length, of ``raise`` an exception for the whole batch."""

    gathers = True

    def __init__(self, does=None):
        self.batches, self.does = [], does

    def __call__(self, prompt, answer):
        raise AssertionError("it is asked about many")

    def judge_all(self, prompts, answers):
        self.batches.append([answer.id for answer in answers])
        if self.does is not None:
            self.does(answers)
        return [float(len(answer.text) % 3) for answer in answers]


def told(judgement_or_error):
    return judgement_or_error.reward if isinstance(judgement_or_error, Judgement) else type(judgement_or_error)


def asked(score, *ids, later=()):
    async def main():
        tasks = [asyncio.create_task(score(PROMPT, Answer(id, id=id))) for id in ids]
        await asyncio.sleep(0.5 if later else 0)
        tasks += [asyncio.create_task(score(PROMPT, Answer(id, id=id))) for id in later]
        return [told(one) for one in await asyncio.gather(*tasks, return_exceptions=True)]

    return Inline().run(main())


def test_what_is_asked_at_one_moment_is_asked_together_and_what_comes_later_apart():
    reward = Together()
    assert asked(score_here(alone(reward, "it")), "a", "bb", later=["ccc"]) == [1.0, 2.0, 0.0]
    assert reward.batches == [["a", "bb"], ["ccc"]]


def test_a_fault_of_the_batch_is_the_fault_of_each_answer_and_of_no_later_one():
    def does(answers):
        if any(answer.text == "raise" for answer in answers):
            raise LookupError("one of them")

    assert asked(score_here(alone(Together(does), "it")), "a", "raise", later=["bb"]) == [RewardError, RewardError, 2.0]


def test_one_that_gave_up_before_the_batch_was_made_is_not_in_it():
    reward = Together()
    score = score_here(alone(reward, "it"))

    async def main():
        gone = asyncio.create_task(score(PROMPT, Answer("a", id="a")))
        there = asyncio.create_task(score(PROMPT, Answer("bb", id="bb")))
        await asyncio.sleep(0)
        gone.cancel()
        return (await there).reward

    assert asyncio.run(main()) == 2.0
    assert reward.batches == [["bb"]]


def test_a_batch_has_at_most_so_many_and_what_comes_meanwhile_goes_together():
    seen = []

    async def judge_all(batch):
        seen.append([answer.id for _, answer in batch])
        await asyncio.sleep(1.0)
        return [Judgement(reward=0.0, grades={}, is_right=False) for _ in batch]

    assert asked(Gathering(judge_all, most=3).ask, *"abcd", later="efg") == [0.0] * 7
    assert seen == [["a", "b", "c"], ["d", "e", "f"], ["g"]]


def ended(seed, reward):
    run = Run(SCHEDULE, World(steps=6, seed=seed, reward=reward)).go()
    return run.lines, run.learner.batches, run.learner.seen


def test_a_run_ends_as_with_a_reward_that_is_asked_one_by_one():
    largest = []
    for seed in range(12):
        together, again = Together(), Together()
        assert ended(seed, together) == ended(seed, lambda prompt, answer: float(len(answer.text) % 3)), seed
        assert ended(seed, together) == ended(seed, again), seed
        largest.append(max(map(len, again.batches)))
    assert max(largest) > 1


def test_what_a_reward_waits_for_in_real_time_takes_no_virtual_time():
    class Sleeping(Together):
        def judge_all(self, prompts, answers):
            time.sleep(0.02)
            return super().judge_all(prompts, answers)

    schedule = Schedule(prompts_per_step=2, group_size=2)
    slow, fast = (Run(schedule, World(steps=2, costs=COSTS, reward=reward)).go() for reward in (Sleeping(), Together()))
    assert slow.lines == fast.lines


def test_a_batch_that_hangs_is_broken_off_by_the_watchdog_and_costs_its_rollouts():
    def does(answers):
        if any(answer.text == "hang" for answer in answers):
            threading.Event().wait(600.0)

    score = score_here(alone(Together(does), "it"))

    async def main():
        tasks = [asyncio.create_task(score(PROMPT, Answer(text, id=text))) for text in ("a", "hang")]
        hung = await asyncio.gather(*tasks, return_exceptions=True)
        return hung, (await score(PROMPT, Answer("bb"))).reward

    hung, after = Inline(hang_after_s=0.3).run(main())
    assert after == 2.0
    for error in hung:
        assert type(error) is RewardError
        assert "raised StalledError: one piece of work has taken more than placement.hang_after_s" in str(error)


def test_an_interrupt_passes_through_a_batch():
    def does(answers):
        raise KeyboardInterrupt

    score = score_here(alone(Together(does), "it"))
    with pytest.raises(KeyboardInterrupt):
        Inline().run(score(PROMPT, Answer("a")))
