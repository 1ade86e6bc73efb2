import errno
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tether.errors import ConfigError, NonFiniteError, RunDirectoryError
from tether.journal import LedgerLine, RunView, RunWriter
from tether.records import Event, Metric


def step(number: int, **metrics: Metric) -> Event:
    return Event(event="step", step=number, version=number, metrics=metrics)


def test_what_was_written_is_read(tmp_path):
    with RunWriter(tmp_path / "run") as writer:
        writer.config({"run": {"seed": 0, "name": "é"}})
        writer.event(Event(event="start", step=0, version=0))
        writer.event(step(1, reward=Metric(0.25), stale=Metric({"8": 2.0}, "sum")))
        writer.event(step(2, reward=Metric(0.75), stale=Metric({"10": 1.0, "9": 3.0}, "sum")))
        writer.event(Event(event="eval", step=2, version=2, metrics={"eval/accuracy": Metric(0.5)}))
        writer.ledger(LedgerLine(id="r0", prompt_id="p", group="g", fate="trained"))
    run = RunView(tmp_path / "run")
    assert run.config == {"run": {"seed": 0, "name": "é"}}
    assert [event.event for event in run.events] == ["start", "step", "step", "eval"]
    steps, values = run.series("reward")
    np.testing.assert_array_equal(steps, [1, 2])
    np.testing.assert_array_equal(values, [0.25, 0.75])
    assert run.series("absent")[0].size == 0
    assert run.series("stale")[0].size == 0
    assert run.series("eval/accuracy", "eval")[1].tolist() == [0.5]
    assert list(run.histogram("stale").items()) == [("8", 2.0), ("9", 3.0), ("10", 1.0)]
    assert run.merged()["reward"].value == 0.5
    assert run.balance() == {"trained": 1}
    assert run.names() == ("reward", "stale")
    assert (run.status, run.is_torn, run.model) == ("unfinished", False, None)


def test_each_line_is_there_before_the_next_call(tmp_path):
    writer = RunWriter(tmp_path)
    writer.event(step(1))
    assert len(RunView(tmp_path).events) == 1
    writer.close()
    writer.close()


