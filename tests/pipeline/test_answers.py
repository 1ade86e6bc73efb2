"""What came back against what was asked."""

from dataclasses import replace

import pytest

from tether.errors import SelfCheckError
from tether.pipeline.answers import check_drift, drifts_of
from tether.ports import GenerationRequest

from .making import completion_of, rollout_of

EOS = {1}


def asked_and_made(ids, finish, max_tokens=4):
    request = GenerationRequest(id="g0/0", prompt_ids=(3,), seed=0, max_tokens=max_tokens, temperature=1.0)
    return request, rollout_of("g0/0", [3], replace(completion_of(ids), finish=finish))


@pytest.mark.parametrize(("ids", "finish"), [([5, 1], "stop"), ([5, 6, 7, 8], "length"), ([5, 6], "interrupted")])
def test_what_was_sampled_has_not_drifted(ids, finish):
    pairs = [asked_and_made(ids, finish)]
    assert drifts_of(pairs, EOS) == []
    check_drift(pairs, EOS)


@pytest.mark.parametrize(
    ("ids", "finish", "told"),
    [
        ([5, 6, 7, 8, 9], "length", "has 5 tokens and may have 4"),
        ([5, -1, 1], "stop", "has the id -1"),
        ([5, 1, 6], "interrupted", "goes on after an end-of-sequence id, 1 at token 1"),
        ([5, 6], "stop", "ended with finish 'stop' and id 6, which is no end-of-sequence id"),
        ([], "stop", "ended with finish 'stop' and id none"),
        ([5, 6], "length", "ended with finish 'length' at 2 of 4 tokens"),
    ],
)
def test_ids_that_cannot_be_what_was_sampled_are_counted_and_named(ids, finish, told):
    pairs = [asked_and_made([5, 1], "stop"), asked_and_made(ids, finish)]
    with pytest.raises(SelfCheckError, match=rf"self-check 'ids' failed: 1 of 2 completions .*; 'g0/0' {told}"):
        check_drift(pairs, EOS)
