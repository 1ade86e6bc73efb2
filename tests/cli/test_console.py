"""What a person sees of a run, on terminals of several widths."""

import importlib.util
import io
import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.architecture.tree import ROOT
from tests.report.conftest import make_run
from tether.cli.console import PIPED_WIDTH, RANKS, TrainingConsole
from tether.journal import RunView
from tether.records import Event, Metric


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return RunView(make_run(tmp_path_factory.mktemp("runs") / "run", 60))


def resolved(run: RunView) -> dict[str, Any]:
    """The run's recipe with what the console asks of it."""
    return {
        **run.config,
        "derived": {"algorithm": "sat-gspo", "staleness_bound": 15},
        "run": {"steps": 60},
        "trainer": {"dtype": "float32"},
        "placement": {"kind": "inline", "engines": 1},
    }


def lines_of(run: RunView, width: int, *, is_live: bool = False) -> list[str]:
    """What was printed about a run."""
    file = io.StringIO()
    console = Console(width=width, file=file, highlight=False, force_terminal=is_live, color_system=None)
    with TrainingConsole(resolved(run), Path("runs/quickstart"), console=console, now=lambda: 0.0) as shown:
        for event in run.events:
            shown.on_event(event)
    shown.print_summary()
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_no_line_is_wider_than_the_terminal(run, width):
    lines = lines_of(run, width)[4:]  # after the header, which a terminal wraps between words
    assert max(map(len, lines)) <= width
    assert len([line for line in lines if line.startswith("step") and "reward" in line]) == 60
    wrapped = [line.strip("\x1b[?25l") for line in lines_of(run, width, is_live=True)[:4]]
    assert max(map(len, wrapped)) <= width


def test_the_summary_tells_the_best_evaluation_with_what_came_after_it(run):
    text = " ".join(" ".join(lines_of(run, 160)).split())
    assert "evaluations best 0.700 at step 96, last 0.628, last quarter 0.610 (the best of 6" in text


def test_a_run_that_starts_slowly_gives_signs_of_life_until_something_happens(run):
    file = io.StringIO()
    console = Console(width=100, file=file, highlight=False)
    with TrainingConsole(resolved(run), Path("run"), console=console, patience_s=0.01) as shown:
        until = time.monotonic() + 10
        while "engine torch starts, 0 s" not in file.getvalue():
            assert time.monotonic() < until
            time.sleep(0.01)
        shown.on_event(next(event for event in run.events if event.event == "eval"))
        time.sleep(0.05)
        told = file.getvalue()
        time.sleep(0.1)
        assert file.getvalue() == told


@pytest.mark.parametrize("is_there", [True, False])
def test_a_run_that_is_stopped_while_it_starts_says_how_to_go_on(run, tmp_path, is_there):
    file = io.StringIO()
    folder = run.folder if is_there else tmp_path / "none"
    with TrainingConsole(resolved(run), folder, console=Console(width=100, file=file, highlight=False)) as shown:
        shown.on_interrupt()
        failed = Event(event="fail", step=1, version=0, metrics={}, note="interrupted")
        shown.on_event(failed)
        told = file.getvalue()
        shown.on_interrupt()
    assert (f"tether train --resume {folder}\n" in told.partition("stopped at step")[0]) == is_there
    assert "stopped while it started" in told
    assert file.getvalue() == told


@pytest.mark.parametrize("width", [20, 60, 80, 100, 120, 140, 160])
def test_a_narrow_terminal_leaves_out_the_parts_of_least_rank(run, width):
    marks = {"reward": "reward", "acc": "acc", "stale": "stale", "|d|": "|d|", "eta": "eta", "tok/s": "tok/s"}
    marks |= {"q": " q ", "cut": "cut", "size": "size", "radius": "radius", "work": "gen", "wait": "wait"}
    for line in lines_of(run, width):
        if line.startswith("step") and "held-out" not in line:
            is_shown = [marks[name] in line for name in RANKS]
            assert is_shown == sorted(is_shown, reverse=True)


