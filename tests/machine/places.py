"""Machines that are not there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tether.machine.finding import Finding
from tether.machine.surroundings import Surroundings

GIB = 2**30
ASKED = (
    "python>=3.11",
    "torch>=2.9",
    "transformers<5.20,>=5.19",
    "tokenizers",
    "numpy>=2.0",
    "rich>=14",
    "ruff>=0.11; extra == 'dev'",
    "ray>=2.50; extra == 'ray'",
)
INSTALLED = {
    "tether-rl": "0.1.0",
    "torch": "2.13.0+cpu",
    "transformers": "5.19.0",
    "tokenizers": "0.23",
    "numpy": "2.4",
    "rich": "15.0",
}


def torch_of(*, cuda: str | None = None, gpus: tuple[Any, ...] = (), threads: int = 2) -> SimpleNamespace:
    """As much of torch as is asked of it; a GPU is its properties and its free and total bytes, or an error."""

    def properties(index: int) -> Any:
        if isinstance(gpus[index], Exception):
            raise gpus[index]
        return gpus[index]

    return SimpleNamespace(
        version=SimpleNamespace(cuda=cuda, hip=None),
        get_num_threads=lambda: threads,
        cuda=SimpleNamespace(
            is_available=lambda: bool(gpus),
            device_count=lambda: len(gpus),
            get_device_properties=properties,
            mem_get_info=lambda index: gpus[index].memory,
        ),
    )


def loading(modules: Mapping[str, Any]) -> Any:
    """An import that finds these modules alone; an error among them is raised."""

    def load(name: str) -> Any:
        found = modules.get(name, ModuleNotFoundError(f"No module named {name!r}"))
        if isinstance(found, Exception):
            raise found
        return found

    return load


def place(root: Path, files: Mapping[str, str] | None = None, **changes: Any) -> Surroundings:
    """A machine in good order, with these files below its root and these changes."""
    for name, text in (files or {}).items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    sound: dict[str, Any] = {
        "root": root,
        "runs": root / "runs",
        "variables": {"OMP_WAIT_POLICY": "PASSIVE"},
        "python": "3.11.7",
        "encoding": "utf-8",
        "requirements": ASKED,
        "version_of": INSTALLED.get,
        "load": loading({"torch": torch_of()}),
        "num_cores": lambda: 2,
        "usable_cores": lambda: 2,
        "load_average": lambda: 0.3,
        "free_bytes": lambda folder: 50 * GIB,
        "temp": lambda: str(root),
    }
    return Surroundings(**(sound | changes))


def named(findings: Any, name: str) -> Finding:
    """The one finding of a name."""
    (found,) = (finding for finding in findings if finding.name == name)
    return found
