"""Publishing 500 MB of weights, against a plain copy of the same tensors into fresh memory; the fingerprint apart.

Once in this process, once through a folder, once through Ray's object store where Ray is installed. Beside it the look
at every weight that comes before a publication. Then a model's adapter against all of its weights.
"""

from __future__ import annotations

import importlib.util
import mmap
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import torch
from _measure import Cost, Work, in_turns, median, print_machine, ratio, verdict
from safetensors.torch import save_file

from tether.journal.writer import flush
from tether.models.fingerprint import fingerprint
from tether.models.finite import check_finite_weights
from tether.models.lora import Lora, adapt, published
from tether.models.tiny import build_dense
from tether.ports import WeightStore
from tether.weights.directory import DirectoryStore
from tether.weights.memory import MemoryStore

ROUNDS = 4
GOAL = 3.0
FOLDER_GOAL = 2.0
LORA_GOAL = 0.1
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


def through_a_folder() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store, versions, bare = DirectoryStore(folder, "float32", keep=1), count(), Path(folder) / "bare"

        def write() -> None:
            bare.unlink(missing_ok=True)
            save_file(WEIGHTS, bare)
            flush(bare)

        costs = in_turns(
            {
                "publish": lambda: store.publish(next(versions), WEIGHTS),
                "write": write,
                "fingerprint": lambda: fingerprint(WEIGHTS),
                "both": lambda: store.fetch(store.publish(next(versions), WEIGHTS)),
            },
            ROUNDS,
        )
    floor = [
        Cost(*map(sum, zip(*pair, strict=True))) for pair in zip(costs["write"], costs["fingerprint"], strict=True)
    ]
    print(f"directory store, on the disk of {tempfile.gettempdir()}")
    print(f"  write a file, in the place of one    {median(costs['write'])}")
    print(f"  publish                              {median(costs['publish'])}")
    print(f"  publish and fetch                    {median(costs['both'])}")
    print(f"  publish / write and fingerprint      {verdict(ratio(costs['publish'], floor), FOLDER_GOAL)}")


def an_adapter() -> None:
    """From the trainer's model to the tensors in an engine's hands: look, publish, fetch, hash."""
    shape = {"hidden_size": 1024, "num_hidden_layers": 8, "intermediate_size": 4096, "head_dim": 128}
    models = [build_dense(**shape, num_attention_heads=8) for _ in range(2)]
    adapt(models[1], Lora(rank=16), dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        against("memory", models, (MemoryStore("float32", keep=1), MemoryStore("float32", keep=1)))
        against(
            "directory",
            models,
            (
                DirectoryStore(f"{folder}/all", "float32", keep=1),
                DirectoryStore(f"{folder}/adapter", "float32", keep=1),
            ),
        )


def against(kind: str, models: Sequence[torch.nn.Module], stores: tuple[WeightStore, WeightStore]) -> None:
    versions, sizes = count(), {}

    def travel(place: int) -> None:
        weights = published(models[place])
        check_finite_weights(weights, "the benchmark")
        publication = stores[place].publish(next(versions), weights)
        fingerprint(stores[place].fetch(publication))
        sizes[place] = publication.num_bytes

    costs = in_turns({"all": lambda: travel(0), "adapter": lambda: travel(1)}, ROUNDS)
    print(f"an adapter of rank 16 against all weights, {kind} store")
    print(f"  all weights     {sizes[0] / 1e6:8.1f} MB {median(costs['all'])}")
    print(f"  the adapter     {sizes[1] / 1e6:8.1f} MB {median(costs['adapter'])}")
    print(f"  bytes, adapter / all                 {verdict(sizes[1] / sizes[0], LORA_GOAL)}")
    print(f"  time, adapter / all                  {verdict(ratio(costs['adapter'], costs['all']), LORA_GOAL)}")


def main() -> None:
    print_machine()
    print(f"{len(WEIGHTS)} tensors, {sum(t.nbytes for t in WEIGHTS.values()) / 1e6:.0f} MB, medians of {ROUNDS} turns")
    in_memory()
    through_a_folder()
    if importlib.util.find_spec("peft") is None:
        print("an adapter: left out, peft is not installed (pip install 'tether-rl[lora]')")
    else:
        an_adapter()
    if importlib.util.find_spec("ray") is None:
        print("ray store: left out, ray is not installed (pip install 'tether-rl[ray]')")
    else:
        through_ray()


if __name__ == "__main__":
    main()
