"""The pages a newcomer reads point to things that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .tree import ROOT, relative

NAMED = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "PAPERS.md", "CHANGELOG.md", "benchmarks/README.md")
PAGES = [*(ROOT / name for name in NAMED), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
MAKE = re.compile(r"`make ([a-z-]+)")


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    targets = [link.partition("#")[0] for link in LINK.findall(prose(page)) if "://" not in link]
    assert not [target for target in targets if target and not (page.parent / target).exists()]


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_make_target_that_a_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(MAKE.findall(page.read_text(encoding="utf-8"))) <= targets


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    assert not [page.name for page in folder.glob("[0-9]*.md") if f"({page.name})" not in index]
