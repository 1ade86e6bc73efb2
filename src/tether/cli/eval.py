"""``tether eval``: accuracy of a run's model, a folder, an embedded name or a hub name, with its interval."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click


@click.command("eval")
@click.argument("source", metavar="RUN|MODEL")
@click.option("--task", "task_name", help="Task to ask; default: the run's own, or arithmetic.")
@click.option("--n", "count", default=1024, show_default=True, type=click.IntRange(min=1), help="Held-out prompts.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of prompts and samples.")
@click.option("--temperature", default=1.0, show_default=True, type=click.FloatRange(min=0), help="0 is greedy.")
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(["float32", "bfloat16"]))
@click.option("--max-tokens", type=click.IntRange(min=1), help="Default: the run's, or 32.")
@click.option("--set", "options", multiple=True, metavar="task.KEY=VALUE", help="Change an option of the task.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(source: str, count: int, seed: int, temperature: float, as_json: bool, **others: Any) -> None:
    """Measure held-out accuracy of a RUN directory's final model, or of a MODEL."""
    from tether.config.evaluate import EvaluationSettings, evaluate

    settings = EvaluationSettings(source=source, count=count, seed=seed, temperature=temperature, **others)
    result = evaluate(settings)
    if as_json:
        click.echo(json.dumps(result))
        return
    low, high = result["accuracy_low"], result["accuracy_high"]
    click.echo(f"accuracy {result['accuracy']:.4f}  95 % interval {low:.4f} to {high:.4f}  ({count} prompts)")
    click.echo(
        f"task {result['task']}, temperature {temperature:g}, seed {seed}, dtype {result['dtype']}, "
        f"mean length {result['length_mean']:.1f} tokens, truncated {result['truncated_fraction']:.1%}, "
        f"of {Path(source).name}"
    )
