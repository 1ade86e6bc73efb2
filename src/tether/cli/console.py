"""What a person sees while a run goes on: a live line on a terminal, plain lines when piped, a table at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from tether.cli.patience import Patience
from tether.journal.best import best_last_trailing
from tether.journal.overlap import overlap_of
from tether.journal.reader import RunView
from tether.journal.waits import TRAINER_WAITS, where_time_went
from tether.pipeline.checkpoint import Checkpoints
from tether.records import Event, Metrics

SHARES = (("gen", "generate"), ("train", "train"), ("pub", "publish"), ("eval", "eval"))
"""Kinds of work whose share of the time so far is shown."""
PIPED_WIDTH = 184
"""Columns when the output is piped."""
LINES = 40
"""About how many step lines a whole run prints."""
PATIENCE_S = 15.0
"""Between two signs of life of a run that starts."""
BESIDE_BAR = 58
"""Columns of what stands beside the bar of a terminal."""
RANKS = ("reward", "stale", "|d|", "cut", "size", "acc", "eta", "tok/s", "q", "radius", "work", "wait")
"""Parts of a step's line; on a narrow terminal the last of these go first. Its bar has acc and eta, too."""


def print_recipe(resolved: Mapping[str, Any]) -> None:
    """The resolved recipe as a TOML recipe that gives the same run, what is derived from it in comments."""
    click.echo(f"# {resolved['recipe']}, resolved")
    for table, values in resolved.items():
        if table in ("recipe", "derived"):
            continue
        click.echo(f"\n[{table}]")
        for key, value in values.items():
            if value is not None:
                click.echo(f"{key} = {toml_of(value)}")
    bound = resolved["derived"]["staleness_bound"]
    click.echo(f"\n# no token will be staler than {bound} optimizer updates when it is trained on")
    for doubt in resolved["derived"]["doubts"]:
        click.echo(f"# doubtful: {doubt}")


