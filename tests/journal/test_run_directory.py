import errno
import json
import os
import shutil
import stat
import subprocess
import sys

import numpy as np
import pytest

from tether.errors import ConfigError, NonFiniteError, RunDirectoryError
from tether.journal import LedgerLine, RunView, RunWriter
from tether.journal.reader import Gap
from tether.journal.writer import write_whole
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
    for _ in range(2):  # the first reason is told each time, with its way out
        with pytest.raises(
            RunDirectoryError, match=r"events.jsonl: no space left on device; .*Make room and start again"
        ):
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
        "config.json", "evals.jsonl", "events.jsonl", "ledger.jsonl", "rollouts.jsonl", "spans.jsonl",
    ]  # fmt: skip


@pytest.mark.parametrize("file", ["events.jsonl", "ledger.jsonl"])
def test_a_journal_that_is_deleted_in_mid_run_is_noticed_at_its_next_line(tmp_path, file):
    lines = {
        "events.jsonl": lambda writer: writer.event(step(1)),
        "ledger.jsonl": lambda writer: writer.ledger(LedgerLine(id="r0", prompt_id="p", group="g", fate="trained")),
    }
    with RunWriter(tmp_path / "run") as writer:
        lines[file](writer)
        shutil.rmtree(tmp_path / "run")
        for _ in range(2):
            with pytest.raises(RunDirectoryError, match=rf"{file} was deleted, .*start again with a new --out"):
                lines[file](writer)


def test_a_journal_whose_folder_is_moved_in_mid_run_goes_on(tmp_path):
    with RunWriter(tmp_path / "run") as writer:
        (tmp_path / "run").rename(tmp_path / "moved")
        writer.event(step(1))
    assert len(RunView(tmp_path / "moved").events) == 1


def test_only_an_ordinary_file_is_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "link").symlink_to("pipe")
    kinds = {"pipe": "a named pipe", "folder": "a folder", "loop": "a symbolic link", "link": "a named pipe"}
    for name, kind in kinds.items():
        with pytest.raises(
            RunDirectoryError, match=rf"{name} is {kind}.*: choose the path of a new or an ordinary file"
        ):
            write_whole(tmp_path / name, b"new")
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kinds)


def test_a_symbolic_link_stays_and_the_file_it_points_to_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    for name in ("old", "new"):
        (tmp_path / name).symlink_to(f"there/{name}.html")
    (tmp_path / "there" / "old.html").write_bytes(b"old")
    for name in ("old", "new"):
        write_whole(tmp_path / name, b"whole")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "there" / f"{name}.html").read_bytes() == b"whole"
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == ["new.html", "old.html"]


def test_what_a_link_in_the_place_of_the_partial_file_points_to_is_left_alone(tmp_path):
    (tmp_path / "thesis").write_bytes(b"mine")
    (tmp_path / ".r.html.partial").symlink_to("thesis")
    write_whole(tmp_path / "r.html", b"whole")
    assert (tmp_path / "thesis").read_bytes() == b"mine"
    assert (tmp_path / "r.html").read_bytes() == b"whole"


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
    assert run.gaps == (Gap("events.jsonl", line=2, num_after=0),)


@pytest.mark.parametrize("garbage", [b"nonsense", b"", b"\xff\xfe", b'{"schema":1,"ev{"schema":1}', b"[" * 10**5])
@pytest.mark.parametrize("end", [b"", b'{"schema":1,"ev'])
def test_a_file_is_read_up_to_a_garbage_line_in_its_middle_which_is_told_by_number(tmp_path, garbage, end):
    with RunWriter(tmp_path) as writer:
        for number in (1, 2, 3):
            writer.event(step(number))
        writer.ledger(LedgerLine(id="r0", prompt_id="p", group="g", fate="trained"))
    path = tmp_path / "events.jsonl"
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + garbage + b"\n" + second + third + end)
    run = RunView(tmp_path)
    assert [event.step for event in run.events] == [1]
    assert len(run.ledger) == 1
    assert not run.is_torn
    assert run.gaps == (Gap("events.jsonl", line=2, num_after=3 if end else 2),)
    assert "Line 2 of events.jsonl is not JSON" in str(run.gaps[0])


