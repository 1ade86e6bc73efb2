"""What all engines behind HTTP can be asked."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from tether.engines.filed import Filed
from tether.engines.options import SamplingOptions
from tether.engines.requests import Servable
from tether.engines.served.client import Client
from tether.engines.served.engine import Means, ServedEngine
from tether.engines.served.folders import Folders
from tether.engines.served.look import look
from tether.engines.served.piece import Speech
from tether.engines.served.process import Server
from tether.errors import ConfigError
from tether.models.loading import LoadedModel
from tether.models.lora import Lora

_MOST_S: Final = 1e9
_LOCAL: Final = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, kw_only=True)
class ServedOptions(SamplingOptions):
    """Deadlines in real seconds, and where weights are put.

    >>> ServedOptions(silence_s=0.0)
    Traceback (most recent call last):
    tether.errors.ConfigError: engine.silence_s must lie in (0, 1e+09] seconds; got 0.0
    """

    url: str = ""
    """Of a server that runs, without a path."""
    key_variable: str = ""
    """Name of the environment variable that holds the key the server wants; the key itself is in no recipe."""
    folder: str = ""
    """Where weights are put for the server, which must see the folder at this path; empty: in this machine's memory."""
    silence_s: float = 600.0
    """Longest time without a token of a completion under way; loads count."""
    control_s: float = 300.0
    """Longest time until a server has held still, read weights, or gone on."""
    start_s: float = 600.0
    """Longest time until a server answers for the first time, and after it was lost."""
    restarts: int = 3
    """How often it may be lost in a run; each time all weights are given to it anew."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("silence_s", "control_s", "start_s"):
            if not 0 < (value := getattr(self, name)) <= _MOST_S:
                raise ConfigError(f"engine.{name} must lie in (0, {_MOST_S:g}] seconds; got {value}")
        if not 0 <= self.restarts <= 10**6:
            raise ConfigError(f"engine.restarts must lie in 0 .. {10**6}; got {self.restarts}")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"engine.url must begin with http:// or https://; got {self.url!r}")

    @property
    def key(self) -> str:
        """What the environment holds."""
        if not self.key_variable:
            return ""
        if not (key := os.environ.get(self.key_variable, "")):
            raise ConfigError(f"engine.key_variable names a variable that is set; {self.key_variable} is not")
        return key

    @property
    def is_near(self) -> bool:
        """Whether the server is on this machine, and sees its folders."""
        host = self.url.partition("//")[2].partition("/")[0]
        return not self.url or any(host == name or host.startswith(f"{name}:") for name in _LOCAL)

    def looked(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """What the server at ``url`` answers before the engine is opened."""
        return look(self.url.rstrip("/") + path, body, self.key)

    def client(self, where: Callable[[], str]) -> Client:
        """Asks a server; refused where the package for it is missing."""
        if find_spec("aiohttp") is None:
            raise ConfigError(
                "engines behind HTTP need the package aiohttp, which is not installed; pip install 'tether-rl[serve]'"
            )
        return Client(where, silence_s=self.silence_s, control_s=self.control_s, key=self.key)

    def folders(self, store: Any, skeleton: LoadedModel) -> Folders:
        """Where publications are put."""
        if not self.is_near and not self.folder:
            raise ConfigError(
                f"weights are given to a server as folders that it sees; that at {self.url} is on another machine: set "
                "engine.folder to a folder that both see at the same path"
            )
        return Folders(store, Filed(skeleton), self.folder)

    def engine(
        self, client: Client, speech: Speech, server: Server, folders: Folders, servable: Servable
    ) -> ServedEngine:
        """The engine of these parts."""
        return ServedEngine(
            Means(client=client, speech=speech, server=server, folders=folders, servable=servable),
            control_s=self.control_s,
            most_losses=self.restarts,
            max_rows=self.max_rows,
        )


def servable_of(skeleton: LoadedModel, context: int | None = None) -> Servable:
    """What a model can be asked, at a server that has so much context."""
    return Servable(
        vocabulary=int(skeleton.model.get_input_embeddings().num_embeddings),
        context=skeleton.context if context is None else min(context, skeleton.context),
        eos_ids=tuple(skeleton.eos_ids),
        routing=None,
    )


def refuse_adapter(lora: Lora | None, kind: str) -> None:
    """These engines take all weights."""
    if lora is not None:
        raise ConfigError(
            f"engine {kind!r} takes all weights of a model and no adapter; set model.lora_rank = 0, or engine.kind = "
            "'torch'"
        )
