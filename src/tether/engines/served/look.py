"""A first look at a server that somebody else started: what it is, and what its log-probs are of."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

from tether.errors import ConfigError

_LOOK_S: Final = 60.0
_LOCKED: Final = (401, 403)
_GAP: Final = 0.05
"""Nats between the two most probable ids at a prompt, below which it tells nothing."""
_PROMPTS: Final = ((1,), (2, 3), (4, 5, 6), (7, 8, 9, 10), (3,) * 8)
Top = Callable[[tuple[int, ...], float, int], Sequence[float]]
"""Given a prompt, a temperature and a top-k: the sampled token's log-prob, then those of the two most probable."""


def look(url: str, body: Mapping[str, Any] | None = None, key: str = "") -> Any:
    """What a server says, at once; an error with its words if it does not."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=_LOOK_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            told = error.read().decode(errors="replace")[:400]
        way_out = "; engine.key_variable names the environment variable with its key" if error.code in _LOCKED else ""
        raise ConfigError(f"{url} answered {error.code}: {told}{way_out}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"engine.url must be that of a server that runs; {url} cannot be asked: {error}") from error


@contextmanager
def spoken_by(kind: str, url: str) -> Iterator[None]:
    """What is read inside are answers in the protocol of a kind of server; an error that says so if they are not.

    >>> with spoken_by("openai", "http://here"):
    ...     {"error": "no such page"}["data"]
    Traceback (most recent call last):
    tether.errors.ConfigError: engine.url must be that of a server that speaks as engine 'openai' does; that at \
http://here answers otherwise (KeyError: 'data'); set engine.url, or engine.kind, to what runs there
    """
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"engine.url must be that of a server that speaks as engine {kind!r} does; that at {url} answers otherwise "
            f"({type(error).__name__}: {error}); set engine.url, or engine.kind, to what runs there"
        ) from error


def kind_of(top: Top) -> Literal["raw", "tempered", "processed"]:
    """What a server's log-probs are of: the model's distribution, that under the temperature, or that sampled from.

    At temperature 2 the two most probable ids are half as many nats apart as at 1, if it counts. Among one id only, the
    log-prob is 0 if the truncation counts.

    >>> kind_of(lambda prompt, temperature, top_k: (0.0, 0.0, -1.0 / temperature))
    'processed'
    >>> kind_of(lambda prompt, temperature, top_k: (-0.5, -0.5, -1.5))
    'raw'
    """
    for prompt in _PROMPTS:
        _, first, second = top(prompt, 1.0, 0)
        if first - second < _GAP:
            continue
        _, hot_first, hot_second = top(prompt, 2.0, 0)
        if (hot_first - hot_second) / (first - second) > 0.75:
            return "raw"
        sampled, *_ = top(prompt, 1.0, 1)
        return "processed" if sampled > -1e-3 else "tempered"
    raise ConfigError(
        f"what a server's log-probs are of is read from how far ids are apart; at {len(_PROMPTS)} prompts its two most "
        f"probable ones are less than {_GAP} nats apart: set engine.temperature = 1 and switch truncation off"
    )
