"""Peak memory of the chunked log-probabilities against all logits at once, forward and backward; time beside it.

Each runs in a process of its own, whose peak resident memory is read before and after: what counts is the difference.
SmolLM2's head: vocabulary 49,152, hidden size 576, float32. Peaks repeat from run to run, so each runs once.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import torch
from _measure import Cost, cost_of, print_machine
from torch import Tensor

from tether.core.logprobs import CHUNK_ELEMENTS, sampled_logp

TOKENS, VOCABULARY, HIDDEN = 2048, 49_152, 576


def chunked(hidden: Tensor, ids: Tensor, head: torch.nn.Linear) -> Tensor:
    logp, _ = sampled_logp(hidden, ids, head, temperature=1.0, vocabulary=VOCABULARY, entropy="detached")
    return logp


def naive(hidden: Tensor, ids: Tensor, head: torch.nn.Linear) -> Tensor:
    """What every tutorial does, the entropy for the log included."""
    logp = torch.log_softmax(head(hidden).float(), dim=-1)
    with torch.no_grad():
        (-logp.exp() * logp).sum(-1)
    return logp.gather(-1, ids[:, None])[:, 0]


KINDS = {"chunked": chunked, "naive": naive}


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def alone(kind: str) -> None:
    """One forward and backward in this process; prints peak bytes above the start, and seconds."""
    torch.manual_seed(0)
    head = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)
    head.weight.grad = torch.zeros_like(head.weight)
    hidden = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    ids = torch.randint(VOCABULARY, (TOKENS,))
    KINDS[kind](hidden[:8], ids[:8], head).sum().backward()  # what is loaded on first use is no part of it
    before = peak_bytes()
    cost = cost_of(lambda: KINDS[kind](hidden, ids, head).sum().backward())
    print(json.dumps({"bytes": peak_bytes() - before, "wall_s": cost.wall_s, "cpu_s": cost.cpu_s}))


def main() -> None:
    print_machine()
    found = {}
    for kind in KINDS:
        told = subprocess.run([sys.executable, __file__, kind], check=True, capture_output=True, text=True)
        found[kind] = json.loads(told.stdout)
    print(f"{TOKENS:,} tokens, vocabulary {VOCABULARY:,}, hidden {HIDDEN}, forward and backward, one process each")
    print(f"  one tensor of all logits (naive's floor)   {4 * TOKENS * VOCABULARY / 2**20:6.0f} MiB")
    print(f"  one chunk of them (chunked's floor)        {4 * CHUNK_ELEMENTS / 2**20:6.0f} MiB")
    for kind, one in found.items():
        cost = Cost(one["wall_s"], one["cpu_s"])
        print(f"  {kind:8s} peak above the start {one['bytes'] / 2**20:6.0f} MiB   {cost}")
    for name, key in (("memory", "bytes"), ("CPU time", "cpu_s")):
        print(f"  {name}: chunked / naive {found['chunked'][key] / found['naive'][key]:.2f}x")


if __name__ == "__main__":
    alone(sys.argv[1]) if len(sys.argv) > 1 else main()
