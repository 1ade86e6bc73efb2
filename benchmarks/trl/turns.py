"""What the competitors of one comparison share: the setting, the reward, and how a process waits for its turn.

Standard library only, since it is read in environments that share no package.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Setting:
    """One comparison."""

    model: str
    """Folder of a model whose end-of-sequence token it practically never samples."""
    prompts: str
    """File with a list of texts, all of the same number of tokens."""
    steps: int
    group_size: int
    prompts_per_step: int
    max_tokens: int
    prompt_tokens: int
    checkpointing: bool
    """Whether TRL recomputes layers in backward, which its configuration does by default."""
    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.98)
    grad_clip: float = 1.0

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: str) -> Self:
        table = json.loads(Path(path).read_text())
        return cls(**{**table, "betas": tuple(table["betas"])})

    def texts(self) -> list[str]:
        texts: list[str] = json.loads(Path(self.prompts).read_text())
        return texts


def score(text: str) -> float:
    """A reward that costs nothing and differs within a group."""
    return float(sum(text.encode()) % 7)


def score_of(prompt: object, text: str) -> float:
    """The same, as tether calls it."""
    return score(text)


class Turns:
    """Steps of this process, one whenever the driver says so; whatever else is printed goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._started = (0.0, 0.0)

    def ready(self) -> None:
        """Say that all is loaded, and wait for the first turn."""
        self._say({"ready": True})
        self._wait()

    def done(self, tokens: int, **parts: float) -> None:
        """End of a step that generated so many tokens; waits for the next turn, outside the time."""
        wall, cpu = time.perf_counter() - self._started[0], time.process_time() - self._started[1]
        self._say({"wall": wall, "cpu": cpu, "tokens": tokens, "parts": parts})
        self._wait()

    def _wait(self) -> None:
        if sys.stdin.readline().strip() != "go":
            os._exit(0)  # the driver has what it wants
        self._started = (time.perf_counter(), time.process_time())

    def _say(self, message: dict[str, object]) -> None:
        self._out.write(json.dumps(message) + "\n")
