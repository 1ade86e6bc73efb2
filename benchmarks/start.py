"""How long ``tether --help`` takes, beside a bare interpreter measured in the same run."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 15
LIMIT_S = 0.4

TETHER = [str(Path(sys.executable).with_name("tether")), "--help"]
BARE = [sys.executable, "-c", "pass"]


def seconds(command: list[str]) -> float:
    """Wall-clock seconds of one run."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> int:
    """Alternate both commands, so that a busy moment hits both; exit 1 above the limit."""
    for command in (TETHER, BARE):
        seconds(command)  # bytecode and disk cache
    pairs = [(seconds(TETHER), seconds(BARE)) for _ in range(ROUNDS)]
    ours, bare = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"tether --help   {ours:.3f} s   median of {ROUNDS}; limit {LIMIT_S} s")
    print(f"python -c pass  {bare:.3f} s")
    print(f"ratio           {ours / bare:.1f}")
    return int(ours > LIMIT_S)


if __name__ == "__main__":
    raise SystemExit(main())
