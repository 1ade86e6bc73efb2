import json
import os
import subprocess
import sys

import pytest

from tether.cli import doctor
from tether.machine import examination
from tether.machine.finding import Finding

from .calling import tether

FINE = Finding(section="disk", name="runs", status="ok", value="75 GiB free")
SO_SO = Finding(section="disk", name="temporary", status="warn", value="1 GiB free", way_out="make room")
BROKEN = Finding(section="versions", name="torch", status="fail", value="not installed", way_out="pip install 'torch'")


@pytest.fixture
def found(monkeypatch):
    """What the examination finds."""
    findings = [FINE]
    monkeypatch.setattr(examination, "examine", lambda here, *, self_test: iter(findings))
    return findings


@pytest.mark.parametrize(
    ("findings", "code", "verdict"),
    [
        ([FINE], 0, "this machine can run tether: 1 ok, 0 to look at, 0 failed"),
        ([FINE, SO_SO], 0, "this machine can run tether: 1 ok, 1 to look at, 0 failed"),
        ([BROKEN, FINE], 1, "this machine cannot run tether yet: 1 ok, 0 to look at, 1 failed"),
    ],
)
def test_the_exit_code_is_1_if_something_fails_and_0_otherwise(capsys, found, findings, code, verdict):
    found[:] = findings
    told = tether(capsys, "doctor")
    assert (told.code, told.out.splitlines()[-1]) == (code, verdict)
    assert tether(capsys, "doctor", "--json").code == code


def test_a_section_is_named_once_and_a_way_out_stands_below(capsys, found):
    found[:] = [BROKEN, FINE, SO_SO]
    assert tether(capsys, "doctor").out.splitlines()[:-1] == [
        "versions    fail  torch          not installed",
        "                                 -> pip install 'torch'",
        "disk        ok    runs           75 GiB free",
        "            warn  temporary      1 GiB free",
        "                                 -> make room",
    ]


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_what_is_long_stays_in_its_column(capsys, found, monkeypatch, columns):
    monkeypatch.setattr("tether.cli.console.PIPED_WIDTH", columns)
    monkeypatch.setenv("COLUMNS", str(columns))
    found[:] = [Finding(section="disk", name="runs", status="warn", value="free " * 40, way_out="make room " * 20)]
    lines = tether(capsys, "doctor").out.splitlines()[:-1]
    assert len(lines) > 3
    assert {line[: doctor.INDENT].strip() for line in lines[1:]} == {""}
    assert max(map(len, lines)) <= max(columns, doctor.INDENT + doctor.LEAST_ROOM)


def test_json_is_all_that_stands_in_the_output(capsys, monkeypatch):
    def noisy(here, *, self_test):
        print("a library says hello")
        yield BROKEN

    monkeypatch.setattr(examination, "examine", noisy)
    told = tether(capsys, "doctor", "--json")
    assert json.loads(told.out) == {
        "schema": 1,
        "ok": False,
        "findings": [
            {
                "section": "versions",
                "name": "torch",
                "status": "fail",
                "value": "not installed",
                "way_out": "pip install 'torch'",
            }
        ],
    }
    assert "hello" in told.err


def test_the_real_machine_is_examined_in_every_section(capsys):
    told = tether(capsys, "doctor", "--json", "--no-self-test")
    answer = json.loads(told.out)
    assert told.code == int(not answer["ok"])
    sections = {finding["section"] for finding in answer["findings"]}
    assert sections >= {"versions", "devices", "threads", "engines", "placements", "models", "disk"}
    assert "self-test" not in sections


def test_a_broken_torch_is_a_finding_and_not_a_traceback(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libtorch_cpu.so: cannot open shared object file')")
    code = "import sys; from tether.cli.app import main; sys.argv = ['tether', 'doctor', '--json']; main()"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    env = os.environ | {"PYTHONPATH": path}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert (run.returncode, "Traceback" in run.stderr) == (1, False)
    failed = [finding for finding in json.loads(run.stdout)["findings"] if finding["status"] == "fail"]
    assert [finding["name"] for finding in failed] == ["torch"]
    assert "cannot be imported: OSError: libtorch_cpu.so" in failed[0]["value"]
