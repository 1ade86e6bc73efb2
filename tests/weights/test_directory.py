"""Versions in a folder: whole or absent whoever dies when, found from elsewhere by their record."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tether.errors import ModelError
from tether.models.fingerprint import fingerprint
from tether.ports import Publication
from tether.weights import directory
from tether.weights.directory import MANIFEST_FILE, TENSORS_FILE, DirectoryStore
from tether.weights.memory import MemoryStore


def weights(value: float, size: int = 1000) -> dict[str, torch.Tensor]:
    return {f"w{i}": torch.full((size,), value) for i in range(4)}


def whole(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(".v"))


def test_another_store_finds_a_publication_by_its_record_alone(tmp_path):
    published = DirectoryStore(tmp_path / "here", "bfloat16").publish(8, weights(0.1))
    elsewhere = DirectoryStore(tmp_path / "other", "bfloat16")
    assert fingerprint(elsewhere.fetch(pickle.loads(pickle.dumps(published)))) == published.fingerprint


def test_a_store_that_travels_to_another_process_fetches_there(tmp_path):
    store = DirectoryStore(tmp_path, "float32", keep=1)
    published = store.publish(0, weights(2.0))
    copied = pickle.loads(pickle.dumps(store))
    assert copied.fetch(published)["w0"][0] == 2
    with pytest.raises(ModelError, match="in use by another"):
        copied.publish(8, weights(3.0))


def test_the_lock_of_a_publisher_that_is_gone_is_free(tmp_path):
    store = DirectoryStore(tmp_path, "float32")
    store.publish(8, weights(1.0))
    del store
    again = DirectoryStore(tmp_path, "float32")
    assert again.publish(8, weights(2.0)).number == 0
    assert whole(tmp_path) == ["v000000008"]


def test_the_manifest_says_what_the_record_says(tmp_path):
    store = DirectoryStore(tmp_path, "bfloat16")
    store.publish(0, weights(0.0))
    table = torch.ones(3)
    published = store.publish(8, {"a": table, "b": table, "c": torch.zeros(2)})
    manifest = json.loads((Path(published.where) / MANIFEST_FILE).read_text())
    assert {key: manifest[key] for key in ("version", "number", "fingerprint", "num_bytes", "dtype")} == {
        "version": 8,
        "number": 1,
        "fingerprint": published.fingerprint,
        "num_bytes": 10,
        "dtype": "bfloat16",
    }
    assert manifest["names"] == {"a": "a", "b": "a", "c": "c"}


@pytest.mark.parametrize("moment", ["save_file", "write_text", "flush", "rename"])
def test_a_publication_that_fails_at_any_moment_leaves_the_versions_before_and_nothing_else(
    tmp_path, monkeypatch, moment
):
    store = DirectoryStore(tmp_path, "float32")
    held = store.publish(0, weights(1.0))

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if moment == "save_file":
            patch.setattr("safetensors.torch.save_file", full)
        elif moment == "flush":
            patch.setattr(directory, "flush", full)
        else:
            patch.setattr(Path, moment, full)
        with pytest.raises(
            ModelError, match=r"did not take its 16000 bytes: .*No space left .* make room .* 3 versions"
        ):
            store.publish(8, weights(2.0))
    assert (whole(tmp_path), hidden(tmp_path)) == (["v000000000"], [])
    assert store.fetch(held)["w3"][0] == 1
    assert store.publish(8, weights(2.0)).number == 1


def test_a_file_that_does_not_fit_leaves_no_half_version(tmp_path):
    """A real write that the system cuts off in the middle."""
    script = f"""
import resource, signal, torch
from tether.errors import ModelError
from tether.weights.directory import DirectoryStore
store = DirectoryStore({str(tmp_path)!r}, "float32")
store.publish(0, {{"w": torch.ones(10)}})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, {resource.getrlimit(resource.RLIMIT_FSIZE)[1]}))
try:
    store.publish(8, {{"w": torch.ones(1_000_000)}})
except ModelError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert "did not take its 4000000 bytes" in done.stdout
    assert (whole(tmp_path), hidden(tmp_path)) == (["v000000000"], [])


