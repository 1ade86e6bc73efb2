import json
import re
import shlex

import numpy as np
import pytest

from tests.e2e.quick import train
from tests.pipeline import doctored  # noqa: F401  (registers the engine)
from tether.cli import probe_table
from tether.config.probe import probe
from tether.config.probe_settings import ProbeSettings as Settings

from .calling import tether

FEW = ("--no-trials", "--prompts", 6, "--completions", 2)


def ProbeSettings(**given):  # noqa: N802
    """Without trials, which open more engines."""
    return Settings(**{"trials": False, **given})


@pytest.fixture(scope="module")
def mixture():
    """Enough tokens that some are rerouted."""
    heard = []
    found = probe(ProbeSettings(source="tiny-moe", prompts=32), lambda *words: heard.append(words))
    return found, heard


def test_a_replay_brings_rerouted_tokens_to_the_level_of_all_others_and_leaves_those(mixture):
    found, _ = mixture
    before, after = found.without.by_route, found.replayed.by_route
    assert before["here"].tokens >= 20
    assert after["here"].max < before["here"].max
    assert after["here"].abs_mean < 0.75 * before["here"].abs_mean  # 0.18 to 0.5 in eight seeds of 64 prompts
    assert after["nowhere"].max == pytest.approx(before["nowhere"].max, abs=1e-4)
    assert after["nowhere"].abs_mean == pytest.approx(before["nowhere"].abs_mean, abs=1e-5)
    assert found.replayed.all.abs_mean < found.without.all.abs_mean


def test_both_sides_have_equal_weights_so_a_float32_engine_agrees_to_rounding():
    found = probe(ProbeSettings(source="tiny-moe", engine_dtypes=("float32",), prompts=6))
    assert found.without.all.max < 1e-4
    assert all(threshold.value is None for threshold in found.without.estr)
    assert "no threshold" in probe_table.thresholds_of(found)[0][0]


def test_the_trainer_has_the_weights_as_they_were_rounded_for_the_engine(monkeypatch):
    from tether.config import probe as module

    policies = []

    class Watched(module.Policy):
        def __init__(self, loaded):
            super().__init__(loaded)
            policies.append(self)

    monkeypatch.setattr(module, "Policy", Watched)
    probe(ProbeSettings(source="tiny-dense", prompts=2, completions=1, max_tokens=2))
    (policy,) = policies
    for tensor in policy.model.state_dict().values():
        assert tensor.bfloat16().float().equal(tensor)


def test_progress_is_told_from_nothing_to_all_of_every_kind_of_work(mixture):
    _, heard = mixture
    for what in ("sampling", "computing", "routing", "replaying"):
        told = [(done, total) for name, done, total in heard if name == what]
        assert told[0] == (0, 128)
        assert told[-1] == (128, 128)
        assert told == sorted(told)


def test_the_same_seed_gives_the_same_numbers_and_another_others():
    one, again, other = (
        probe(ProbeSettings(source="tiny-dense", prompts=3, seed=seed)).numbers()["per_token"] for seed in (0, 0, 1)
    )
    assert one == again
    assert one != other


def test_the_console_shows_the_numbers_a_plot_and_lines_to_paste(capsys):
    told = tether(capsys, "probe", "tiny-moe", "--no-trials", "--prompts", 16)
    assert (told.code, told.err) == (0, "")
    assert told.out.isascii()
    assert told.out.startswith("tiny-moe: engine torch bfloat16, task arithmetic, 16 prompts x 4 completions")
    for name in ("tokens", "mean |d|", "p99 |d|", "max |d|", "k3", "geometric mean", "product", "masks 1%", "masks 2%"):
        assert re.search(rf"^.*{re.escape(name)}.*\S+ .*\S+$", told.out, re.MULTILINE), name
    assert re.search(
        r"differ from the engine's in \d\.\d\d% of \(token, layer\) pairs, at \d+\.\d% of tokens", told.out
    )
    assert re.search(r"^  0\.01 +#+ ", told.out, re.MULTILINE)


