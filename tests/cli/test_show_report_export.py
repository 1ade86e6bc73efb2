import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tether.cli import export, report, show
from tether.errors import RunDirectoryError
from tether.journal import RunWriter, Sample
from tether.records import Event, Grade, Metric


def sample(id: str, *, logp: np.ndarray | None) -> Sample:
    return Sample(
        id=id,
        step=12,
        prompt="4+3[red]=",
        completion="0\x1b[31m",
        token_texts=("0", "\x1b[31m", "tool", "<eos>"),
        token_ids=np.array([5, 6, 7, 1], np.int32),
        logp_behavior=np.array([-0.5, -1.0, 0.0, -0.125], np.float32),
        logp=logp,
        version=np.array([0, 0, 8, 8], np.int32),
        staleness=np.array([12, 12, 4, 4], np.int32),
        trainable=np.array([True, True, False, True]),
        reward=1.0,
        advantage=-0.25,
    )


def weights(num_bytes: int) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(num_bytes)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    with RunWriter(folder) as writer:
        writer.config({"recipe": "quickstart"})
        writer.event(Event(event="step", step=1, version=1, metrics={"reward/mean": Metric(0.5)}))
        writer.event(Event(event="finish", step=1, version=1))
        logp = np.array([-0.5, -1.5, 0.0, -0.0625], np.float32)
        writer.rollouts([sample("g0/0", logp=logp), sample("g0/1", logp=None)])
    model = folder / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (model / name).write_text("{}")
    (model / "model.safetensors").write_bytes(weights(16))
    return folder


def call(command, *args: object) -> Result:
    return CliRunner().invoke(command, [str(arg) for arg in args])


def test_show_lists_the_stored_samples(run):
    result = call(show.command, run)
    assert result.exit_code == 0
    header, *rows = result.output.splitlines()
    assert header.split() == ["rollout", "step", "version", "staleness", "reward", "prompt", "completion"]
    assert rows[0].split() == ["g0/0", "12", "0..8", "4..12", "1", "4+3[red]=", r"0\x1b[31m"]


def test_show_prints_one_rollout_token_by_token(run):
    result = call(show.command, run, "g0/0")
    assert result.exit_code == 0
    assert "rollout g0/0   step 12   reward 1   advantage -0.25   4 tokens" in result.output
    rows = [line.split() for line in result.output.splitlines()]
    assert ["1", r"\x1b[31m", "6", "0", "12", "yes", "-1.0000", "-1.5000", "-0.5000"] in rows
    assert ["2", "tool", "7", "8", "4", "no", "0.0000", "0.0000", "+0.0000"] in rows


def test_show_tells_what_each_part_of_the_reward_gave(tmp_path):
    grades = {
        "math": Grade(value=1.0, status="correct", extracted="1\x1b[31m2", stage="boxed:number"),
        "size": Grade(value=-0.25),
    }
    judged = replace(sample("g0/0", logp=None), grades=grades, is_right=True)
    with RunWriter(tmp_path) as writer:
        writer.rollouts([judged, replace(judged, id="g0/1", is_right=False)])
    line = r"math 1 (correct, found '1\x1b[31m2', boxed:number)  size -0.25"
    assert f"rewards     right  {line}" in call(show.command, tmp_path, "g0/0").output
    assert f"rewards     wrong  {line}" in call(show.command, tmp_path, "g0/1").output


def test_show_of_a_run_that_kept_no_parts_has_no_line_for_them(run):
    assert "rewards " not in call(show.command, run, "g0/0").output


def test_show_says_of_how_many_ids_a_token_of_truncated_sampling_was_drawn(tmp_path):
    cut = replace(sample("g0/0", logp=None), num_kept=np.array([7, 2, 0, 1], np.int32))
    with RunWriter(tmp_path / "run") as writer:
        writer.config({"recipe": "quickstart"})
        writer.rollouts([cut])
    rows = [line.split() for line in call(show.command, tmp_path / "run", "g0/0").output.splitlines()]
    assert ["0", "0", "5", "0", "12", "yes", "-0.5000", "-", "-", "7", "ids"] in rows


def test_show_of_a_rollout_that_the_trainer_never_evaluated(run):
    rows = [line.split() for line in call(show.command, run, "g0/1").output.splitlines()]
    assert ["0", "0", "5", "0", "12", "yes", "-0.5000", "-", "-"] in rows


def test_show_never_lets_a_terminal_obey_the_model(run):
    for args in ((), ("g0/0",)):
        assert "\x1b" not in call(show.command, run, *args).output


@pytest.mark.parametrize(
    ("by", "styles"),
    [
        ("trainable", ["green", "green", "dim", "green"]),
        ("version", ["cyan", "cyan", "dim", "magenta"]),
        ("mismatch", ["green", "bold red", "dim", "yellow"]),
    ],
)
def test_show_colours_by(run, by, styles):
    logp = np.array([-0.5, -1.5, 0.0, -0.0625], np.float32)
    assert show.styles_of(sample("r", logp=logp), by) == styles
    assert call(show.command, run, "g0/0", "--by", by).exit_code == 0


