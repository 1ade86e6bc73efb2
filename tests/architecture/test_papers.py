"""PAPERS.md and the code agree on what comes from where."""

from __future__ import annotations

import re

import pytest

from .tree import ROOT, plugin_files, python_files, relative

PAPERS = ROOT / "PAPERS.md"
FILE = re.compile(r"`((?:src|tests|docs)/[^`]+)`")
ARXIV = re.compile(r"arXiv:?\s*(\d{4}\.\d{5})", re.IGNORECASE)


def test_every_file_that_papers_names_exists() -> None:
    named = FILE.findall(PAPERS.read_text(encoding="utf-8"))
    assert named, "PAPERS.md names no file"
    assert not [name for name in named if not (ROOT / name).exists()]


@pytest.mark.parametrize("room", ["rules", "corrections", "proximal", "replay"])
def test_every_part_of_an_algorithm_has_its_paper(room: str) -> None:
    named = set(FILE.findall(PAPERS.read_text(encoding="utf-8")))
    assert not [relative(path) for path in plugin_files(room) if relative(path) not in named]


def test_every_paper_that_the_code_cites_is_listed() -> None:
    listed = set(ARXIV.findall(PAPERS.read_text(encoding="utf-8")))
    cited = {
        number: relative(path)
        for path in python_files("src")
        for number in ARXIV.findall(path.read_text(encoding="utf-8"))
    }
    assert not {number: where for number, where in cited.items() if number not in listed}
