import asyncio

import pytest

from tether.errors import RewardError
from tether.pipeline.rollouts import Reader, Sampling, ask, score_here, seed_of
from tether.records import Judgement, Prompt
from tether.registry import REWARDS
from tether.rewards.composition import alone

from .making import completion_of

PROMPT = Prompt(id="p/0", text="1+1=", token_ids=(4, 5), reference="2")
SAMPLING = Sampling(seed=3, group_size=4, temperature=0.7, max_tokens=9)


READER = Reader(lambda ids: " ".join(map(str, ids)), frozenset({1, 2}))


def judged(reward, request, completion) -> Judgement:
    """By the one reward, as a run asks it."""
    return asyncio.run(score_here(alone(reward, "it"))(PROMPT, READER.answer(request.id, completion)))


def finished(ids, finish="stop"):
    import dataclasses

    return dataclasses.replace(completion_of(ids), finish=finish)


def test_every_request_of_a_run_has_an_id_and_a_seed_of_its_own():
    requests = [r for index in range(50) for r in ask(index, PROMPT, SAMPLING, 0.0).requests]
    assert len({r.id for r in requests}) == len({r.seed for r in requests}) == 200
    assert requests[5].id == "g1/1"
    assert {(r.temperature, r.max_tokens, r.prompt_ids) for r in requests} == {(0.7, 9, (4, 5))}


def test_the_requests_of_a_group_depend_on_seed_and_index_alone():
    one, other = ask(7, PROMPT, SAMPLING, 0.0), ask(7, PROMPT, SAMPLING, 99.0)
    assert one.requests == other.requests
    assert seed_of(3, 7, 0) != seed_of(4, 7, 0)


def test_seeds_of_evaluation_never_meet_those_of_training():
    training = {seed_of(0, index, member) for index in range(100) for member in range(8)}
    assert not training & {seed_of(0, -1, index) for index in range(100)}


def test_a_reward_sees_the_text_without_the_end_of_sequence_token():
    seen = []

    def watching(prompt, answer):
        seen.append((prompt.id, answer.text, answer.num_tokens))
        return 1.0

    answers = [finished([5, 6, 1]), finished([5, 2]), finished([1]), finished([5, 1, 6, 1])]
    for request, answer in zip(ask(0, PROMPT, SAMPLING, 0.0).requests, answers, strict=True):
        judged(watching, request, answer)
    assert seen == [("p/0", "5 6", 3), ("p/0", "5", 2), ("p/0", "", 1), ("p/0", "5 1 6", 4)]


def test_a_reward_that_needs_an_end_gives_0_to_a_completion_that_was_cut():
    request = ask(0, PROMPT, SAMPLING, 0.0).requests[0]
    judgement = judged(REWARDS.build("exact"), request, finished([5, 6], "length"))
    assert (judgement.reward, judgement.grades["it"].status, judgement.is_right) == (0.0, "cut", False)


def test_a_reward_of_your_own_judges_a_completion_that_was_cut_as_it_is():
    request = ask(0, PROMPT, SAMPLING, 0.0).requests[0]
    assert judged(lambda prompt, answer: -float(answer.is_cut), request, finished([5, 6], "length")).reward == -1.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "1", None, [1.0, 2.0]])
def test_a_reward_that_is_not_a_finite_number_is_refused_and_names_its_rollout(bad):
    request = ask(7, PROMPT, SAMPLING, 0.0).requests[2]
    with pytest.raises(RewardError, match="g7/2") as refused:
        judged(lambda prompt, answer: bad, request, finished([5, 1]))
    assert refused.value.rollout_id == "g7/2"


def test_a_reward_that_raises_names_its_rollout_and_what_it_raised():
    def broken(prompt, text):
        raise ZeroDivisionError("three")

    request = ask(7, PROMPT, SAMPLING, 0.0).requests[1]
    with pytest.raises(RewardError, match=r"g7/1.*ZeroDivisionError: three") as refused:
        judged(broken, request, finished([5, 1]))
    assert refused.value.rollout_id == "g7/1"
    assert isinstance(refused.value.__cause__, ZeroDivisionError)


def test_an_interrupt_passes_through_a_reward():
    def stopped(prompt, text):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judged(stopped, ask(0, PROMPT, SAMPLING, 0.0).requests[0], finished([5, 1]))