def publish_until_killed(folder: Path, moment: int, ready) -> None:
    """Kill this process with SIGKILL at the n-th step of the second publication."""
    store = DirectoryStore(folder, "float32")
    ready.send(store.publish(0, weights(1.0)))
    reached = 0

    def step(name: str):
        real = getattr(os, name)

        def wrapped(*args, **kwargs):
            nonlocal reached
            if reached == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            reached += 1
            return real(*args, **kwargs)

        return wrapped

    for name in ("mkdir", "open", "fsync", "rename"):
        setattr(os, name, step(name))
    for version in range(8, 800, 8):
        store.publish(version, weights(float(version)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # the child touches nothing that a thread may hold
@pytest.mark.parametrize("moment", range(0, 24, 3))
def test_a_publisher_killed_at_any_moment_leaves_whole_versions_only(tmp_path, moment):
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=publish_until_killed, args=(tmp_path, moment, there))
    process.start()
    first = here.recv()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    names = whole(tmp_path)
    assert names
    for name in names:
        manifest = json.loads((tmp_path / name / MANIFEST_FILE).read_text())
        record = {key: manifest[key] for key in ("version", "number", "fingerprint", "num_bytes")}
        got = DirectoryStore(tmp_path, "float32").fetch(Publication(**record, where=str(tmp_path / name)))
        assert got["w3"].unique().tolist() == [max(1.0, float(manifest["version"]))]
    assert (first.where == str(tmp_path / names[0])) == ("v000000000" in names)
    next_ = DirectoryStore(tmp_path, "float32")
    next_.publish(8, weights(2.0))
    assert (whole(tmp_path), hidden(tmp_path)) == (["v000000008"], [])


def test_what_somebody_else_keeps_in_the_folder_stays(tmp_path):
    for name in ("notes.txt", "v1", ".v000000003.partial-of-mine", "v000000abc"):
        (tmp_path / name).mkdir()
    store = DirectoryStore(tmp_path, "float32", keep=1)
    for version in (0, 8):
        store.publish(version, weights(1.0))
    assert whole(tmp_path) == ["notes.txt", "v000000008", "v000000abc", "v1"]
    assert hidden(tmp_path) == [".v000000003.partial-of-mine"]


def test_a_version_that_goes_while_it_is_read_is_a_clear_error(tmp_path, monkeypatch):
    store = DirectoryStore(tmp_path, "float32", keep=1)
    published = store.publish(0, weights(1.0))
    read = Path.read_bytes

    def slow(path):
        content = read(path)
        if path.name == MANIFEST_FILE:
            store.publish(8, weights(2.0))  # the oldest goes between the manifest and the tensors
        return content

    monkeypatch.setattr(Path, "read_bytes", slow)
    with pytest.raises(ModelError, match=r"version 0 must still be in its folder .* holds 8 \(keep = 1\)"):
        DirectoryStore(tmp_path, "float32", keep=1).fetch(published)


def test_a_reader_beside_a_publisher_gets_a_whole_version_or_a_clear_error(tmp_path):
    store, published, done = DirectoryStore(tmp_path, "float32", keep=1), [], threading.Event()
    reader, got, lost = DirectoryStore(tmp_path, "float32", keep=1), 0, 0

    def publish() -> None:
        published.extend(store.publish(version, weights(float(version), size=5000)) for version in range(60))
        done.set()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        while not done.is_set():
            if not published:
                continue
            wanted = published[-1]
            try:
                assert reader.fetch(wanted)["w3"].unique().tolist() == [float(wanted.version)]
                got += 1
            except ModelError as error:
                assert "must still be in its folder" in str(error)  # noqa: PT017
                lost += 1
    finally:
        thread.join()
    assert got > 0


@pytest.mark.parametrize("damage", ["cut", "flip", "manifest"])
def test_a_damaged_version_is_refused(tmp_path, damage):
    store = DirectoryStore(tmp_path, "float32")
    published = store.publish(0, weights(1.0))
    path = Path(published.where) / (MANIFEST_FILE if damage == "manifest" else TENSORS_FILE)
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
    path.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    with pytest.raises(ModelError, match="must arrive as it was published" if damage == "flip" else "cannot be read"):
        store.fetch(published)


def test_a_record_of_another_number_or_store_is_refused(tmp_path):
    store = DirectoryStore(tmp_path, "float32")
    published = store.publish(0, weights(1.0))
    with pytest.raises(ModelError, match="has number 0, asked for was 3"):
        store.fetch(replace(published, number=3))
    with pytest.raises(ModelError, match="was not published through a folder"):
        store.fetch(MemoryStore("float32").publish(0, weights(1.0)))
