"""Are the packages those that tether asks for? Read from metadata; torch alone is imported, last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from tether.machine.finding import Finding, Status, reason_of
from tether.machine.surroundings import DISTRIBUTION, Surroundings

SECTION: Final = "versions"
SHOWN: Final = ("numpy", "tokenizers", "transformers", "torch")
"""Packages with a line of their own also where nothing is wrong with them; torch last, since it is imported."""
DEVELOPMENT: Final = "dev"
"""The extra that users need not have."""
GPU_BUILD: Final = "vllm"
"""The extra that is for machines with a GPU."""


def look(here: Surroundings) -> Iterator[Finding]:
    """Python, tether, its packages, its extras, torch."""
    asked = {r.name: r for r in map(Requirement, here.requirements)}
    always = {name: r for name, r in asked.items() if r.marker is None or r.marker.evaluate({"extra": ""})}
    if python := always.pop("python", None):
        yield _python(here.python, python)
    version = here.version_of(DISTRIBUTION)
    if version is None or not asked:
        value = "imported from a folder, not installed: what it asks for is unknown"
        way_out = "in its checkout: pip install -e ."
        yield Finding(section=SECTION, name="tether", status="warn", value=value, way_out=way_out)
    else:
        yield Finding(section=SECTION, name="tether", status="ok", value=version)
    others = [_package(here, r) for name, r in always.items() if name not in SHOWN]
    yield from (finding for finding in others if finding.status != "ok")
    for name in SHOWN[:-1]:
        yield _package(here, always.get(name, Requirement(name)))
    if right := [finding.name for finding in others if finding.status == "ok"]:
        yield Finding(section=SECTION, name="others", status="ok", value=f"{len(right)} packages as asked for")
    yield from _extras(here)
    yield _torch(here, always.get("torch", Requirement("torch")))


def _python(version: str, asked: Requirement) -> Finding:
    if asked.specifier.contains(version, prereleases=True):
        return Finding(section=SECTION, name="python", status="ok", value=version)
    way_out = "make a virtual environment with another one: python3.12 -m venv .venv"
    value = f"{version}; tether asks for {asked.specifier}"
    return Finding(section=SECTION, name="python", status="fail", value=value, way_out=way_out)


def _package(here: Surroundings, asked: Requirement) -> Finding:
    found = here.version_of(asked.name)
    value, status = _fit(found, asked)
    way_out = "" if status == "ok" else f"pip install '{asked.name}{asked.specifier}'"
    return Finding(section=SECTION, name=asked.name, status=status, value=value, way_out=way_out)


def _fit(found: str | None, asked: Requirement) -> tuple[str, Status]:
    """Too old is a failure; newer than tested may well work, and the self-test tells.

    >>> _fit("5.24.0", Requirement("transformers>=5.19,<5.20"))
    ('5.24.0, newer than what tether is tested with (<5.20,>=5.19)', 'warn')
    >>> _fit("4.1", Requirement("transformers>=5.19,<5.20"))[1]
    'fail'
    """
    if found is None:
        return "not installed", "fail"
    if asked.specifier.contains(found, prereleases=True):
        return found, "ok"
    try:
        is_too_old = any(
            s.operator in (">=", ">", "~=", "==") and Version(found) < Version(s.version.removesuffix(".*"))
            for s in asked.specifier
        )
    except InvalidVersion:
        is_too_old = True
    if is_too_old:
        return f"{found}, too old: tether asks for {asked.specifier}", "fail"
    return f"{found}, newer than what tether is tested with ({asked.specifier})", "warn"


def _extras(here: Surroundings) -> Iterator[Finding]:
    """What can be added, and which of it is here."""
    extras: dict[str, list[Requirement]] = {}
    for requirement in map(Requirement, here.requirements):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            for extra in _extras_of(requirement):
                extras.setdefault(extra, []).append(requirement)
    extras.pop(DEVELOPMENT, None)
    present: list[str] = []
    absent: list[str] = []
    for extra, wanted in sorted(extras.items()):
        findings = [_package(here, requirement) for requirement in wanted]
        wrong = [f for f in findings if f.status != "ok" and here.version_of(f.name) is not None]
        if wrong:
            value = ", ".join(f"{f.name} {f.value}" for f in wrong)
            way_out = f"pip install '{DISTRIBUTION}[{extra}]'"
            yield Finding(section=SECTION, name=f"extra {extra}", status="warn", value=value, way_out=way_out)
        else:
            (present if all(f.status == "ok" for f in findings) else absent).append(extra)
    if present or absent:
        told = [f"{', '.join(names)} {how}" for names, how in ((present, "installed"), (absent, "not")) if names]
        absent = [extra for extra in absent if extra != GPU_BUILD]  # the engine's own line says how to get that one
        way_out = f"optional: pip install '{DISTRIBUTION}[{','.join(absent)}]'" if absent else ""
        yield Finding(section=SECTION, name="extras", status="ok", value="; ".join(told), way_out=way_out)


def _extras_of(requirement: Requirement) -> set[str]:
    """Names that a marker compares ``extra`` with.

    >>> _extras_of(Requirement("ray>=2.50; extra == 'ray'"))
    {'ray'}
    """
    words = str(requirement.marker).replace("(", " ").replace(")", " ").split()
    return {words[i + 2].strip("'\"") for i, word in enumerate(words[:-2]) if word == "extra" and words[i + 1] == "=="}


def _torch(here: Surroundings, asked: Requirement) -> Finding:
    by_metadata = _package(here, asked)
    if here.version_of("torch") is None:
        return by_metadata
    try:
        torch = here.load("torch")
        build = build_of(torch)
    except Exception as error:  # ImportError, OSError of a missing library, or whatever a broken build raises
        value = f"{by_metadata.value}, cannot be imported: {reason_of(error)}"
        way_out = f"pip install --force-reinstall '{asked.name}{asked.specifier}'"
        return Finding(section=SECTION, name="torch", status="fail", value=value, way_out=way_out)
    value = f"{by_metadata.value}, {build}"
    return Finding(section=SECTION, name="torch", status=by_metadata.status, value=value, way_out=by_metadata.way_out)


def build_of(torch: Any) -> str:
    """What this torch was built for."""
    if torch.version.cuda is not None:
        return f"built for CUDA {torch.version.cuda}"
    if getattr(torch.version, "hip", None) is not None:
        return f"built for ROCm {torch.version.hip}"
    return "built for CPUs"