def test_a_piped_line_holds_every_part(run):
    (line,) = (line for line in lines_of(run, PIPED_WIDTH) if line.startswith("step    20  reward"))
    for part in (
        "acc 0.",
        "stale 12.0/12",
        "|d| 0.",
        "q 0.",
        "radius -0.",
        "cut ",
        "size 0.8",
        " tok/s",
        "gen ",
        "train ",
        "pub ",
        "eval ",
    ):
        assert part in line


def step_line(run: RunView, numbers: dict[str, float], width: int) -> str:
    """The line of a step with these numbers."""
    file = io.StringIO()
    console = Console(width=width, file=file, highlight=False, color_system=None)
    metrics = {name: Metric(value) for name, value in numbers.items()}
    TrainingConsole(resolved(run), Path("run"), console=console, now=lambda: 0.0).on_event(
        Event(event="step", step=1, version=1, metrics=metrics)
    )
    return file.getvalue()


@pytest.mark.parametrize("width", [80, PIPED_WIDTH])
def test_every_rule_shows_the_share_without_a_gradient_and_its_step_size(run, width):
    line = step_line(run, {"clip/fraction": 0.123, "policy/step_size": 0.85}, width)
    assert "cut 12.3%  size 0.85" in line
    assert " q " not in line
    assert "radius" not in line


def test_on_real_processes_a_line_has_the_share_that_the_trainer_waited(run):
    file = io.StringIO()
    console = Console(width=PIPED_WIDTH, file=file, highlight=False, color_system=None)
    real = resolved(run) | {"placement": {"kind": "ray", "engines": 1}}
    shown = TrainingConsole(real, Path("run"), console=console, now=lambda: 0.0)
    for step, (waited_s, now_s) in enumerate([(9.0, 10.0), (1.0, 14.0), (2.0, 18.0)], start=1):
        waits = {"wait/data_s": Metric(waited_s, "sum"), "wait/settle_s": Metric(0.5, "sum")}
        metrics = {**waits, "time/virtual_s": Metric(now_s, "last")}
        shown.on_event(Event(event="step", step=step, version=step, metrics=metrics))
    lines = file.getvalue().splitlines()
    assert "wait" not in lines[0]
    assert "eval 0%    wait 50%" in lines[-1]  # 4 of 8 seconds since the first step
    assert len(lines) == 3


def test_with_sat_the_cut_is_what_only_sat_cuts(run):
    assert "cut  4.5%" in step_line(run, {"clip/fraction": 0.123, "sat/newly_cut_fraction": 0.045}, 80)
    assert "size" not in step_line(run, {"sat/newly_cut_fraction": 0.045}, PIPED_WIDTH)


def test_the_head_names_the_parts_beside_the_rule(run):
    assert lines_of(run, 120)[2] == "denominator rollout; corrections tis; step size vcpo"


def test_columns_stand_below_each_other(run):
    lines = [line for line in lines_of(run, 120) if line.startswith("step") and "reward" in line]
    for mark in ("acc", "|d|", "eta"):
        assert len({line.index(mark) for line in lines}) == 1


def test_the_bar_of_a_terminal_fits_into_80_columns(run):
    bars = [line for line in "\n".join(lines_of(run, 80, is_live=True)).split("\r") if "/60" in line]
    assert bars
    assert max(len(line.split("\n")[0]) for line in bars) < 100  # with the codes that move the cursor


def test_the_picture_of_the_console_loads_nothing_and_holds_what_was_printed(run, tmp_path):
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    shutil.copytree(run.folder, tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text(json.dumps(resolved(run)))
    svg = pictures.console_svg(RunView(tmp_path / "run"))
    assert "font-face" not in svg
    assert "url(http" not in svg
    text = re.sub(r"<[^>]*>|&#160;", " ", svg)
    assert re.search(r"no\s+token\s+will\s+be\s+staler\s+than\s+15", text)
    assert "wall" not in text
    assert "runs/run/report.html" in text
