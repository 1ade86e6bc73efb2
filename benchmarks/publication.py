"""Publishing 500 MB of weights, against a plain copy of the same tensors into fresh memory; the fingerprint apart.

Once in this process, once through Ray's object store where Ray is installed. Beside it the look at every weight that
comes before a publication.
"""

from __future__ import annotations

import importlib.util
import mmap
from itertools import count

import torch
from _measure import Cost, Work, in_turns, median, print_machine, ratio, verdict

from tether.models.fingerprint import fingerprint
from tether.models.finite import check_finite_weights
from tether.weights.memory import MemoryStore

ROUNDS = 4
GOAL = 3.0
WEIGHTS = {f"layers.{i}.weight": torch.randn(1000, 500) for i in range(250)}
USED = [torch.zeros_like(tensor) for tensor in WEIGHTS.values()]


def fresh_copy() -> None:
    """Copy all tensors into memory that nobody has used before: an allocator would hand out the last round's."""
    memory = torch.frombuffer(mmap.mmap(-1, sum(t.nbytes for t in WEIGHTS.values())), dtype=torch.float32)
    for place, tensor in zip(memory.split([t.numel() for t in WEIGHTS.values()]), WEIGHTS.values(), strict=True):
        place.view(tensor.shape).copy_(tensor)


def used_copy() -> None:
    for place, tensor in zip(USED, WEIGHTS.values(), strict=True):
        place.copy_(tensor)


def report(title: str, publish: Work) -> None:
    """A publication, the copy it is held against, and its parts, in turns."""
    costs = in_turns(
        {
            "publish": publish,
            "copy": fresh_copy,
            "reused": used_copy,
            "fingerprint": lambda: fingerprint(WEIGHTS),
            "finite": lambda: check_finite_weights(WEIGHTS, "the benchmark"),
        },
        ROUNDS,
    )
    bare = [
        Cost(*(a - b for a, b in zip(*pair, strict=True)))
        for pair in zip(costs["publish"], costs["fingerprint"], strict=True)
    ]
    print(title)
    print(f"  copy into fresh memory (floor)       {median(costs['copy'])}")
    print(f"  copy into memory that was there      {median(costs['reused'])}")
    print(f"  publish                              {median(costs['publish'])}")
    print(f"  of which the fingerprint, SHA-256    {median(costs['fingerprint'])}")
    print(f"  before it: is every weight finite    {median(costs['finite'])}")
    print(f"  publish / copy                       {verdict(ratio(costs['publish'], costs['copy']), GOAL)}")
    print(f"  publish / copy, fingerprint apart    {verdict(ratio(bare, costs['copy']), GOAL)}")


def in_memory() -> None:
    store, versions = MemoryStore("float32", keep=1), count()
    report("memory store, in one process", lambda: store.publish(next(versions), WEIGHTS))


def through_ray() -> None:
    from tether.placement.ray_session import session
    from tether.weights.ray import RayStore

    limit = 4 * sum(tensor.nbytes for tensor in WEIGHTS.values())
    with session("", num_cpus=1, object_store_bytes=limit):
        store, versions = RayStore("float32", limit_bytes=limit, keep=1), count()
        report("ray store, between processes", lambda: store.publish(next(versions), WEIGHTS))


def main() -> None:
    print_machine()
    print(f"{len(WEIGHTS)} tensors, {sum(t.nbytes for t in WEIGHTS.values()) / 1e6:.0f} MB, medians of {ROUNDS} turns")
    in_memory()
    if importlib.util.find_spec("ray") is None:
        print("ray store: left out, ray is not installed (pip install 'tether-rl[ray]')")
    else:
        through_ray()


if __name__ == "__main__":
    main()
