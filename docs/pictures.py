"""Pictures of a run for the README: ``python docs/pictures.py RUN`` writes report.png and console.svg into docs/img.

Both are made from the run directory alone. The console is fed the run's events again, by a clock that counts seconds of
work in the journal; the report is opened in a headless Chromium (``apt-get install chromium``).
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from tether.cli.console import TrainingConsole
from tether.journal import RunView
from tether.records import Event
from tether.report import write_report

IMAGES: Final = Path(__file__).parent / "img"
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
WINDOW: Final = (1280, 1175)
"""Pixels of the report that are shown: the outcome and the first two rows of curves."""
COLUMNS: Final = 120
HEAD, TAIL = 9, 14
"""Lines of the console that are shown, from the start and from the end."""


def main() -> None:
    """Make both pictures of the run that the command line names."""
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/pictures.py RUN")
    run = RunView(sys.argv[1])
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / "console.svg").write_text(console_svg(run), encoding="utf-8")
    report_png(run, IMAGES / "report.png")
    for picture in sorted(IMAGES.iterdir()):
        print(picture)


def console_svg(run: RunView) -> str:
    """What ``tether train`` printed, as a picture that loads nothing."""
    lines = [line for line in console_lines(run) if "wall time" not in line.plain]  # the journal has no wall clock
    shown = lines if len(lines) <= HEAD + TAIL else [*lines[:HEAD], Text("  ..."), *lines[-TAIL:]]
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in shown:
        console.print(line, soft_wrap=True)
    svg = console.export_svg(title="tether train", unique_id="tether")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def console_lines(run: RunView) -> list[Text]:
    """The lines of the console, with their styles."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor", highlight=False)
    seconds = 0.0
    training = TrainingConsole(run.config, Path("runs") / run.folder.name, console=console, now=lambda: seconds)
    with training:
        for event in run.events:
            seconds += seconds_of(event)
            training.on_event(event)
    training.print_summary()
    return Text.from_ansi(console.export_text(styles=True)).split()


def seconds_of(event: Event) -> float:
    """Seconds of work that an event tells of; the clock of virtual time is none of them."""
    metrics = event.metrics.items()
    return sum(
        metric.value
        for name, metric in metrics
        if name.startswith("time/") and name != "time/virtual_s" and not isinstance(metric.value, Mapping)
    )


def report_png(run: RunView, picture: Path) -> None:
    """The top of the report, as a browser shows it."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        sys.exit(f"no browser: one of {', '.join(BROWSERS)} is needed; on Debian: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        report = write_report(run.folder, Path(folder) / "report.html")
        command = [browser, "--headless", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1"]
        command += ["--no-sandbox"] if os.geteuid() == 0 else []
        size = ",".join(map(str, WINDOW))
        command += [f"--window-size={size}", "--virtual-time-budget=5000", f"--screenshot={picture}"]
        subprocess.run([*command, report.as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    main()
