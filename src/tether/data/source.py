"""Where problems come from, in a recipe's words."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from tether.errors import ConfigError

_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which column holds what, where a layout does not say; a dot goes into a column: ``reward_model.ground_truth``."""

    prompt: str = ""
    """The problem: a text, or a list of chat messages."""
    reference: str = ""
    """What answers are compared with."""
    system: str = ""
    """What the system says before the problem."""
    id: str = ""
    """Name of the row, which becomes part of the problem's key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file, folder or hub data set.

    >>> Source(path="data/dapo-math-17k.parquet").label
    'dapo-math-17k'
    """

    path: str
    """A file (``.jsonl``, ``.json``, ``.jsonl.gz``, ``.parquet``), a folder of such files, a folder written by
    ``save_to_disk``, or a data set on the hub, ``owner/name``."""
    weight: float | None = None
    """Its part of the prompts, over the sum of all weights; without any weight, problems are asked equally often."""
    split: str = "train"
    """Which split of a folder or a hub data set."""
    subset: str = ""
    """Which configuration of a hub data set, such as ``main`` of GSM8K."""
    layout: str = ""
    """Name of its layout; empty: recognised by its columns."""
    columns: Columns = field(default_factory=Columns)
    """Columns that go before those of the layout."""
    name: str = ""
    """What its problems' keys begin with; empty: the file's name."""

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("a source needs a path: a file, a folder, or the name of a hub data set; got ''")
        if self.weight is not None and not 0 < self.weight <= 1e6:
            raise ConfigError(f"a source's weight must lie above 0 and at most 1e6; {self.path!r} has {self.weight}")
        if "/" in self.name:
            raise ConfigError(f"a source's name must have no slash; got {self.name!r}")

    @property
    def label(self) -> str:
        """Its name, or one made of its path."""
        if self.name:
            return self.name
        last = Path(self.path).name
        for ending in (".gz", ".jsonl", ".json", ".parquet"):
            last = last.removesuffix(ending)
        return _NAME.sub("-", last) or "data"
