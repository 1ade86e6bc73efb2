"""Keeps the table of ``docs/rewards.md``: ``python docs/rewards.py``; ``--check`` only says whether it is old."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Final

from tether.registry import REWARDS

PAGE: Final = Path(__file__).parent / "rewards.md"
BLOCK: Final = re.compile(r"(<!-- rewards -->\n).*?(<!-- end -->)", re.DOTALL)


def table() -> str:
    """A row for each reward that comes with the package: its name, its options, and what its file says it is."""
    rows = ["| name | is | options |", "| --- | --- | --- |"]
    for name, cls in REWARDS.items():
        if not cls.__module__.startswith("tether."):
            continue
        module = inspect.getmodule(cls)
        is_what = (module.__doc__ or "").strip().splitlines()[0] if module else ""
        options = [f"`{f.name}`" if _is_needed(f) else f"`{f.name} = {f.default!r}`" for f in dataclasses.fields(cls)]
        rows.append(f"| `{name}` | {is_what} | {', '.join(options) or '-'} |")
    return "\n".join(rows)


def page() -> str:
    """The page with the table as it is now."""
    text = PAGE.read_text(encoding="utf-8")
    return BLOCK.sub(lambda found: f"{found[1]}\n{table()}\n\n{found[2]}", text)


def _is_needed(f: dataclasses.Field[object]) -> bool:
    return f.default is dataclasses.MISSING


def main() -> int:
    """Write the page, or say that it is old."""
    made = page()
    if "--check" not in sys.argv:
        PAGE.write_text(made, encoding="utf-8")
    elif made != PAGE.read_text(encoding="utf-8"):
        print("docs/rewards.md is old; run python docs/rewards.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
