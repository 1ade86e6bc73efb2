"""A reward by import path: found before the run, or refused with what is there."""

import asyncio
import pickle
import time

import pytest

from tether.errors import ConfigError
from tether.records import Answer, Grade, Prompt
from tether.registry import REWARDS
from tether.rewards.python import Python
from tether.rewards.scoring import grades

from . import judges

PROMPT = Prompt(id="p", text="1+2=", token_ids=(1,), reference="3")
HERE = "tests.rewards.judges"


def test_function_is_called_with_prompt_and_response():
    assert REWARDS.build("python", path=f"{HERE}:length")(PROMPT, Answer("1,2")) == 3


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("length", r"'package.module:function'; got 'length'"),
        (":length", r"got ':length'"),
        (f"{HERE}:", r"got 'tests.rewards.judges:'"),
        ("tests.rewards.absent:length", r"module 'tests.rewards.absent' cannot be imported: ModuleNotFoundError"),
        (f"{HERE}:absent", r"has no 'absent'; it has .*broken, cut,"),
        (f"{HERE}:WEIGHT", r"must be callable as \(prompt, response\); it is int"),
    ],
)
def test_path_that_leads_nowhere_is_refused_when_the_reward_is_made(path, message):
    with pytest.raises(ConfigError, match=message):
        Python(path)


def test_module_that_raises_while_imported_is_named_with_its_reason(tmp_path, monkeypatch):
    (tmp_path / "tether_test_broken_module.py").write_text("raise OSError('no disk')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ConfigError, match=r"'tether_test_broken_module' cannot be imported: OSError: no disk"
    ) as caught:
        Python("tether_test_broken_module:f")
    assert isinstance(caught.value.__cause__, OSError)


def test_module_that_leaves_the_program_while_imported_is_refused_like_one_that_raises(tmp_path, monkeypatch):
    (tmp_path / "tether_test_leaving_module.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="'tether_test_leaving_module' cannot be imported: SystemExit: 0"):
        Python("tether_test_leaving_module:f")


def test_reward_travels_to_another_process_by_its_path():
    reward = Python(f"{HERE}:length")
    assert pickle.loads(pickle.dumps(reward)) == reward


def test_a_second_parameter_called_or_annotated_answer_is_given_more_than_the_text():
    answer = Answer("1,2", num_tokens=7, is_cut=True)
    assert Python(f"{HERE}:tokens")(PROMPT, answer) == 7
    assert Python(f"{HERE}:cut")(PROMPT, answer) == Grade(value=-1.0, status="cut")
    assert Python(f"{HERE}:cut_from_afar")(PROMPT, answer) == -1.0
    assert Python(f"{HERE}:text_called_answer")(PROMPT, answer) == 3
    assert Python(f"{HERE}:token_sizes", batched=True).judge_all([PROMPT] * 2, [answer] * 2) == [7, 7]
    assert Python(f"{HERE}:twice")(PROMPT, answer) == 6


def told_by(name, *texts, **options):
    return grades(Python(f"{HERE}:{name}", **options), [(PROMPT, Answer(text, id=text)) for text in texts])


def test_a_batched_function_is_called_once_with_lists():
    judges.BATCHES.clear()
    assert [told.value for told in told_by("sizes", "a", "abc", batched=True)] == [5.0, 7.0]
    assert judges.BATCHES == [["a", "abc"]]


def test_one_answer_is_a_batch_of_one():
    assert Python(f"{HERE}:sizes", batched=True)(PROMPT, Answer("ab")) == 6


def test_a_batch_that_raises_fails_every_answer_of_it_and_names_each():
    told = told_by("sizes", "a", "raise", "abc", batched=True)
    assert [error.rollout_id for error in told] == ["a", "raise", "abc"]
    for error in told:
        assert "raised LookupError: one of them" in str(error)
        assert isinstance(error.__cause__, LookupError)


def test_a_batch_of_another_length_says_how_many_were_expected_and_found():
    told = told_by("one_short", "a", "b", "c", batched=True)
    assert [error.rollout_id for error in told] == ["a", "b", "c"]
    assert (
        "asked for 3 together, among them rollout b of prompt p, reward tests.rewards.judges:one_short gave 2"
        in str(told[1])
    )


def test_a_batch_with_one_bad_number_fails_that_answer_alone():
    fine, bad = told_by("none_for_bad", "good", "bad", batched=True)
    assert fine.value == 1.0
    assert "gave None" in str(bad)


def test_a_batched_function_that_gives_one_number_is_told_that_a_list_is_needed():
    assert "gives a list with a number for each answer; it gave 0.5" in str(told_by("one_number", "a", batched=True)[0])


def test_coroutines_are_awaited_together_at_most_so_many_at_once():
    judges.UNDER_WAY["most"] = 0
    assert [told.value for told in told_by("slowly", *("abc" * 4), at_once=5)] == [1.0] * 12
    assert judges.UNDER_WAY["most"] == 5
    assert Python(f"{HERE}:slowly").gathers
    assert not Python(f"{HERE}:length").gathers


def test_coroutines_of_one_call_and_the_next_live_in_one_loop():
    judges.LOOPS.clear()
    told_by("slowly", "a", "b")
    told_by("slowly", "c")
    assert len(set(judges.LOOPS)) == 1


def test_a_coroutine_that_raises_or_gives_no_number_fails_its_answer_alone():
    raised, nan, fine = told_by("slowly", "raise", "nan", "abc")
    assert "raised LookupError: no judge" in str(raised)
    assert "gave nan" in str(nan)
    assert fine.value == 3.0


def test_a_coroutine_that_hangs_fails_its_answer_alone_after_its_limit():
    began = time.perf_counter()
    hung, fine = told_by("slowly", "hang", "abc", limit_s=0.2)
    assert time.perf_counter() - began < 5.0
    assert "rollout hang of prompt p" in str(hung)
    assert "raised TimeoutError: nothing came within limit_s = 0.2 seconds" in str(hung)
    assert fine.value == 3.0


@pytest.mark.parametrize("name", ["all_slowly", "judge"])
def test_coroutines_are_noticed_wherever_they_are_defined(name):
    told = told_by(name, "ab", "cd", batched=name == "all_slowly")
    assert [one.value for one in told] == [2.0, 2.0]


def test_a_coroutine_is_awaited_also_where_a_loop_runs_already():
    async def main():
        return Python(f"{HERE}:slowly")(PROMPT, Answer("abc"))

    assert asyncio.run(main()) == 3.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at_once": 0}, "at_once of reward .* must be at least 1; got 0"),
        ({"limit_s": 0.0}, "limit_s of reward .* 0.0"),
    ],
)
def test_limits_that_let_nothing_through_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Python(f"{HERE}:slowly", **options)
