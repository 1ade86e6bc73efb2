"""What ``tether probe`` finds of a real vLLM."""

from __future__ import annotations

from tether.config.probe import probe_all
from tether.config.probe_settings import ProbeSettings


def test_vllm_in_float32_agrees_with_the_trainer_and_in_bfloat16_that_is_named_as_what_removes_the_mismatch() -> None:
    formats = ("bfloat16", "float32")
    settings = ProbeSettings(source="tiny-moe", engines=("vllm",), engine_dtypes=formats, prompts=6, completions=2)
    coarse, fine = probe_all(settings)
    assert fine.without.all.max < 1e-4
    assert coarse.without.all.abs_mean > 100 * fine.without.all.abs_mean
    assert coarse.faults == fine.faults == ()
    assert coarse.verdict.startswith("What removes the mismatch: engine.dtype = float32")
    assert "engine.prefix_cache = false" in [trial.setting for trial in coarse.trials]


def test_what_vllm_cuts_away_is_replayed() -> None:
    settings = ProbeSettings(
        source="tiny-dense", engines=("vllm",), engine_dtypes=("float32",), top_p=0.9, trials=False, prompts=6
    )
    (found,) = probe_all(settings)
    assert found.replayed is not None
    assert found.replays == ("support",)
    assert found.replayed.all.max < 1e-4 < found.without.all.max