def test_the_line_to_paste_is_taken_by_train(capsys):
    told = tether(capsys, "probe", "tiny-moe", "--no-trials", "--prompts", 16)
    lines = [line.strip() for line in told.out.splitlines() if "--set" in line]
    assert len(lines) == 2
    for line, replay in zip(lines, ("replay = []", 'replay = [{ name = "routing"'), strict=True):
        resolved = tether(capsys, "train", "--dry-run", *shlex.split(line))
        assert resolved.code == 0, resolved.err
        for text in ('preset = "estr"', 'name = "estr"', 'path = "tiny-moe"', replay):
            assert text in resolved.out


def test_page_and_numbers_are_written_and_written_over_and_say_the_same(capsys, tmp_path):
    out = tmp_path / "new" / "probe"
    for _ in range(2):
        told = tether(capsys, "probe", "tiny-moe", *FEW, "--out", out)
        assert told.code == 0, told.err
    assert sorted(path.name for path in out.iterdir()) == ["probe.html", "probe.json"]
    assert "share of tokens that are at least" not in told.out
    (numbers,) = json.loads((out / "probe.json").read_text())["probes"]
    tokens = numbers["per_token"]
    d = np.array(tokens["d"])
    assert numbers["without_replay"]["all"]["tokens"] == len(d) == len(tokens["logp_behavior"])
    assert numbers["without_replay"]["all"]["max"] == pytest.approx(np.abs(d).max())
    assert numbers["with_replay"]["all"]["abs_mean"] == pytest.approx(np.abs(tokens["d_replayed"]).mean())
    assert numbers["rerouted"]["token_share"] == pytest.approx(np.mean(tokens["rerouted_here"]))
    assert (numbers["engine_dtype"], numbers["task"], numbers["max_tokens"]) == ("bfloat16", "arithmetic", 32)
    assert f"{numbers['with_replay']['all']['max']:.4g}" in (out / "probe.html").read_text()


def test_a_dense_model_is_measured_without_a_replay_and_says_so(capsys):
    told = tether(capsys, "probe", "tiny-dense-sorting", *FEW, "--engine-dtype", "bfloat16")
    assert told.code == 0, told.err
    assert "task sorting" in told.out
    assert "with replay" not in told.out
    assert "No replay of routes: it has no router" in told.out


def test_a_run_is_probed_with_its_own_model_task_and_length(capsys, tmp_path):
    settings = (
        "run.steps=1",
        "eval.prompts=0",
        "task.max_operations=4",
        "engine.max_tokens=20",
        "pipeline.prompts_per_step=3",
    )
    run = train(tmp_path / "run", *settings)
    told = tether(capsys, "probe", run.folder, *FEW)
    assert told.code == 0, told.err
    assert "task arithmetic, 6 prompts x 2 completions of at most 20 tokens" in told.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nope"], "no model 'nope': embedded are tiny-moe"),
        (["tiny-dense", "--replay", "routing"], "'tiny-dense' cannot: it has no router"),
        (
            ["tiny-moe", "--replay", "support"],
            "replay 'support' has nothing to repeat: the engine samples from",
        ),
        (["tiny-moe", "--replay", "thoughts"], "a probe replays 'routing' or 'support'; got 'thoughts'"),
        (["tiny-moe", "--trainer-dtype", "fp8"], "the trainer's dtype must be one of bf16"),
        (["tiny-moe", "--engine", "torhc"], "no engine 'torhc'; there are "),
        (["tiny-moe", "--top-p", "0"], "engine.top_p must lie in (0, 1]"),
        (["tiny-moe", "--engine-dtype", "fp8"], "must be one of bf16, bfloat16, fp32, float32; got 'fp8'"),
        (["tiny-moe", "--prompts", "0"], "at least 1 for prompts; got 0"),
        (["tiny-moe", "--completions", "0"], "at least 1 for completions; got 0"),
        (["tiny-moe", "--max-tokens", "-1"], "at least 1 for max_tokens; got -1"),
        (["tiny-moe", "--prompts", "1000000"], "at most 1000000 responses"),
        (["tiny-moe", "--temperature", "0"], "must lie in 1e-6 .. 1e3, since greedy tokens"),
        (["tiny-moe", "--temperature", "nan"], "engine.temperature must be a finite number"),
        (["tiny-moe", "--seed", "-1"], "a seed must be at least 0; got -1"),
        (["tiny-moe", "--task", "chess"], "no task 'chess'; there are arithmetic"),
        (["tiny-moe", "--task", "sums"], "this model has no chat template"),
        (["tiny-moe", "--task", "sums", "--set", "task.chat=false"], "it refuses 'What is"),
        (["tiny-moe", "--set", "trainer.lr=1"], "only options of the task and of the engine can be set here"),
        (["tiny-moe", "--set", "engine.width=1"], "unknown key engine.width; [engine] has dtype"),
        (["tiny-moe", "--max-tokens", "600"], "of the model's context to the prompt"),
    ],
)
def test_what_cannot_be_probed_is_one_message(capsys, words, message):
    told = tether(capsys, "probe", *words)
    assert told.code == 1
    assert told.err.startswith("error: ")
    assert message in told.err
    assert told.err.count("\n") == 1


