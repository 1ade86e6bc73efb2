"""What a replay is: something of the engine's forward pass that the trainer's takes over."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Replay(Protocol):
    """Frozen; options are fields. What it does to the forward pass is the models' business."""

    @property
    def missing(self) -> str:
        """What becomes of a token for which the engine reported nothing: ``error``, or the trainer's ``own``."""
        ...
