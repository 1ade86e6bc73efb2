"""A reward by import path: found before the run, or refused with what is there."""

import pickle

import pytest

from tether.errors import ConfigError
from tether.records import Answer, Prompt
from tether.registry import REWARDS
from tether.rewards.python import Python

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
        (f"{HERE}:absent", r"has no 'absent'; it has broken, length"),
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
