"""The page on choosing a method says what the code says."""

from __future__ import annotations

import re
import subprocess
import sys

from .tree import ROOT

PAGE = ROOT / "docs" / "choosing.md"
PICTURES = [ROOT / "docs" / "img" / "kernels.svg", *sorted((ROOT / "docs" / "img" / "rules").glob("*.svg"))]
MOST_BYTES = 60_000


def test_page_and_pictures_are_what_the_command_makes_now() -> None:
    command = [sys.executable, str(ROOT / "docs" / "choosing.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_page_has_no_markup_of_docstrings() -> None:
    assert not re.findall(r"``|:[a-z]+:`|>>> ", PAGE.read_text(encoding="utf-8"))


def test_every_row_of_a_table_has_the_columns_of_its_head() -> None:
    counts: list[int] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            counts = []
            continue
        counts.append(len(re.findall(r"(?<!\\)\|", line)))
        assert counts[-1] == counts[0], line


def test_pictures_are_small_and_have_no_date() -> None:
    for picture in PICTURES:
        text = picture.read_text(encoding="utf-8")
        assert len(text) < MOST_BYTES, picture.name
        assert "<dc:date>" not in text, picture.name
