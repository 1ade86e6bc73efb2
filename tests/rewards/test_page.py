"""The page on rewards says what there is, and its recipe runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.e2e.quick import train
from tether.records import Answer, Prompt
from tether.registry import REWARDS
from tether.rewards.python import Python

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_table_is_what_the_command_makes_now():
    command = [sys.executable, str(ROOT / "docs" / "rewards.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", REWARDS.names())
def test_every_reward_has_a_row(name):
    assert f"\n| `{name}` |" in PAGE


def test_the_recipe_of_the_page_trains_and_tells_every_part(tmp_path):
    table = tomllib.loads(blocks("toml")[0])["reward"]
    options = [", ".join(f"{key} = {json.dumps(value)}" for key, value in part.items()) for part in table["parts"]]
    parts = ", ".join(f"{{{of_one}}}" for of_one in options)
    settings = [f"reward.decides={json.dumps(table['decides'])}", f"reward.parts=[{parts}]"]
    run = train(tmp_path / "run", *settings, "run.steps=2", "eval.prompts=0")
    assert run.status == "finished"
    assert len(run.steps) == 2
    for step in run.steps:
        told = {name: metric for name, metric in step.metrics.items() if name.startswith("reward/")}
        assert {"reward/part/value", "reward/part/overlong", "reward/groups_mixed", "reward/flat_all_wrong"} <= set(
            told
        )
        wrong = told["reward/part/value"].count * (1 - told["reward/part/value"].value)
        repeated = told.get("reward/part/repetition")
        assert (0 if repeated is None else repeated.count) == pytest.approx(wrong)
        total = told["reward/part/value"].value + 0.5 * told["reward/part/overlong"].value
        if repeated is not None:
            total += repeated.value * repeated.count / told["reward/part/value"].count
        assert told["reward/mean"].value == pytest.approx(total)
    assert run.rollouts
    for sample in run.rollouts:
        assert set(sample.grades) == {"value", "overlong"} | (set() if sample.is_right else {"repetition"})
        assert sample.is_right == (sample.grades["value"].value == 1.0)


def test_the_functions_of_the_page_are_rewards(tmp_path, monkeypatch):
    (tmp_path / "my_rewards_of_the_page.py").write_text(blocks("python")[0])
    monkeypatch.syspath_prepend(tmp_path)
    prompt, answer = Prompt(id="p", text="?", token_ids=(1,), reference="3"), Answer("please", 101)

    def given(name, **options):
        return Python(f"my_rewards_of_the_page:{name}", **options)

    assert given("polite")(prompt, answer) == 1.0
    assert given("brief")(prompt, answer) == -1.0
    assert given("sized", batched=True).judge_all([prompt] * 2, [answer] * 2) == [-0.006] * 2
    assert given("asked").gathers
