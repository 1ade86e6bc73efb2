"""Which engines can be opened here, and what each reports of its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tether.machine.finding import Finding, reason_of
from tether.machine.surroundings import DISTRIBUTION, Surroundings

SECTION: Final = "engines"
MODEL: Final = "tiny-moe"
"""Opened by each engine: small, and in the package."""


def look(here: Surroundings) -> Iterator[Finding]:
    """Every registered engine, opened with the smallest embedded model if it lives in a process of ours."""
    registry = here.load("tether.registry").ENGINES
    for name in registry.names():
        yield _engine(here, name, registry)


def _engine(here: Surroundings, name: str, registry: Any) -> Finding:
    try:
        options = registry.build(name)
        store = here.load("tether.weights.memory").MemoryStore(options.dtype)
        clock = here.load("tether.placement.inline").FreeClock()
        can = options.capabilities
        if is_here := can.virtual_time:
            can = options.open(MODEL, store=store, clock=clock, device="cpu").capabilities
    except ImportError as error:
        way_out = f"pip install '{DISTRIBUTION}[{name}]'"
        return Finding(section=SECTION, name=name, status="warn", value=reason_of(error), way_out=way_out)
    except Exception as error:  # an engine is somebody else's code
        way_out = "take another engine with --set engine.kind=NAME, or mend this one: the reason says what it lacks"
        return Finding(section=SECTION, name=name, status="fail", value=reason_of(error), way_out=way_out)
    extras = [
        text
        for is_on, text in (
            (can.token_versions, "a version"),
            (can.entropy, "its entropy"),
            (can.alternatives, "top-k log-probs"),
        )
        if is_on
    ]
    value = f"reports {can.logp} log-probs, and with each token {', '.join(extras) or 'nothing else'}"
    if not is_here:
        value += " (it lives in a server, and was not asked)"
    return Finding(section=SECTION, name=name, status="ok", value=value)