def test_show_of_a_run_without_samples_says_so(tmp_path):
    RunWriter(tmp_path).close()
    assert "no samples are stored" in call(show.command, tmp_path).output


def test_show_of_an_unknown_rollout_lists_some(run):
    result = call(show.command, run, "g9/9")
    assert isinstance(result.exception, RunDirectoryError)
    assert "stored are g0/0, g0/1" in str(result.exception)


@pytest.mark.parametrize("name", ["events.jsonl", "rollouts.jsonl"])
def test_show_tells_a_torn_last_line_from_a_garbage_line(run, name):
    with (run / name).open("a") as file:
        file.write('{"schema":1,"i')
    assert f"The last line of {name} was cut off" in call(show.command, run, "g0/0").output
    with (run / name).open("a") as file:
        file.write('\n{}\n{"schema":1,"i')
    for args in ((), ("g0/0",)):
        result = call(show.command, run, *args)
        assert result.exit_code == 0
        assert f"Line 3 of {name} is not JSON; it and what follows it (2 lines) are left out." in result.output


def test_show_tells_what_cannot_be_read_before_it_misses_a_rollout(run):
    (run / "rollouts.jsonl").write_text("garbage\n{}\n")
    result = call(show.command, run, "g0/0")
    assert "Line 1 of rollouts.jsonl is not JSON" in result.output
    assert isinstance(result.exception, RunDirectoryError)


def test_report_refuses_to_replace_what_is_no_file(run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    result = call(report.command, run, "--out", tmp_path / "pipe")
    assert isinstance(result.exception, RunDirectoryError)
    assert "is a named pipe: choose the path of a new or an ordinary file" in str(result.exception)
    assert (tmp_path / "pipe").is_fifo()


def test_report_prints_path_and_size(run, tmp_path):
    result = call(report.command, run)
    assert result.exit_code == 0
    assert result.output.startswith(f"{run / 'report.html'} (1.")
    assert result.output.endswith(" MB)\n")
    assert call(report.command, run, "--out", tmp_path / "r.html").exit_code == 0
    assert (tmp_path / "r.html").is_file()


@pytest.mark.parametrize("is_there", [False, True])
def test_export_copies_the_model_whole(run, tmp_path, is_there):
    out = tmp_path / "deep" / "out"
    if is_there:
        out.mkdir(parents=True)
    result = call(export.command, run, "--out", out)
    assert result.exit_code == 0
    assert result.output == f"{out} (0.0 MB)\n"
    names = {path.name for path in (run / "model").iterdir()}
    assert {path.name for path in out.iterdir()} == names
    assert all((out / name).read_bytes() == (run / "model" / name).read_bytes() for name in names)
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_export_refuses_a_folder_in_use(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    result = call(export.command, run, "--out", tmp_path / "out")
    assert isinstance(result.exception, RunDirectoryError)
    assert "needs a new or empty folder" in str(result.exception)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_export_refuses_to_go_into_the_model_itself(run):
    result = call(export.command, run, "--out", run / "model" / "copy")
    assert "into itself" in str(result.exception)


def test_export_of_a_run_that_did_not_finish_says_why_there_is_no_model(tmp_path):
    RunWriter(tmp_path / "run").close()
    result = call(export.command, tmp_path / "run", "--out", tmp_path / "out")
    assert isinstance(result.exception, RunDirectoryError)
    assert "the run is unfinished, and the model is written when a run finishes" in str(result.exception)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda model: (model / "tokenizer.json").unlink(), "it lacks tokenizer.json"),
        (lambda model: (model / "model.safetensors").unlink(), r"it lacks \*.safetensors"),
        (lambda model: (model / "model.safetensors").write_bytes(weights(15)), "was cut off"),
        (lambda model: (model / "model.safetensors").write_bytes(b"\xff" * 30), "was cut off"),
        (lambda model: (model / "model.safetensors").write_bytes(b""), "was cut off"),
        (
            lambda model: (model / "model.safetensors.index.json").write_text('{"weight_map":{"w":"b.safetensors"}}'),
            "it lacks b.safetensors",
        ),
        (lambda model: (model / "model.safetensors.index.json").write_text("[]"), "is no index of weights"),
    ],
)
def test_export_refuses_a_model_that_is_not_whole(run, tmp_path, damage, message):
    damage(run / "model")
    with pytest.raises(RunDirectoryError, match=message):
        export.export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_export_that_fails_leaves_nothing_behind(run, tmp_path, monkeypatch):
    def full(source: Path, goal: Path) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(export.os, "replace", full)
    (tmp_path / "exports").mkdir()
    with pytest.raises(RunDirectoryError, match=r"cannot export to .*: no space left on device; nothing was written"):
        export.export(run, tmp_path / "exports" / "out")
    assert list((tmp_path / "exports").iterdir()) == []


@pytest.mark.parametrize("module", ["show", "report", "export"])
def test_these_commands_import_no_torch(module):
    code = f"import sys, tether.cli.{module}; assert not {{'torch', 'transformers'}} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("command", [show.command, report.command])
def test_a_folder_that_is_no_run_is_refused(command, tmp_path):
    result = call(command, tmp_path)
    assert isinstance(result.exception, RunDirectoryError)
    assert "is not a run directory" in str(result.exception)
