"""``tether eval``: avg@k, pass@k and maj@k of a run's model, a checkpoint, a folder or a name, with their intervals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from tether.errors import ConfigError, RunDirectoryError

if TYPE_CHECKING:
    from tether.config.evaluate import Told
    from tether.evals.evaluation import Evaluation


@click.command("eval")
@click.argument("source", metavar="RUN|RUN@STEP|MODEL")
@click.option("--recipe", help="Ask as its [eval] table says, such as aime24; default: as the run's own says.")
@click.option("--task", "task_name", help="Task to ask; default: the recipe's or the run's own, or arithmetic.")
@click.option(
    "--n", "count", type=click.IntRange(min=1), help="Held-out prompts; default: 1024, or all that there are."
)
@click.option("--k", "samples", type=click.IntRange(min=1), help="Answers to each prompt; default: 1.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of prompts and samples.")
@click.option("--temperature", type=click.FloatRange(min=0), help="0 is greedy; default: 1.")
@click.option(
    "--dtype",
    default="float32",
    show_default=True,
    type=click.Choice(["float32", "bfloat16"]),
    help="Of the engine that is asked, whatever that of the run was.",
)
@click.option("--max-tokens", type=click.IntRange(min=1), help="Default: the recipe's or the run's, or 32.")
@click.option(
    "--set", "options", multiple=True, metavar="task.KEY=VALUE", help="Change an option of the task, or reward.KEY."
)
@click.option("--against", metavar="OTHER", help="Ask another run or model the same, and test the difference.")
@click.option("--out", type=click.Path(path_type=Path), help="New file for a line a problem, as in evals.jsonl.")
@click.option("--table", "has_table", is_flag=True, help="Print what was answered to each problem.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(source: str, out: Path | None, has_table: bool, as_json: bool, **others: Any) -> None:
    """Measure a RUN directory's final model, a checkpoint of it, or a MODEL, on held-out problems.

    avg@k is the mean over problems of the share of right answers among k; pass@k the chance that one of k is right;
    maj@k the share of problems whose most frequent answer is right. Everything is as the recipe or the run has it
    where no option says otherwise.
    """
    from tether.config.evaluate import EvaluationSettings, evaluate

    settings = EvaluationSettings(source=source, **others)
    with _told(out) as told:
        result = evaluate(settings, told)
    numbers = result.numbers()
    if as_json:
        click.echo(json.dumps(numbers, allow_nan=False))
        return
    for line in _lines(numbers):
        click.echo(line)
    if has_table:
        from tether.cli.eval_table import print_table

        print_table(result.evaluation)
    if out is not None:
        click.echo(f"a line a problem in {out}")


@contextmanager
def _told(out: Path | None) -> Iterator[Told]:
    """Shows how far it is, and writes down what there is: a stop loses nothing that was written."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from tether.journal.evaluated import evaluated_to_json
    from tether.journal.schema import to_line

    console = Console(stderr=True)
    columns = (TextColumn("problems"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    file, written = _opened(out), 0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        shown = bar.add_task("", total=None)

        def told(piece: Evaluation, step: int, done: int, total: int) -> None:
            nonlocal written
            bar.update(shown, completed=done, total=total)
            if file is not None:
                try:
                    file.writelines(to_line(evaluated_to_json(line)) for line in piece.lines(step))
                    file.flush()
                except OSError as error:
                    raise RunDirectoryError(
                        f"every problem must be written, and {out} gave {error.strerror}; {written} problems are "
                        "in it: make room, or give another --out"
                    ) from error
                written = done

        try:
            yield told
        except KeyboardInterrupt:
            if written:
                click.echo(f"{written} problems are in {out}", err=True)
            raise
        finally:
            if file is not None:
                with suppress(OSError):  # what a full disk did not take was told
                    file.close()
                if out is not None and out.is_file() and not out.stat().st_size:
                    out.unlink()  # else the next try, with the fault mended, finds a file there already


def _opened(out: Path | None) -> BinaryIO | None:
    if out is None:
        return None
    try:
        return out.open("xb")
    except OSError as error:
        reason = "it is there already" if isinstance(error, FileExistsError) else (error.strerror or str(error)).lower()
        raise ConfigError(f"--out needs the path of a new file; {out} cannot be made: {reason}") from error


def _lines(numbers: Mapping[str, Any]) -> Iterator[str]:
    k, n = numbers["k"], numbers["n"]
    asked = f"{n} prompts" if k == 1 else f"{n} problems, {k} samples each"
    yield f"accuracy {_interval(numbers, 'accuracy')}  ({asked})"
    names = [f"avg@{k}", *(f"pass@{j}" for j in range(2, k + 1)), f"maj@{k}"] if k > 1 else []
    for name in names:
        if name in numbers:
            yield f"{name:8} {_interval(numbers, name)}"
    yield (
        f"task {numbers['task']}, temperature {numbers['temperature']:g}, seed {numbers['seed']}, "
        f"dtype {numbers['dtype']}, mean length {numbers['length_mean']:.1f} tokens "
        f"(median {numbers['length_median']:.0f}, 95 % up to {numbers['length_p95']:.0f}), "
        f"truncated {numbers['truncated_fraction']:.1%}, of {Path(numbers['model']).name}"
    )
    if numbers["failed"]:
        yield f"{numbers['failed']} samples could not be judged and count nowhere"
    if "against" in numbers:
        other = numbers["against"]
        yield f"accuracy {_interval(other, 'accuracy')}  of {Path(other['model']).name}, asked the same"
        low, high, p = (numbers[f"difference_{name}"] for name in ("low", "high", "p"))
        yield (
            f"difference {numbers['difference']:+.4f}  paired 95 % interval {low:+.4f} to {high:+.4f}, p = {p:.3g} "
            f"({numbers['difference_n']} problems)"
        )


def _interval(numbers: Mapping[str, Any], name: str) -> str:
    return f"{numbers[name]:.4f}  95 % interval {numbers[f'{name}_low']:.4f} to {numbers[f'{name}_high']:.4f}"
