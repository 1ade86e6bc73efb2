"""A disk that is full at any write stops the run with one message, and the run goes on once there is room."""

import errno
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tether.config.build import go_on, train
from tether.config.recipe import load
from tether.config.resume import plan
from tether.errors import ResumeError, RunDirectoryError
from tether.journal import RunView

from .quick import journal
from .test_kill import BASE, STREAMING

SETTINGS = (*BASE, *STREAMING, "run.steps=6", "checkpoint.every=2", "run.samples=1")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return train(load(settings=SETTINGS), tmp_path_factory.mktemp("whole") / "run")


def assert_goes_on(out: Path, whole: Path, step: int) -> None:
    assert not list((out / "checkpoints").glob(".*")), "what was half written is taken away"
    planned = plan(out, None, (), told=pytest.fail)
    assert planned.checkpoint.step == step
    go_on(planned)
    assert journal(out) == journal(whole)
    assert (out / "spans.jsonl").read_bytes() == (whole / "spans.jsonl").read_bytes()
    assert (out / "model/model.safetensors").read_bytes() == (whole / "model/model.safetensors").read_bytes()


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("num_bytes", [1_000_000, 3_000_000], ids=["the model does not fit", "the state does not fit"])
def test_a_checkpoint_that_does_not_fit_stops_the_run_later_and_the_earlier_one_is_whole(tmp_path, whole, num_bytes):
    out, limits = tmp_path / "run", []

    def observe(event) -> None:
        if event.event == "step" and event.step == 4:
            until = time.monotonic() + 60
            while not (out / "checkpoints/step-000002").exists() and time.monotonic() < until:
                time.sleep(0.01)
            limits.append(largest_file(num_bytes))
            limits[-1].__enter__()

    try:
        with pytest.raises(ResumeError, match=r"cannot write the checkpoint of step 4 .* the earlier ones are whole"):
            train(load(settings=SETTINGS), out, (observe,))
    finally:
        limits[-1].__exit__(None, None, None)
    run = RunView(out)
    assert "cannot write the checkpoint of step 4" in run.last("fail").note
    assert run.last("fail").metrics["ledger/balance"].value == run.balance()
    assert_goes_on(out, whole, 2)


def full(monkeypatch, name: str, after: int) -> None:
    """Let a file of the journal take no more than some lines."""
    write, count = os.write, 0

    def writes(fd: int, content: bytes) -> int:
        nonlocal count
        if os.readlink(f"/proc/self/fd/{fd}").endswith(f"/{name}"):
            count += 1
            if count > after:
                raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, content)

    monkeypatch.setattr(os, "write", writes)


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("spans.jsonl", 0.7),
        pytest.param("events.jsonl", 0.7, marks=pytest.mark.long),
        pytest.param("ledger.jsonl", 0.7, marks=pytest.mark.long),
        pytest.param("rollouts.jsonl", 0.7, marks=pytest.mark.long),
    ],
)
def test_a_journal_that_does_not_fit_stops_the_run_and_it_goes_on_once_there_is_room(
    tmp_path, whole, monkeypatch, name, after
):
    out = tmp_path / "run"
    num_lines = len((whole / name).read_bytes().splitlines())
    with monkeypatch.context() as patch:
        full(patch, name, int(after * num_lines))
        with pytest.raises(RunDirectoryError, match=rf"cannot write to .*{name}: no space left on device"):
            train(load(settings=SETTINGS), out)
    assert RunView(out).status != "finished"
    checkpoint = plan(out, None, (), told=pytest.fail).checkpoint
    assert checkpoint is not None
    assert_goes_on(out, whole, checkpoint.step)


def test_a_journal_that_cannot_be_brought_to_the_disk_makes_no_checkpoint(tmp_path, monkeypatch):
    out, fsync = tmp_path / "run", os.fsync

    def fails(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("/ledger.jsonl"):
            raise OSError(errno.EIO, "Input/output error")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(RunDirectoryError, match=r"cannot bring .*ledger\.jsonl to the disk: input/output error"):
        train(load(settings=(*SETTINGS, "run.steps=3")), out)
    assert not list((out / "checkpoints").glob("step-*"))
