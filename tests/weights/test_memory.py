from collections.abc import Mapping

import pytest
import torch

from tether.errors import ConfigError, ModelError
from tether.ports import Publication, WeightStore
from tether.weights import memory
from tether.weights.memory import MemoryStore


def weights(value: float = 1.0) -> dict[str, torch.Tensor]:
    return {"a": torch.full((2, 3), float(value), requires_grad=True), "b": torch.arange(4.0)}


def test_it_is_a_weight_store() -> None:
    assert isinstance(MemoryStore("float32"), WeightStore)


def test_published_tensors_are_detached_contiguous_copies_in_the_published_dtype() -> None:
    source = {"w": torch.arange(6.0).reshape(2, 3).t().requires_grad_(), "steps": torch.tensor([3])}
    store = MemoryStore("bfloat16")
    publication = store.publish(0, source)
    with torch.no_grad():
        source["w"].zero_()
    got = store.fetch(publication)
    assert got["w"].dtype == torch.bfloat16
    assert got["w"].is_contiguous()
    assert not got["w"].requires_grad
    assert got["w"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert got["steps"].dtype == torch.int64
    assert publication.num_bytes == 6 * 2 + 8


def test_the_fingerprint_is_of_the_published_values() -> None:
    store = MemoryStore("bfloat16", keep=3)
    first = store.publish(0, weights(1.0))
    below_rounding = store.publish(1, weights(1.0 + 2**-12))
    other = store.publish(2, weights(1.5))
    assert first.fingerprint == below_rounding.fingerprint
    assert first.fingerprint != other.fingerprint


def test_names_of_one_tensor_share_one_copy() -> None:
    shared = torch.ones(8)
    store = MemoryStore("float32")
    publication = store.publish(0, {"one": shared, "two": shared.detach(), "part": shared[:4]})
    got = store.fetch(publication)
    assert got["one"] is got["two"]
    assert got["part"].shape == (4,)
    assert publication.num_bytes == 12 * 4


def test_the_last_versions_are_kept_and_older_ones_are_gone() -> None:
    store = MemoryStore("float32", keep=2)
    zero, eight, sixteen = (store.publish(v, weights(v)) for v in (0, 8, 16))
    assert store.fetch(eight)["a"][0, 0] == 8
    assert store.fetch(sixteen)["a"][0, 0] == 16
    with pytest.raises(ModelError, match=r"version 0 must still be in the store .* it holds 8, 16 \(keep = 2\)"):
        store.fetch(zero)


def test_a_version_never_published_is_an_error() -> None:
    with pytest.raises(ModelError, match="it holds nothing"):
        MemoryStore("float32").fetch(Publication(version=3, fingerprint="", num_bytes=0))


def test_a_record_of_another_store_is_an_error() -> None:
    here, there = MemoryStore("float32"), MemoryStore("float32")
    here.publish(0, weights(1.0))
    with pytest.raises(ModelError, match="must be the one that was published here"):
        here.fetch(there.publish(0, weights(2.0)))


@pytest.mark.parametrize("version", [8, 7, 0])
def test_versions_must_increase(version: int) -> None:
    store = MemoryStore("float32")
    held = store.publish(8, weights(1.0))
    with pytest.raises(ModelError, match=f"got {version} after 8"):
        store.publish(version, weights(2.0))
    assert store.fetch(held)["a"][0, 0] == 1


def test_a_publication_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Mapping[str, torch.Tensor]) -> str:
        raise RuntimeError("no memory")

    store = MemoryStore("float32")
    held = store.publish(0, weights())
    with monkeypatch.context() as patch:
        patch.setattr(memory, "fingerprint", fails)
        with pytest.raises(RuntimeError, match="no memory"):
            store.publish(8, weights(2.0))
    with pytest.raises(ModelError, match="it holds 0 "):
        store.fetch(Publication(version=8, fingerprint="", num_bytes=0))
    assert store.fetch(held)["a"][0, 0] == 1
    store.publish(8, weights(2.0))


def test_an_empty_publication_is_refused() -> None:
    with pytest.raises(ModelError, match="must hold tensors"):
        MemoryStore("float32").publish(0, {})


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="dtype"):
        MemoryStore("int4")
    with pytest.raises(ConfigError, match="keep"):
        MemoryStore("float32", keep=0)
