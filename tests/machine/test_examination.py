import subprocess
import sys

import pytest

from tether.machine import disk, trial
from tether.machine.examination import QUESTIONS, examine
from tether.machine.finding import Finding

from .places import INSTALLED, loading, place


def test_without_torch_the_rest_is_answered_and_what_needs_it_is_not_looked_at(tmp_path):
    here = place(tmp_path, load=loading({}), version_of={**INSTALLED, "torch": None}.get)
    found = list(examine(here))
    skipped = [f.section for f in found if f.value == "not looked at"]
    assert skipped == ["engines", "placements", "models", "self-test"]
    assert [(f.section, f.name) for f in found if f.status == "fail"] == [("versions", "torch")]
    assert {"devices", "threads", "disk"} <= {f.section for f in found}


def test_a_question_that_raises_is_a_finding_and_the_others_are_answered(tmp_path, monkeypatch):
    def odd(here):
        raise ZeroDivisionError("no such machine")

    monkeypatch.setattr(disk, "look", odd)
    found = list(examine(place(tmp_path), self_test=False))
    (failed,) = (f for f in found if f.section == "disk")
    assert failed.value == "cannot be answered: ZeroDivisionError: no such machine"
    assert found[-1].section == "disk"


def test_the_self_test_can_be_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "look", lambda here: [done])
    done = Finding(section="self-test", name="training", status="ok", value="done")
    assert done in examine(place(tmp_path))
    assert done not in examine(place(tmp_path), self_test=False)


@pytest.mark.parametrize("module", [m for m in QUESTIONS.values() if m != "trial"])
def test_a_question_is_asked_without_importing_torch(module):
    code = f"import sys, tether.machine.examination, tether.machine.{module}; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