def test_nothing_written_is_lost_when_the_process_is_killed(tmp_path):
    code = (
        "import os, signal; from tether.journal import RunWriter; from tether.records import Event\n"
        f"w = RunWriter({str(tmp_path / 'run')!r})\n"
        "for i in range(5): w.event(Event(event='step', step=i, version=i))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    run = RunView(tmp_path / "run")
    assert [event.step for event in run.steps] == list(range(5))
    assert run.config == {}


def test_two_writes_of_one_thing_give_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        with RunWriter(tmp_path / name) as writer:
            writer.event(step(1, a=Metric(0.1), b=Metric(float(np.float32(0.1)))))
    one, two = ((tmp_path / name / "events.jsonl").read_bytes() for name in ("one", "two"))
    assert one == two


def test_a_used_directory_is_refused(tmp_path):
    RunWriter(tmp_path / "run").close()
    with pytest.raises(RunDirectoryError, match="holds a run already: choose another with --out"):
        RunWriter(tmp_path / "run")


def test_any_directory_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(RunDirectoryError, match=r"is not empty \(thesis.tex\): choose another"):
        RunWriter(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match=r"cannot make the run directory .*choose a folder that can be written"):
        RunWriter(tmp_path / "file" / "run")
    with pytest.raises(RunDirectoryError, match="cannot make the run directory"):
        RunWriter(tmp_path / "file")


def test_a_directory_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    def denied(*args: object, **kwargs: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(RunDirectoryError, match=r"cannot create .*events.jsonl: permission denied; choose another"):
        RunWriter(tmp_path / "run")


def test_a_line_that_does_not_fit_on_the_disk_is_cut_back_and_none_follows_it(tmp_path, monkeypatch):
    writer = RunWriter(tmp_path)
    writer.event(step(1))
    whole = (tmp_path / "events.jsonl").read_bytes()
    real, calls = os.write, []

    def full(fd: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[:10])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(RunDirectoryError, match=r"cannot write to .*events.jsonl: no space left on device"):
            writer.event(step(2))
    assert (tmp_path / "events.jsonl").read_bytes() == whole
    with pytest.raises(RunDirectoryError, match=r"events.jsonl takes no more lines"):
        writer.event(step(3))
    writer.ledger(LedgerLine(id="r0", prompt_id="p", group="g", fate="trained"))
    writer.close()
    run = RunView(tmp_path)
    assert (len(run.events), len(run.ledger), run.is_torn) == (1, 1, False)


def test_a_short_write_that_goes_on_is_one_line(tmp_path, monkeypatch):
    writer = RunWriter(tmp_path)
    real, calls = os.write, []

    def slow(fd: int, data: bytes) -> int:
        calls.append(data)
        return real(fd, data[:10] if len(calls) == 1 else data)

    monkeypatch.setattr(os, "write", slow)
    writer.event(step(1))
    writer.event(step(2))
    writer.close()
    assert len(RunView(tmp_path).events) == 2


def test_a_config_is_whole_or_absent(tmp_path, monkeypatch):
    with RunWriter(tmp_path) as writer:
        writer.config({"a": 1})

        def full(fd: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(RunDirectoryError, match=r"cannot write .*config.json: no space left"):
                writer.config({"a": 2})
    assert RunView(tmp_path).config == {"a": 1}
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "config.json", "events.jsonl", "ledger.jsonl", "rollouts.jsonl",
    ]  # fmt: skip


def test_a_config_of_plain_finite_values_only(tmp_path):
    with RunWriter(tmp_path) as writer:
        with pytest.raises(ConfigError, match="plain JSON"):
            writer.config({"path": tmp_path})
        with pytest.raises(NonFiniteError, match="finite numbers only"):
            writer.config({"lr": float("nan")})


def test_an_error_inside_closes_the_files_and_is_told(tmp_path):
    def use(writer: RunWriter) -> None:
        with writer:
            writer.event(step(1))
            raise KeyError("boom")

    writer = RunWriter(tmp_path)
    with pytest.raises(KeyError):
        use(writer)
    with pytest.raises(RunDirectoryError, match="comes too late"):
        writer.event(step(2))


def test_a_nan_leaves_no_line(tmp_path):
    with RunWriter(tmp_path) as writer:
        with pytest.raises(NonFiniteError, match="'loss'"):
            writer.event(step(1, loss=Metric(float("nan"))))
        writer.event(step(2))
    assert [event.step for event in RunView(tmp_path).events] == [2]


@pytest.mark.parametrize("torn", ['{"schema":1,"event":"st', "\x00\x00\x00", '{"schema":1,"eve\n'])
def test_a_torn_last_line_is_left_out_and_told(tmp_path, torn):
    with RunWriter(tmp_path) as writer:
        writer.event(step(1))
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(torn)
    run = RunView(tmp_path)
    assert len(run.events) == 1
    assert run.is_torn


def test_a_broken_line_in_the_middle_is_an_error_with_its_place(tmp_path):
    with RunWriter(tmp_path) as writer:
        writer.event(step(1))
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"nonsense\n" + path.read_bytes())
    with pytest.raises(RunDirectoryError, match=r"line 1 of .*events.jsonl is not JSON"):
        _ = RunView(tmp_path).events


@pytest.mark.parametrize(
    ("line", "message"),
    [({"schema": 2}, "has schema 2; this tether reads up to 1: upgrade"), ({"schema": 1}, "not a line of a run"),
     ([], "not a line of a run")],
)  # fmt: skip
def test_a_line_of_something_else_is_an_error(tmp_path, line, message):
    RunWriter(tmp_path).close()
    (tmp_path / "events.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(RunDirectoryError, match=message):
        _ = RunView(tmp_path).events


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunDirectoryError, match=r"no run directory .*missing; give the folder that tether train"):
        RunView(tmp_path / "missing")
    with pytest.raises(RunDirectoryError, match=r"not a run directory: it has neither config.json nor events.jsonl"):
        RunView(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_broken_config_is_an_error(tmp_path, content):
    RunWriter(tmp_path).close()
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(RunDirectoryError, match=r"cannot read .*config.json"):
        _ = RunView(tmp_path).config


@pytest.mark.parametrize(("kind", "status"), [("finish", "finished"), ("fail", "failed"), ("step", "unfinished")])
def test_a_run_says_how_it_ended(tmp_path, kind, status):
    with RunWriter(tmp_path) as writer:
        writer.event(Event(event=kind, step=1, version=1))
    run = RunView(tmp_path)
    assert run.status == status
    last = run.last(kind)
    assert last is not None
    assert last.event == kind
    assert run.last("publish") is None


def test_totals_add_sums_up_over_the_kinds_that_spend_time(tmp_path):
    with RunWriter(tmp_path) as writer:
        for kind in ("step", "eval", "finish"):
            writer.event(Event(event=kind, step=1, version=1, metrics={"time/a_s": Metric(1.5, "sum")}))
        writer.event(step(2, **{"time/b_s": Metric(9.0, "sum"), "time/h": Metric({"1": 1.0}, "sum")}))
        writer.event(step(3, **{"time/virtual_s": Metric(40.0, "last")}))
    assert list(RunView(tmp_path).totals("time/").items()) == [("time/b_s", 9.0), ("time/a_s", 3.0)]


def test_an_unknown_rollout_lists_some_that_are_stored(tmp_path):
    RunWriter(tmp_path).close()
    with pytest.raises(RunDirectoryError, match=r"no stored rollout 'r9' in .*stored are none"):
        RunView(tmp_path).rollout("r9")


@pytest.mark.parametrize("module", ["tether.journal"])
def test_a_run_opens_without_torch(module):
    code = f"import sys, {module}; assert not {{'torch', 'transformers'}} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
