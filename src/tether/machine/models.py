"""Are the embedded models whole, and may others be downloaded?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tether.machine.finding import Finding, reason_of
from tether.machine.surroundings import DISTRIBUTION, Surroundings

SECTION: Final = "models"
OFFLINE: Final = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
AGAIN: Final = f"pip install --force-reinstall --no-deps {DISTRIBUTION}; in a checkout, git checkout brings it back"
YES: Final = ("1", "ON", "YES", "TRUE")


def look(here: Surroundings) -> Iterator[Finding]:
    """The embedded models, all their weights read; then the hub."""
    loading, safetensors = here.load("tether.models.loading"), here.load("safetensors")
    whole: list[str] = []
    for name in loading.EMBEDDED:
        try:
            count = _count(Path(loading.resolve_source(name)), safetensors)
        except Exception as error:  # a file cut short, or a pointer of git lfs: safetensors has classes of its own
            yield Finding(section=SECTION, name=name, status="fail", value=reason_of(error), way_out=AGAIN)
        else:
            whole.append(f"{name} ({count / 1e6:.2f} M weights)")
    if whole:
        yield Finding(section=SECTION, name="embedded", status="ok", value=f"{', '.join(whole)}, all read")
    yield _hub(here)


def _count(folder: Path, safetensors: Any) -> int:
    """Weights of a model's folder, each of which is read."""
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder / 'config.json'} is missing")
    return sum(int(tensor.numel()) for file in _weights(folder) for tensor in _tensors(file, safetensors))


def _weights(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"no weights in {folder}")
    return files


def _tensors(file: Path, safetensors: Any) -> Iterator[Any]:
    with safetensors.safe_open(file, framework="pt") as opened:
        for key in opened.keys():  # noqa: SIM118 - it is no mapping
            yield opened.get_tensor(key)


def _hub(here: Surroundings) -> Finding:
    offline = [name for name in OFFLINE if here.variables.get(name, "").upper() in YES]
    if offline:
        value = f"offline ({offline[0]} is set): models by hub name come from the cache alone"
    else:
        value = "models by hub name (org/name) are downloaded once; embedded ones and folders need no network"
    return Finding(section=SECTION, name="hub", status="ok", value=value)
