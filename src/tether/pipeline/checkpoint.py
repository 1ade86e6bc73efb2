"""Weights written on the way and at the end, as plain Hugging Face folders, whole or not at all."""

from __future__ import annotations

import copy
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from tether.errors import ConfigError
from tether.journal.schema import MODEL_FOLDER
from tether.models.finite import check_finite_weights
from tether.models.loading import DTYPES, LoadedModel, save_model

CHECKPOINTS_FOLDER = "checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions:
    """The ``[checkpoint]`` table."""

    every: int = 0
    """Steps between saved weights; 0 saves the final ones only."""
    keep: int = 2
    """How many of those on the way are kept, the newest."""

    def __post_init__(self) -> None:
        if self.every < 0 or self.keep < 1:
            raise ConfigError(f"checkpoint needs every >= 0 and keep >= 1; got every {self.every}, keep {self.keep}")


class Checkpoints:
    """Saves a model's weights in a run directory."""

    def __init__(self, folder: Path, loaded: LoadedModel, options: CheckpointOptions, dtype: str) -> None:
        self._folder, self._loaded, self._options, self._dtype = folder, loaded, options, dtype

    def save(self, step: int) -> Path | None:
        """``checkpoints/step-N/`` if one is due; older ones beyond ``keep`` are removed after it is whole."""
        if not self._options.every or step % self._options.every:
            return None
        return self.save_now(step)

    def save_now(self, step: int) -> Path:
        """``checkpoints/step-N/``, due or not: also when a run is interrupted."""
        home = self._folder / CHECKPOINTS_FOLDER
        target = home / f"step-{step:06d}"
        if not target.exists():
            self._write(target)
        for old in sorted(home.glob("step-*"))[: -self._options.keep]:
            shutil.rmtree(old)
        return target

    def save_final(self) -> Path:
        """``model/``."""
        return self._write(self._folder / MODEL_FOLDER)

    def _write(self, target: Path) -> Path:
        """The weights in the dtype they are saved in; refused if they are not finite."""
        check_finite_weights(self._loaded.model.state_dict(), "the model to be saved")
        dtype, loaded = DTYPES[self._dtype], self._loaded
        if loaded.model.dtype != dtype:
            loaded = replace(loaded, model=copy.deepcopy(loaded.model).to(dtype))
        return save_model(loaded, target)