def refused(folder, name: str, line: object) -> str:
    """What a reader says to a file whose second line is JSON, but no line of a run."""
    RunWriter(folder).close()
    good = {"schema": 1, "event": "step", "step": 1, "version": 1, "metrics": {}}
    lines = [good, line] if name == "events" else [line]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    with pytest.raises(RunDirectoryError) as caught:
        getattr(RunView(folder), name)
    assert f"line {len(lines)} of {folder / f'{name}.jsonl'}" in str(caught.value)
    return str(caught.value)


def test_a_newer_schema_is_refused_with_its_place(tmp_path):
    assert "has schema 2; this tether reads up to 1: upgrade" in refused(tmp_path, "events", {"schema": 2})


@pytest.mark.parametrize("line", [[], 1, "x", None, {"schema": 1}, {"schema": "1"}, {"event": "step"}])
def test_json_of_something_else_is_refused_with_its_place(tmp_path, line):
    assert "is not a line of a run" in refused(tmp_path, "events", line)


METRIC = {"value": 1.0, "merge": "mean", "count": 1.0}


@pytest.mark.parametrize(
    "changes",
    [
        *({"metrics": {"loss": value}} for value in ("abc", None, [1.0], 10**400, float("nan"), float("inf"))),
        *({"metrics": {"h": {**METRIC, "value": {"8": count}}}} for count in ("abc", None, [1.0], 10**400)),
        *({"metrics": {"m": {**METRIC, **one}}} for one in ({"merge": "median"}, {"merge": []}, {"count": "x"})),
        {"metrics": {"m": {"value": 1.0}}},
        {"metrics": []},
        {"step": "1"},
        {"step": 10**30},
        {"version": 0.5},
        {"event": 3},
        {"note": 3},
    ],
)
def test_an_event_that_could_not_be_drawn_is_refused_with_its_place(tmp_path, changes):
    line = {"schema": 1, "event": "step", "step": 2, "version": 2, "metrics": {}, **changes}
    assert "copy the run again" in refused(tmp_path, "events", line)


@pytest.mark.parametrize("fate", [None, 3, [], "lost", "filtered:"])
def test_a_fate_that_there_is_not_is_refused_with_its_place(tmp_path, fate):
    line = {"schema": 1, "id": "r0", "prompt_id": "p", "group": "g", "fate": fate}
    assert "copy the run again" in refused(tmp_path, "ledger", line)


@pytest.mark.parametrize(
    "changes",
    [
        *({"token_ids": ids} for ids in ([2**31], [10**30], ["a"], [[1]], [1, 2], 1, None)),
        *({"logp": logp} for logp in ([1e39], ["a"], [None], [float("nan")], [[0.0]])),
        *({name: value} for name in ("reward", "advantage") for value in ("abc", None, 10**400)),
        {"prompt": 3},
        {"token_texts": [3]},
        {"step": None},
    ],
)
def test_a_sample_that_could_not_be_shown_is_refused_with_its_place(tmp_path, changes):
    line = {
        "schema": 1, "id": "r0", "step": 1, "prompt": "1+1=", "completion": "2", "reward": 1.0, "advantage": 0.0,
        "token_texts": ["2"], "token_ids": [7], "logp_behavior": [-0.5], "logp": [-0.5], "version": [0],
        "staleness": [0], "trainable": [1],
    }  # fmt: skip
    assert "copy the run again" in refused(tmp_path, "rollouts", {**line, **changes})


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


@pytest.mark.parametrize(("note", "is_interrupted"), [("interrupted", True), ("loss is nan", False)])
def test_a_run_that_somebody_stopped_is_told_from_one_that_broke(tmp_path, note, is_interrupted):
    with RunWriter(tmp_path) as writer:
        writer.event(Event(event="fail", step=1, version=1, note=note))
    run = RunView(tmp_path)
    assert (run.status, run.is_interrupted) == ("failed", is_interrupted)


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
