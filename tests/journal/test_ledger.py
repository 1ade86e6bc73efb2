from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.errors import DataError, NonFiniteError
from tether.journal import Ledger, LedgerLine
from tether.journal.ledger import ledger_line_from_json, ledger_line_to_json
from tether.journal.schema import check_fate
from tether.records import Completion, Prompt, Rollout

FATES = ["trained", "unused", "in-flight", "filtered:flat-group", "evicted:staleness", "failed:reward raised: boom"]


def rollout(id: str, versions: tuple[int, ...] = (0, 8)) -> Rollout:
    num = len(versions)
    zeros = np.zeros(num, np.float32)
    prompt = Prompt(id="arithmetic/train/1", text="1+1=", token_ids=(1, 2, 3), reference="2")
    completion = Completion(
        token_ids=np.arange(num, dtype=np.int32),
        logp=zeros,
        entropy=zeros,
        version=np.array(versions, np.int32),
        finish="stop",
    )
    return Rollout(
        id=id, prompt=prompt, completion=completion, text="2", reward=1.0, started_s=1.0, sampled_s=2.0, finished_s=2.5
    )  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["admit", "finish", "close"]), st.sampled_from(FATES))))
def test_every_rollout_has_exactly_one_fate_under_any_schedule(calls):
    lines: list[LedgerLine] = []
    ledger = Ledger(lines.append)
    admitted: set[str] = set()
    for number, what, fate in calls:
        id = f"r{number}"
        try:
            if what == "admit":
                ledger.admit(id, "p", "g")
                admitted.add(id)
            elif what == "finish":
                ledger.finish(rollout(id))
            else:
                ledger.close(id, fate)
        except DataError:
            pass
        assert len(admitted) == len(ledger.open_lines) + sum(ledger.balance().values())
    ledger.close_rest()
    assert Counter(line.id for line in lines) == Counter(admitted)
    assert ledger.balance() == Counter(line.fate for line in lines)
    assert ledger.open_lines == ()


def test_a_line_tells_the_whole_life():
    ledger = Ledger(lambda line: None)
    ledger.admit("r0", "arithmetic/train/1", "g0", started_s=1.0)
    ledger.finish(rollout("r0"))
    assert ledger.close("r0", "trained", step=3, used_s=4.0) == LedgerLine(
        id="r0",
        prompt_id="arithmetic/train/1",
        group="g0",
        version_first=0,
        version_last=8,
        num_versions=2,
        num_prompt_tokens=3,
        num_completion_tokens=2,
        reward=1.0,
        started_s=1.0,
        sampled_s=2.0,
        finished_s=2.5,
        used_s=4.0,
        step=3,
        fate="trained",
    )


def test_when_the_run_is_over_finished_rollouts_were_unused_and_others_are_in_flight():
    ledger = Ledger(lambda line: None)
    for id in ("r0", "r1"):
        ledger.admit(id, "p", "g")
    ledger.finish(rollout("r1"))
    assert [(line.id, line.fate) for line in ledger.close_rest()] == [("r0", "in-flight"), ("r1", "unused")]
    assert ledger.close_rest() == ()


def test_a_rollout_without_tokens_has_no_versions():
    ledger = Ledger(lambda line: None)
    ledger.admit("r0", "p", "g")
    ledger.finish(rollout("r0", ()))
    assert ledger.close("r0", "failed:empty").version_first is None


def test_a_line_that_could_not_be_written_leaves_the_rollout_open():
    def full(line: LedgerLine) -> None:
        raise OSError("no space")

    ledger = Ledger(full)
    ledger.admit("r0", "p", "g")
    with pytest.raises(OSError, match="no space"):
        ledger.close("r0", "trained")
    assert len(ledger.open_lines) == 1
    assert ledger.balance() == {}


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda ledger: ledger.admit("r0", "p", "g"), "'r0' was admitted already"),
        (lambda ledger: ledger.close("r9", "trained"), "'r9' was never admitted"),
        (lambda ledger: ledger.finish(rollout("r9")), "'r9' was never admitted"),
        (lambda ledger: ledger.close("r0", "lost"), "no fate 'lost'; there are trained, unused"),
    ],
)
def test_books_that_would_not_balance_are_refused(act, message):
    ledger = Ledger(lambda line: None)
    ledger.admit("r0", "p", "g")
    with pytest.raises(DataError, match=message):
        act(ledger)


@pytest.mark.parametrize("fate", ["", "Trained", "filtered", "filtered:", "failed: x", "trained:x", "failed:a\nb"])
def test_other_fates_are_refused(fate):
    with pytest.raises(DataError, match="no fate"):
        check_fate(fate)


@pytest.mark.parametrize("fate", FATES)
def test_a_line_comes_back_as_it_was(fate):
    line = LedgerLine(id="r0", prompt_id="p", group="g", reward=0.1, started_s=0.0, fate=fate)
    assert ledger_line_from_json(ledger_line_to_json(line)) == line


def test_a_reward_that_is_no_number_is_refused():
    with pytest.raises(NonFiniteError, match="reward of rollout 'r0' is nan"):
        ledger_line_to_json(LedgerLine(id="r0", prompt_id="p", group="g", reward=float("nan")))