def plain_console() -> Console:
    """A console as wide as the terminal; wide enough for a step's line where there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=max(console.width, PIPED_WIDTH))


class TrainingConsole:
    """Follows the events of a run, on a console and by a clock of one's own if need be."""

    def __init__(
        self,
        resolved: Mapping[str, Any],
        folder: Path,
        *,
        first: int = 0,
        console: Console | None = None,
        now: Callable[[], float] = time.monotonic,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._resolved, self._folder, self._now = resolved, folder, now
        self._console = console or plain_console()
        self._total = int(resolved["run"]["steps"])
        self._first = first
        self._every = max(1, self._total // LINES)
        self._progress = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(bar_width=max(8, min(30, self._console.width - BESIDE_BAR))),
            TaskProgressColumn(),
            TextColumn("{task.fields[text]}"),
            console=self._console,
        )
        self._task = self._progress.add_task("train", total=self._total, text="")
        self._live = Live(self._progress, console=self._console, refresh_per_second=4, transient=True)
        self._is_live = self._console.is_terminal
        self._began = self._now()
        self._first_step = 0.0
        self._tokens = 0.0
        self._accuracy = ""
        self._seconds: dict[str, float] = {}
        self._waited_s = 0.0
        """The trainer, on the run's clock."""
        self._began_s = 0.0
        """The first step, on the run's clock."""
        self._is_real = resolved["placement"]["kind"] != "inline"
        """Whether that clock tells real time: what waits for nobody in one process is not told as waiting."""
        self._newly_cut_steps = 0
        self._steps = 0
        self._last: Event | None = None
        self._patience = Patience(self._still_starts, patience_s)

    def __enter__(self) -> TrainingConsole:
        self._header()
        if self._is_live:
            self._live.start()
        self._patience.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patience.end()
        if self._is_live:
            self._live.stop()

    def on_event(self, event: Event) -> None:
        """One event of the journal."""
        if event.event in ("eval", "step", "skip", "fail"):
            self._patience.end()
        if event.event == "eval":
            self._on_eval(event)
        elif event.event in ("step", "skip"):
            self._on_step(event)
        elif event.event == "fail":
            self._console.print(Text(f"stopped at step {event.step}: {event.note}", "bold red"), soft_wrap=True)
            saved = Checkpoints(self._folder).steps
            where = f"after step {saved[-1]}" if saved else "from the start, for it saved nothing yet"
            self._console.print(
                f"run directory {self._folder} is kept; to go on {where}: tether train --resume {self._folder}",
                soft_wrap=True,
            )
        elif event.event == "warn":
            self._say(Text(f"warning at step {event.step}: {event.note}", "yellow"))
        self._last = event

    def on_interrupt(self) -> None:
        """The run was stopped; one that was still starting has told of no end."""
        if self._last is None or self._last.event != "fail":
            there = (self._folder / "events.jsonl").exists()
            way = f"; to go on: tether train --resume {self._folder}" if there else ", and nothing was written"
            self._console.print(Text(f"stopped while it started{way}", "bold red"), soft_wrap=True)

    def print_summary(self) -> None:
        """The table at the end of a finished run."""
        if self._last is None or self._last.event != "finish":
            return
        metrics = self._last.metrics
        table = Table(box=None, show_header=False, pad_edge=True, padding=(0, 1))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        if "eval/accuracy_gain" in metrics:
            before, after = _number(metrics, "eval/accuracy_before"), _number(metrics, "eval/accuracy_after")
            gain = [_number(metrics, f"eval/accuracy_gain{end}") for end in ("", "_low", "_high")]
            n = int(metrics["eval/accuracy_gain"].count)
            table.add_row("held-out accuracy", f"{before:.3f} before, {after:.3f} after ({n} prompts)")
            table.add_row("gain", f"{gain[0]:+.3f}, paired 95 % interval {gain[1]:+.3f} to {gain[2]:+.3f}")
        if (told := best_last_trailing(metrics)) is not None:
            table.add_row("evaluations", told)
        if self._resolved["algorithm"]["rule"]["name"] == "sat":
            since = f" since step {self._first}" if self._first else ""
            table.add_row("newly cut by SAT", f"tokens in {self._newly_cut_steps} of {self._steps} steps{since}")
        balance = metrics["ledger/balance"].value if "ledger/balance" in metrics else {}
        assert isinstance(balance, Mapping)
        table.add_row("rollouts", ", ".join(f"{fate} {int(count)}" for fate, count in balance.items()))
        spent = sorted(self._seconds.items(), key=lambda item: -item[1])
        table.add_row("seconds", ", ".join(f"{what} {seconds:.1f}" for what, seconds in spent))
        table.add_row("wall time", f"{self._now() - self._began:.0f} s")
        if self._is_real:
            steps = RunView(self._folder).steps
            table.add_row("overlap", str(overlap_of(steps)))
            for one in where_time_went(steps):
                if waits := [f"{part} {one.share(part):.0%}" for part in list(one.parts)[1:] if one.parts[part] > 0]:
                    table.add_row(one.who, ", ".join(waits))
        table.add_row("run directory", str(self._folder))
        table.add_row("report", str(self._folder / "report.html"))
        self._console.print("result", style="bold")
        self._console.print(table)

    def _say(self, text: Text) -> None:
        """A message: wrapped between words on a terminal, one line where it is piped."""
        self._console.print(text, soft_wrap=not self._is_live)

    def _still_starts(self, seconds: float) -> None:
        who = self._resolved["engine"]["kind"]
        if self._is_live:
            self._progress.update(self._task, text=f"engine {who} starts, {seconds:.0f} s")
        else:
            self._say(Text(f"engine {who} starts, {seconds:.0f} s"))

    def _header(self) -> None:
        r = self._resolved
        pipeline, engine, algorithm = r["pipeline"], r["engine"], r["algorithm"]
        lines = [
            f"tether: recipe {r['recipe']}, model {r['model']['path']}, task {r['task']['name']}",
            f"algorithm {r['derived']['algorithm']} over the {algorithm['measure']}; "
            f"{_schedule(pipeline)}; {_engines(r)}engine {engine['kind']} {engine['dtype']}, "
            f"trainer {r['trainer']['dtype']}",
            _factors(algorithm),
            f"no token will be staler than {r['derived']['staleness_bound']} optimizer updates when it is trained on",
        ]
        for line in filter(None, lines):
            self._say(Text(line))

    def _on_eval(self, event: Event) -> None:
        value, low, high = (_number(event.metrics, f"eval/accuracy{end}") for end in ("", "_low", "_high"))
        self._accuracy = f"{value:.3f}"
        text = f"step {event.step:>5}  held-out accuracy {value:.3f} ({low:.3f} to {high:.3f}), version {event.version}"
        self._say(Text(text, "bold"))

    def _on_step(self, event: Event) -> None:
        metrics = event.metrics
        self._steps += 1
        self._newly_cut_steps += _number(metrics, "sat/newly_cut_fraction") > 0
        for name, metric in metrics.items():
            if name.startswith("time/") and name != "time/virtual_s" and not isinstance(metric.value, Mapping):
                what = name.removeprefix("time/").removesuffix("_s")
                self._seconds[what] = self._seconds.get(what, 0.0) + metric.value
        staleness = metrics.get("staleness/mean")
        self._tokens += staleness.count if staleness is not None else 0.0
        if not self._first_step:
            self._first_step = self._now()
        if self._steps == 1:
            self._began_s = _number(metrics, "time/virtual_s")
        else:
            self._waited_s += sum(_number(metrics, f"wait/{what}_s") for what in TRAINER_WAITS)
        eta = self._eta(event.step - self._first)
        if self._is_live:  # what fits into a narrow window; the printed lines have the rest
            short = f"{eta}  reward {_number(metrics, 'reward/mean'):.2f}  acc {self._accuracy or '-'}"
            self._progress.update(self._task, completed=event.step, text=short)
        if event.step == 1 or event.step % self._every == 0:
            self._console.print(self._line(event, eta), soft_wrap=True)

    def _eta(self, step: int) -> str:
        elapsed, done = self._now() - self._first_step, step - 1
        return f"eta {elapsed / done * (self._total - self._first - step):>4.0f} s" if done > 0 else "eta    ?"

    def _line(self, event: Event, eta: str) -> Text:
        """The parts of a step that fit beside each other, in columns; their names are dim."""
        if event.event == "skip":
            return Text(f"step {event.step:>5}  no trainable token: no update  {eta}")
        parts = self._parts(event.metrics) | {"eta": Text.assemble((eta[:3], "dim"), eta[3:])}
        line = Text(f"step {event.step:>5}")
        room = self._console.width - len(line)
        for name in sorted(parts, key=RANKS.index):
            room -= 2 + len(parts[name])
            if room < 0:
                parts = {kept: parts[kept] for kept in parts if RANKS.index(kept) < RANKS.index(name)}
                break
        for part in parts.values():
            line.append("  ").append_text(part)
        return line

    def _parts(self, m: Metrics) -> dict[str, Text]:
        """What a step's line may hold, in the order shown."""
        bound = float(self._resolved["derived"]["staleness_bound"])
        stale = f"{_number(m, 'staleness/mean'):.1f}/{_number(m, 'staleness/max'):.0f}"
        values = {
            "reward": f"{_number(m, 'reward/mean'):.2f}",
            "acc": self._accuracy or "-".ljust(5),
            "stale": stale.ljust(len(f"{bound:.1f}/{bound:.0f}")),
            "|d|": f"{_number(m, 'mismatch/abs_mean'):.4f}",
        }
        if "sat/q" in m:
            values["q"] = f"{_number(m, 'sat/q'):.4f}"
        if "sat/effective_radius_low" in m:
            low, high = (_number(m, f"sat/effective_radius_{side}") for side in ("low", "high"))
            values["radius"] = f"-{low:.3f}/+{high:.3f}"
        cuts = [name for name in ("sat/newly_cut_fraction", "clip/fraction") if name in m]
        if cuts:
            values["cut"] = f"{_number(m, cuts[0]):>5.1%}"
        if "policy/step_size" in m:
            values["size"] = f"{_number(m, 'policy/step_size'):.2f}"
        parts = {name: Text.assemble((f"{name} ", "dim"), value) for name, value in values.items()}
        total = sum(self._seconds.values()) or 1.0
        shares = [
            ((f"{what} ", "dim"), f"{self._seconds.get(name, 0.0) / total:.0%}".ljust(4)) for what, name in SHARES
        ]
        parts["tok/s"] = Text.assemble(f"{self._tokens / total:>5.0f}", (" tok/s", "dim"))
        parts["work"] = Text.assemble(*(piece for share in shares for piece in share))
        if self._is_real and "wait/data_s" in m and (passed_s := _number(m, "time/virtual_s") - self._began_s) > 0:
            parts["wait"] = Text.assemble(("wait ", "dim"), f"{self._waited_s / passed_s:.0%}".ljust(4))
        return parts


def _schedule(pipeline: Mapping[str, Any]) -> str:
    """The regime, its lag, and what else of it is not as usual."""
    words = [pipeline["regime"], f"lag {pipeline['lag']}"]
    if (updates := pipeline["updates_per_batch"]) > 1:
        words.append(f"{updates} updates a batch")
    if pipeline["regime"] == "fully-async":
        words.append(f"in flight: {pipeline['in_flight']}")
        if window := pipeline["window"]:
            words.append(f"window {window}")
    return ", ".join(words)


def _engines(resolved: Mapping[str, Any]) -> str:
    count = resolved["placement"]["engines"]
    return f"{count} engines, each " if count > 1 else ""


def _factors(algorithm: Mapping[str, Any]) -> str:
    """The parts that an algorithm has beside its rule.

    >>> _factors({"proximal": {"name": "ewma"}, "corrections": [{"name": "icepop"}], "step_size": None, "replay": []})
    'denominator ewma; corrections icepop'
    """
    words = {"proximal": "denominator", "corrections": "corrections", "replay": "replay", "step_size": "step size"}
    chosen = {key: algorithm.get(key) or () for key in words}
    parts = {key: part if isinstance(part, list) else [part] for key, part in chosen.items() if part}
    return "; ".join(f"{words[key]} {', '.join(part['name'] for part in listed)}" for key, listed in parts.items())


def _number(metrics: Metrics, name: str) -> float:
    metric = metrics.get(name)
    return float(metric.value) if metric is not None and not isinstance(metric.value, Mapping) else 0.0


def toml_of(value: Any) -> str:
    """A value as TOML, on one line; keys without a value are left out.

    >>> toml_of({"name": "sat", "dual_clip": None, "enabled": True})
    '{ name = "sat", enabled = true }'
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML allows no raw DEL
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {toml_of(v)}" for k, v in value.items() if v is not None) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_of(item) for item in value) + "]"
    return repr(value)
