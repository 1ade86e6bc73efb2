"""The command ``tether``: finds its subcommands by file and imports one only when it is asked for."""

from __future__ import annotations

import importlib
import os
import sys

import click

from tether.errors import TetherError

# before anything imports torch: OpenMP threads that wait must sleep, or they take the cores from whatever else runs
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

COMMANDS = {
    "train": "Train a model by a recipe.",
    "eval": "Measure the accuracy of a run or a model.",
    "verify": "Grade answers to mathematics against their references.",
    "probe": "Measure how far a model's engine is from its trainer.",
    "show": "Show stored samples of a run.",
    "ledger": "Print what became of every rollout of a run.",
    "trace": "Write a run's time line for Perfetto or chrome://tracing.",
    "report": "Write a run's report as one HTML file.",
    "export": "Export a run's model as a Hugging Face folder.",
    "rules": "List rules, presets and other choices of an algorithm.",
    "doctor": "Check whether this machine can run tether.",
    "model": "Write a real pre-trained model as a Hugging Face folder.",
    "warmup": "Make the embedded model again by supervised pre-training.",
}
"""Name and summary of each; the code lies in ``tether.cli.NAME``."""


class _Lazy(click.Group):
    """Knows its commands by name; imports ``tether.cli.NAME`` when one is run or asked for help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"tether.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tether-rl", prog_name="tether")
def cli() -> None:
    """Asynchronous RL of language models that stays stable when the data are stale.

    Start with: tether train
    """


def main() -> None:
    """Run the command line; an error of tether's own is one message and exit code 1.

    The current folder is importable, as with ``python -m``, so that a recipe can name a reward that lies there.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        cli.main(prog_name="tether", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except KeyboardInterrupt:
        click.echo("stopped", err=True)
        sys.exit(130)
    except TetherError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
