"""``tether verify``: a line an answer, a message for every fault of the file, and what the modes disagree over."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.verifier.test_pool import ROOT, family, is_gone, running

from .calling import tether

PAIRS = [
    {"id": "a", "answer": r"So \boxed{\frac{1}{2}}.", "reference": "0.5"},
    {"id": 2, "answer": r"\boxed{2}", "reference": "200"},
    {"id": "surrogate \ud800", "answer": "I don't know \ud800", "reference": "6", "more": 1},
    {"id": "bomb", "answer": r"\boxed{10^{10^{10}}}", "reference": "1"},
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(json.dumps(pair) for pair in PAIRS) + "\n\n")
    return path


def test_there_is_one_line_an_answer_in_order(capsys, file, tmp_path):
    told = tether(capsys, "verify", file)
    assert told.code == 0
    lines = [json.loads(line) for line in told.out.splitlines()]
    assert [line["id"] for line in lines] == [pair["id"] for pair in PAIRS]
    assert [line["status"] for line in lines] == ["correct", "wrong", lines[2]["status"], "too_large"]
    assert lines[2]["status"] != "correct"
    assert list(lines[0]) == ["id", "status", "extracted", "stage", "policy"]
    assert lines[0]["extracted"] == r"\frac{1}{2}"
    out = tmp_path / "verdicts.jsonl"
    again = tether(capsys, "verify", file, "--out", out, "--no-compare")
    assert again.out == ""
    assert out.read_text() == told.out


def test_what_there_was_how_fast_and_what_modes_disagree_over_is_said_beside(capsys, file):
    told = tether(capsys, "verify", file, "--workers", "1")
    assert "robust: 2 wrong, 1 correct, 1 too_large\n" in told.err
    assert "4 pairs in " in told.err
    assert " pairs/s (1 worker)\n" in told.err
    assert "robust and upstream agree on 75.0% of 4 pairs" in told.err
    assert "  2, reference '200': robust wrong '2'" in told.err
    alone = tether(capsys, "verify", file, "--workers", "1", "--no-compare")
    assert "upstream" not in alone.err


def test_modes_and_policies_can_be_set(capsys, file):
    upstream = tether(capsys, "verify", file, "--mode", "upstream", "--no-compare")
    assert json.loads(upstream.out.splitlines()[1])["status"] == "correct"
    percent = {"id": 1, "answer": r"\boxed{50}", "reference": r"50\%"}
    file.write_text(json.dumps(percent))
    loose = tether(capsys, "verify", file, "--no-compare")
    strict = tether(capsys, "verify", file, "--no-compare", "--set", "policies.percent=value")
    assert [json.loads(told.out)["status"] for told in (loose, strict)] == ["correct", "wrong"]
    assert json.loads(loose.out)["policy"] == "percent"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "percent=value"], "--set of verify changes policies.KEY=VALUE"),
        (["--set", "policies.procent=value"], "unknown key policies.procent; [policies] has percent, "),
        (["--set", "policies.percent=maybe"], "policies.percent must be one of ['unit', 'value']; got 'maybe'"),
        (["--mode", "upstream", "--set", "policies.percent=value"], "policies belong to mode 'robust'"),
        (["--limit", "0"], "limit_s must be at least 0.01"),
        (["--out", "FILE"], "--out must not be the file that is read"),
        (["--out", "/"], "--out must be a file that can be written"),
        (["--out", "/dev/full"], "every verdict must be written, and /dev/full gave No space left on device"),
    ],
)
def test_what_cannot_be_asked_is_an_error(capsys, file, words, said):
    told = tether(capsys, "verify", file, *[file if word == "FILE" else word for word in words])
    assert told.code == 1
    assert said in told.err
    assert file.read_text().count("\n") == 5


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": 1,', "line 2: every line must be a JSON object; Expecting"),
        ("[1]", "line 2: every line must be a JSON object; got list b'[1]"),
        ('{"id": 1, "response": "3", "gold": "3"}',
         "line 2: 'answer' is missing; expected the keys id, answer, reference, found id, response, gold"),
        ('{"answer": "3", "reference": "3"}', "line 2: 'id' is missing"),
        ('{"id": 1, "answer": "3", "reference": 3}', "line 2: 'reference' must be text; got 3; put it in quotes"),
        ('{"id": 1, "answer": null, "reference": "3"}', "line 2: 'answer' must be text; got null"),
        ("\x80", "line 2: every line must be a JSON object"),
        ("[" * 100_000, "line 2: every line must be a JSON object"),
    ],
    ids=range(8),
)  # fmt: skip
def test_a_fault_of_the_file_is_told_with_its_line(capsys, file, line, said):
    file.write_bytes(file.read_bytes().split(b"\n")[0] + b"\n" + line.encode("latin-1") + b"\n")
    told = tether(capsys, "verify", file)
    assert told.code == 1
    assert told.out == ""
    assert said in told.err


def test_an_empty_file_and_none_are_errors(capsys, tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    assert "empty.jsonl is empty" in tether(capsys, "verify", tmp_path / "empty.jsonl").err
    missing = tether(capsys, "verify", tmp_path / "missing.jsonl")
    assert missing.code == 1
    assert "missing.jsonl gave No such file or directory" in missing.err


def test_a_full_disk_behind_standard_output_is_one_message(file):
    command = [sys.executable, "-m", "tether.cli.app", "verify", str(file), "--workers", "200"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: every verdict must be written, and standard output gave")
    assert "Traceback" not in done.stderr


def test_an_interrupt_keeps_what_was_graded_and_leaves_nobody_behind(tmp_path):
    file, out = tmp_path / "answers.jsonl", tmp_path / "out.jsonl"
    file.write_text(
        "".join(json.dumps({"id": n, "answer": r"\boxed{\sqrt{8}}", "reference": "3"}) + "\n" for n in range(100_000))
    )
    command = [sys.executable, "-m", "tether.cli.app", "verify", str(file), "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as asking:
        until = time.monotonic() + 60
        while not (out.exists() and out.stat().st_size > 10_000) and time.monotonic() < until:
            time.sleep(0.1)
        mine = family(asking.pid) & running()
        asking.send_signal(signal.SIGINT)
        errors = asking.communicate(timeout=20)[1]
    assert asking.returncode == 130
    assert "Traceback" not in errors
    assert len(mine) == 4
    assert is_gone(mine)
    lines = out.read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == list(range(len(lines)))
    assert 0 < len(lines) < 100_000