def test_a_folder_of_something_else_is_refused_before_any_work_and_left_alone(capsys, tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    told = tether(capsys, "probe", "no-such-model", "--out", tmp_path)
    assert (told.code, [path.name for path in tmp_path.iterdir()]) == (1, ["thesis.tex"])
    assert "holds 'thesis.tex': choose another folder" in told.err
    told = tether(capsys, "probe", "tiny-moe", "--out", tmp_path / "thesis.tex")
    assert told.code == 1
    assert "cannot write a probe to" in told.err


def test_an_unknown_model_must_be_told_its_task(capsys):
    from tether.models.catalog import folder_of

    told = tether(capsys, "probe", folder_of("tiny-moe"), *FEW)
    assert told.code == 1
    assert "so say which: --task arithmetic or --task " in told.err
    assert tether(capsys, "probe", folder_of("tiny-moe"), *FEW, "--task", "arithmetic").code == 0


def test_a_model_that_was_taught_to_chat_is_asked_sums(capsys, tmp_path):
    import shutil

    from tether.models.catalog import folder_of

    shutil.copytree(folder_of("tiny-dense"), tmp_path / "chatty")
    (tmp_path / "chatty" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    told = tether(capsys, "probe", tmp_path / "chatty", *FEW)
    assert told.code == 1  # it cannot spell
    assert "task 'sums'" in told.err


def test_ctrl_c_stops_it_with_one_word(capsys, monkeypatch):
    from tether.config import probe as module

    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "rerouting_of", interrupted)
    told = tether(capsys, "probe", "tiny-moe", *FEW)
    assert (told.code, told.out) == (130, "")
    assert "Traceback" not in told.err


# --- several engines, formats and settings


def test_the_float32_engine_is_named_as_what_removes_the_mismatch_and_numbers_say_what_each_setting_leaves(capsys):
    told = tether(capsys, "probe", "tiny-moe", "--prompts", 6, "--completions", 2, "--json")
    assert told.code == 0, told.err
    (found,) = json.loads(told.out)["probes"]
    trials = {trial["setting"]: trial for trial in found["trials"]}
    assert list(trials) == [
        "algorithm.replay = routing",
        "trainer.dtype = bfloat16",
        "trainer.dtype = bfloat16, algorithm.replay = routing",
        "engine.dtype = float32",
        "engine.max_rows = 1",
    ]
    assert trials["engine.dtype = float32"]["leaves"] < 0.01
    assert trials["trainer.dtype = bfloat16"]["leaves"] > 0.05
    assert re.fullmatch(
        r"engine.dtype = float32 leaves \S+ % of mean \|d\| \(\S+ to \S+ nats\)",
        trials["engine.dtype = float32"]["told"],
    )
    assert found["verdict"] == "What removes the mismatch: engine.dtype = float32."


def test_nothing_is_to_be_removed_where_both_sides_are_float32(capsys):
    told = tether(capsys, "probe", "tiny-dense", "--prompts", 4, "--completions", 2, "--engine-dtype", "float32")
    assert "The two sides agree but for rounding, mean |d| " in told.out
    assert "engine.max_rows = 1 leaves" in told.out


def test_formats_and_engines_are_compared_in_one_table_page_and_file(capsys, tmp_path):
    words = ("--engine", "torch", "--engine-dtype", "bf16", "--engine-dtype", "float32", "--out", tmp_path / "out")
    told = tether(capsys, "probe", "tiny-moe", *FEW, *words)
    assert told.code == 0, told.err
    assert re.search(r"^ +torch bfloat16 +torch float32$", told.out, re.MULTILINE)
    for name in ("mean |d|", "p95 |d|", "tokens rerouted", "token 2-8: mean |d|", "mu above 0.9: mean |d|"):
        assert re.search(rf"^{re.escape(name)} +\S+ +\S+$", told.out, re.MULTILINE), name
    coarse, fine = json.loads((tmp_path / "out" / "probe.json").read_text())["probes"]
    assert (coarse["engine_dtype"], fine["engine_dtype"]) == ("bfloat16", "float32")
    assert fine["without_replay"]["all"]["max"] < 1e-4 < coarse["without_replay"]["all"]["max"]
    assert "torch float32" in (tmp_path / "out" / "probe.html").read_text()


def test_a_trainer_in_bfloat16_stands_nearer_to_a_bfloat16_engine_and_far_from_one_in_float32():
    fine = probe(ProbeSettings(source="tiny-dense", prompts=8, engine_dtypes=("float32",), trainer_dtype="bf16"))
    assert fine.about["trainer_dtype"] == "bfloat16"
    assert fine.without.all.abs_mean > 1e-4


def test_options_of_the_engine_are_set_and_shown():
    found = probe(ProbeSettings(source="tiny-dense", prompts=2, options=("engine.max_rows=3", "task.min_operations=1")))
    assert found.about["engine_options"]["max_rows"] == 3


@pytest.mark.parametrize(
    ("fault", "options", "told"),
    [
        ("shifted", {}, "stand one position off"),
        ("raw", {"temperature": 0.7}, "before the temperature (raw)"),
        ("rounded numbers", {}, "are bfloat16 numbers"),
        ("one more id", {}, "of 12 completions are not what was sampled; 'g0/0' "),
    ],
)
def test_numbers_that_look_like_a_known_fault_are_called_by_its_name(fault, options, told):
    found = probe(
        ProbeSettings(
            source="tiny-dense",
            engines=("doctored",),
            options=(f"engine.fault={fault}", "engine.sound_loads=0"),
            prompts=6,
            completions=2,
            **options,
        )
    )
    assert [told in fault for fault in found.faults] == [True]
    assert f"WRONG: {found.faults[0]}." in probe_table.told_of(found)


def test_a_sound_engine_has_no_fault_at_any_temperature():
    for temperature in (0.7, 1.0, 1.4):
        assert probe(ProbeSettings(source="tiny-dense", prompts=6, temperature=temperature)).faults == ()


def test_what_truncation_cuts_away_is_told_apart_from_the_arithmetic_and_its_replay_takes_it_out(capsys):
    words = ("--prompts", 6, "--completions", 2, "--top-p", "0.9", "--engine-dtype", "float32")
    told = tether(capsys, "probe", "tiny-dense", *words, "--json")
    (found,) = json.loads(told.out)["probes"]
    before, after = found["without_replay"]["all"], found["with_replay"]["all"]
    assert found["replays"] == ["support"]
    assert found["truncation"] == {"top_k": 0, "top_p": 0.9, "min_p": 0.0}
    assert before["mean"] == pytest.approx(-found["lost_nats"], abs=1e-5)  # all tokens are off, to one side
    assert found["lost_nats"] > 1e-3 > 1e-4 > after["max"]
    assert found["verdict"].startswith("What removes the mismatch: algorithm.replay = support")
    told = tether(capsys, "probe", "tiny-dense", "--no-trials", *words)
    assert "over the whole vocabulary a token's log-prob is 0.0" in told.out
    assert 'algorithm.replay=[{name="support"}]' in told.out or "no threshold" in told.out


def test_an_engine_that_does_not_say_what_it_kept_has_the_shift_in_its_mismatch_and_it_is_said(capsys):
    words = ("--engine", "doctored", "--set", "engine.fault=silent on kept sets", "--top-p", "0.9")
    told = tether(capsys, "probe", "tiny-dense", *FEW, *words)
    assert told.code == 0, told.err
    assert "does not say which: d has in it what was cut away" in told.out
    told = tether(capsys, "probe", "tiny-dense", *FEW, *words, "--replay", "support")
    assert told.code == 1
    assert "engine 'doctored' cannot report what each token was sampled among" in told.err
