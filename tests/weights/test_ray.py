"""Versions in Ray's object store: whole or absent, found from elsewhere, gone when nobody needs them."""

import gc

import pytest
import torch

pytest.importorskip("ray")

import ray

from tether.errors import ConfigError, ModelError
from tether.models.fingerprint import fingerprint
from tether.ports import Publication
from tether.weights.memory import MemoryStore
from tether.weights.ray import RayStore

BOUND = 100 * 2**20


pytestmark = pytest.mark.usefixtures("ray_here")


def weights(value: float, size: int = 6) -> dict[str, torch.Tensor]:
    table = torch.full((size,), value).reshape(2, -1)
    return {
        "table": table,
        "tied": table,
        "turned": torch.arange(6.0).reshape(2, 3).T + value,
        "count": torch.tensor([3]),
        "empty": torch.zeros(0, 4),
        "scale": torch.tensor(value),
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_fetched_is_what_the_memory_store_would_give(dtype):
    store, other = RayStore(dtype, limit_bytes=BOUND), MemoryStore(dtype)
    published, expected = store.publish(0, weights(1.5)), other.publish(0, weights(1.5))
    assert (published.fingerprint, published.num_bytes) == (expected.fingerprint, expected.num_bytes)
    fetched = store.fetch(published)
    assert fingerprint(fetched) == published.fingerprint
    assert all(torch.equal(fetched[name], tensor) for name, tensor in other.fetch(expected).items())
    assert fetched["table"] is fetched["tied"]


def test_a_publication_stays_what_it_was_when_the_weights_move_on():
    live, store = weights(1.0), RayStore("float32", limit_bytes=BOUND)
    published = store.publish(0, live)
    live["table"] += 1.0
    assert store.fetch(published)["table"].unique().tolist() == [1.0]


@ray.remote
def fetched_elsewhere(publication: Publication) -> tuple[str, bool]:
    tensors = RayStore("bfloat16", limit_bytes=BOUND).fetch(publication)
    return fingerprint(tensors), tensors["table"] is tensors["tied"]


def test_another_process_fetches_by_the_publication_alone():
    published = RayStore("bfloat16", limit_bytes=BOUND).publish(8, weights(0.1))
    assert ray.get(fetched_elsewhere.remote(published)) == (published.fingerprint, True)


def test_fifty_publications_take_no_more_room_than_those_that_are_kept(ray_here):
    def num_held() -> int:
        return len(ray._private.worker.global_worker.core_worker.get_all_reference_counts())

    gc.collect()
    store, before = RayStore("float32", limit_bytes=BOUND, keep=2), num_held()
    size, held = 2**20, []  # 4 MiB each: all fifty would be twice the bound of the object store
    for version in range(50):
        published = store.publish(version, {"w": torch.full((size,), float(version))})
        held.append(num_held() - before)
    assert held == [1] + [2] * 49
    assert store.fetch(published)["w"].unique().tolist() == [49.0]
    assert not list(ray_here.logs.parent.glob("ray_spilled_objects*/*"))


def test_an_older_version_lives_as_long_as_somebody_holds_its_publication():
    store = RayStore("float32", limit_bytes=BOUND, keep=1)
    first = store.publish(0, weights(1.0))
    for version in (1, 2, 3):
        store.publish(version, weights(2.0))
    assert store.fetch(first)["table"].unique().tolist() == [1.0]


def test_versions_that_do_not_fit_are_refused_before_anything_is_written():
    store = RayStore("float32", limit_bytes=1000, keep=2)
    with pytest.raises(ConfigError, match=r"must hold 3 versions of the weights, 1200 bytes; it has 1000: raise"):
        store.publish(0, {"w": torch.zeros(100)})


def test_versions_increase_and_hold_something():
    store = RayStore("float32", limit_bytes=BOUND)
    store.publish(3, weights(1.0))
    with pytest.raises(ModelError, match="versions must increase from 0; got 3 after 3"):
        store.publish(3, weights(1.0))
    with pytest.raises(ModelError, match="must hold tensors"):
        store.publish(4, {})


def test_a_publication_of_another_store_is_refused():
    published = MemoryStore("float32").publish(0, weights(1.0))
    with pytest.raises(ModelError, match="was not published through Ray"):
        RayStore("float32", limit_bytes=BOUND).fetch(published)
