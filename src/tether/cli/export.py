"""``tether export``: the trained model as a plain Hugging Face folder, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

import click

from tether.errors import RunDirectoryError
from tether.journal import RunView
from tether.journal.schema import ADAPTER_FOLDER, MODEL_FOLDER

NEEDED: Final = ("config.json", "tokenizer.json")
"""Files without which no library loads the folder; weights are needed as well."""
NEEDED_OF_ADAPTER: Final = ("adapter_config.json",)
"""The same of an adapter alone."""


@click.command("export")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder to make; new or empty.")
@click.option("--adapter", is_flag=True, help="Of a run with model.lora_rank: the adapter alone, as peft reads it.")
def command(run: Path, out: Path, adapter: bool) -> None:
    """Copy the trained model of RUN into a plain Hugging Face folder, an adapter merged into it."""
    export(run, out, adapter=adapter)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    click.echo(f"{out} ({size / 1e6:.1f} MB)")


def export(run_folder: Path, out: Path, *, adapter: bool = False) -> None:
    """Copy ``RUN/model``, or the adapter in it, beside the goal, check it, then give it its name."""
    run = RunView(run_folder)
    model = run.model
    if model is None:
        raise RunDirectoryError(
            f"{run.folder} has no {MODEL_FOLDER}/ to export: the run is {run.status}, and the model is written when "
            "a run finishes; let it finish, or train again"
        )
    needed: tuple[str, ...] = NEEDED
    if adapter:
        model, needed = model / ADAPTER_FOLDER, NEEDED_OF_ADAPTER
        if not model.is_dir():
            raise RunDirectoryError(
                f"{run.folder} trained all weights and has no adapter: export the model without --adapter, or train "
                "with model.lora_rank"
            )
    check_model(model, needed)
    if out.resolve().is_relative_to(model.resolve()):
        raise RunDirectoryError(f"cannot export {model} into itself; choose an --out beside the run")
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise RunDirectoryError(f"an export needs a new or empty folder; {out} is in use: choose another --out")
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.partial-") as beside:
            copy = Path(beside) / "model"
            shutil.copytree(model, copy)
            check_model(copy, needed)
            os.replace(copy, out)  # takes the place of an empty folder as well
    except RunDirectoryError:
        raise
    except OSError as error:  # shutil.Error is one too
        raise RunDirectoryError(f"cannot export to {out}: {error}; nothing was written there") from error


def check_model(folder: Path, needed: tuple[str, ...] = NEEDED) -> None:
    """Refuse a folder that lacks a file, or whose weights were cut off."""
    missing = [name for name in needed if not (folder / name).is_file()]
    weights = sorted(folder.glob("*.safetensors"))
    missing += sorted(_named_in_index(folder) - {path.name for path in weights})
    if missing or not weights:
        lacks = ", ".join(missing or ["*.safetensors"])
        raise RunDirectoryError(f"{folder} is not a whole model: it lacks {lacks}; let the run finish, or train again")
    for path in weights:
        if not _is_whole(path):
            raise RunDirectoryError(f"{path} was cut off: it is shorter than its header says; train again")


def _named_in_index(folder: Path) -> set[str]:
    """The weight files that an index, if there is one, counts on."""
    index = folder / "model.safetensors.index.json"
    try:
        return set(json.loads(index.read_bytes())["weight_map"].values()) if index.is_file() else set()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunDirectoryError(f"{index} is no index of weights ({error}); train again") from error


def _is_whole(path: Path) -> bool:
    """Whether a safetensors file is as long as its header says: length of the header, header, data."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if length <= path.stat().st_size else b""
    try:
        header = json.loads(text)
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except (ValueError, LookupError, TypeError, AttributeError):
        return False
    return path.stat().st_size == 8 + length + max(ends, default=0)
