"""Keeps ``docs/choosing.md``: ``python docs/choosing.py`` (``make choosing``); ``--check`` only says what is old.

The words of the page are written by hand. What stands between ``<!-- NAME -->`` and ``<!-- end -->`` is made from the
code, and so are the pictures in ``docs/img``. A check needs nothing but tether: each picture says in its description
which numbers it was drawn from. Drawing needs the extra ``docs``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from html import unescape
from pathlib import Path
from typing import Final

import tables
from curves import kernels_shown, samples_of

from tether.registry import RULES

PAGE: Final = Path(__file__).parent / "choosing.md"
IMAGES: Final = PAGE.parent / "img"
BLOCK: Final = re.compile(r"(<!-- ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
DESCRIPTION: Final = re.compile(r"<dc:description>(.*?)</dc:description>", re.DOTALL)
NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?")
TOLERANCE: Final = 0.02
"""Of numbers that a picture was drawn from: a share of the larger one, and a twentieth of that beside it."""
COLUMNS: Final = 2
SEEN: Final[Mapping[str, str]] = {
    "adaptive-radius": "PPO with SAT's one effective radius: the same lines as sat, which is what it is for.",
    "aspo": "A > 0: the rarer a token has become, the harder it is pushed, up to 3.",
    "bapo": "The interval moves with the step; the dual clip at 3 ends the pull-back where A < 0.",
    "cispo": "No token loses its gradient; it is held at 1.2.",
    "dis": "Zero outside 0.7 to 6 for both signs, pull-back included.",
    "dppo": "A probable token is cut soon, a rare one late or never. A line ends where pi is 1.",
    "drpo": "At delta = 0.15 probable tokens are pushed back; at the paper's 12.5 all lie near the dotted line.",
    "gepo": "The group's expectation is 0.1 here. At ratio 1 the weight is mu / 0.1, not 1.",
    "gmpo": "A response of one token: cut beyond 0.4 nats outward.",
    "m2po": "Two intervals that a step could have asked for; one within its budget has none.",
    "ppo": "Outward tokens are cut at 0.8 and 1.2; what moves back keeps its whole weight, however large.",
    "sapo": "A smooth hill: it fades on both sides, pull-back included.",
    "sat": "Near ratio 1: the smaller q, the sooner an outward token is cut. Pull-back stays whole.",
    "sat-edge": "q = 0.1, r = pi / proximal. A token that the proximal has carried away from the data is cut sooner.",
    "spo": "Outward tokens are pushed back beyond 0.8 and 1.2; the left line goes on to -1880, outside the picture.",
    "tis-reinforce": "No token loses its gradient; it is held at 5.",
    "topr": "A > 0: weight 1 whatever the ratio. A < 0: never more than 1.",
    "up": "A > 0: weight 1 whatever the ratio. A < 0: PPO with the dual clip at 3.",
    "vespo": "A hill around ratio 1 that fades to nothing far out, on both sides.",
}
"""What to see in a rule's picture."""


def main() -> None:
    """Write the page and the pictures, or with ``--check`` exit 1 if any of them is old."""
    arguments = sys.argv[1:]
    if arguments not in ([], ["--check"]):
        sys.exit("usage: python docs/choosing.py [--check]")
    page, pictures = made(PAGE.read_text(encoding="utf-8")), pictures_wanted()
    if arguments:
        old = [] if page == PAGE.read_text(encoding="utf-8") else [PAGE]
        old += [path for path, samples in pictures.items() if not agrees(path, samples)]
        old += [path for path in sorted((IMAGES / "rules").glob("*.svg")) if path not in pictures]
        sys.exit(
            f"not what the code says now: {', '.join(path.name for path in old)}; run `make choosing`" if old else 0
        )
    draw()
    PAGE.write_text(page, encoding="utf-8")


def made(page: str) -> str:
    """The page with every block made anew."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{BLOCKS[block[2]]()}\n\n{block[3]}", page)


def pictures() -> str:
    """A grid of the rules' pictures, a line under each."""
    names = RULES.names()
    if unseen := sorted(set(names) - set(SEEN)):
        sys.exit(f"what is to be seen in the picture of {', '.join(unseen)}? Add a line to SEEN in docs/choosing.py")
    cells = [f"![{name}](img/rules/{name}.svg)<br>{SEEN[name]}" for name in names]
    cells += [""] * (-len(cells) % COLUMNS)
    rows = [cells[start : start + COLUMNS] for start in range(0, len(cells), COLUMNS)]
    lines = [[" "] * COLUMNS, ["---"] * COLUMNS, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


BLOCKS: Final[Mapping[str, Callable[[], str]]] = {
    "rules": tables.rules,
    "corrections": tables.corrections,
    "proximals": tables.proximals,
    "scales": tables.scales,
    "kernels": tables.kernels,
    "step-sizes": tables.step_sizes,
    "replays": tables.replays,
    "presets": tables.presets,
    "pictures": pictures,
}


def pictures_wanted() -> dict[Path, str]:
    """Every picture, with the numbers that it is to be drawn from."""
    wanted = {IMAGES / "rules" / f"{name}.svg": samples_of(name) for name in RULES.names()}
    return {**wanted, IMAGES / "kernels.svg": kernels_shown()}


def agrees(path: Path, samples: str) -> bool:
    """Whether a picture was drawn from these numbers."""
    found = DESCRIPTION.search(path.read_text(encoding="utf-8")) if path.exists() else None
    if found is None or NUMBER.sub("", unescape(found[1])) != NUMBER.sub("", samples):
        return False
    pairs = zip(NUMBER.findall(unescape(found[1])), NUMBER.findall(samples), strict=True)
    return all(abs(float(a) - float(b)) <= TOLERANCE * (max(abs(float(a)), abs(float(b))) + 0.05) for a, b in pairs)


def draw() -> None:
    """Every picture; those of rules that are gone are removed."""
    try:
        from drawing import kernels_picture, rule_picture
    except ModuleNotFoundError as error:
        sys.exit(f"drawing needs {error.name}: pip install -e '.[docs]'")
    (IMAGES / "rules").mkdir(parents=True, exist_ok=True)
    for path in (IMAGES / "rules").glob("*.svg"):
        path.unlink()
    for name in RULES.names():
        (IMAGES / "rules" / f"{name}.svg").write_text(rule_picture(name), encoding="utf-8")
    (IMAGES / "kernels.svg").write_text(kernels_picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
