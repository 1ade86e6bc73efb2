"""The quickstart, trained for a few steps with vLLM as its engine."""

import json

import pytest
import torch

from tests.e2e.quick import SMALL, assert_books_balance, journal, train
from tether.config.build import train as train_apart
from tether.config.recipe import load
from tether.journal import RunView
from tether.models.loading import load_model

VLLM = ("engine.kind=vllm", "engine.kv_cache_gib=0.25", "engine.max_tokens=16", "engine.max_rows=64", "run.steps=4")


def metric(run: RunView, event: str, name: str) -> list[float]:
    lines = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    return [e["metrics"][name]["value"] for e in lines if e["event"] == event and name in e["metrics"]]


@pytest.fixture(scope="module")
def inline(tmp_path_factory) -> RunView:
    return train(tmp_path_factory.mktemp("runs") / "inline", *VLLM, "engine.dtype=float32", "trainer.lr=0.01")


def test_under_virtual_time_staleness_is_what_the_lag_says(inline):
    assert inline.status == "finished"
    assert [{int(k) for k in e.metrics["staleness/histogram"].value} for e in inline.steps] == [{0}, {1}, {2}, {3}]
    assert_books_balance(inline, groups=8, size=4)


def test_the_check_after_each_publication_found_the_trainers_log_probs(inline):
    gaps = metric(inline, "check", "probe/abs_d_mean")
    assert len(gaps) == 3
    assert max(gaps) < 1e-5


def test_weights_were_trained(inline):

    before, after = (
        load_model("tiny-moe").model.state_dict(),
        load_model(str(inline.folder / "model")).model.state_dict(),
    )
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_in_bfloat16_there_is_a_mismatch_and_the_floor_of_the_check_adapts(tmp_path):
    run = train(tmp_path / "run", *VLLM, "run.steps=2", "engine.dtype=bfloat16")
    assert run.status == "finished"
    gaps, allowed = (metric(run, "check", f"probe/{name}") for name in ("abs_d_mean", "allowed"))
    assert min(gaps) > 1e-6
    assert max(gaps) > 1e-4
    assert all(gap < most for gap, most in zip(gaps, allowed, strict=True))


def test_in_processes_of_their_own(tmp_path, ray_here):
    settings = ("placement.kind=ray", "placement.object_store_bytes=100_000_000", "run.steps=2", "engine.dtype=float32")
    run = RunView(train_apart(load(settings=(*SMALL, *VLLM, *settings)), tmp_path / "run"))
    assert run.status == "finished"
    assert_books_balance(run, groups=4, size=4)


def test_two_engines_under_virtual_time_sample_the_same_run_twice(tmp_path):
    settings = (*VLLM, "run.steps=2", "placement.engines=2")
    one, other = (train(tmp_path / name, *settings) for name in ("one", "other"))
    assert one.status == "finished"
    assert journal(one.folder) == journal(other.folder)
