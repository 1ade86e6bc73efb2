import pytest
import torch

from tether.errors import ModelError
from tether.ports import Publication
from tether.weights.memory import MemoryStore


def weights(value: float = 1.0) -> dict[str, torch.Tensor]:
    return {"a": torch.full((2, 3), value), "b": torch.arange(4.0)}


def test_the_fingerprint_is_of_the_published_values() -> None:
    store = MemoryStore("bfloat16", keep=3)
    first = store.publish(0, weights(1.0))
    below_rounding = store.publish(1, weights(1.0 + 2**-12))
    other = store.publish(2, weights(1.5))
    assert first.fingerprint == below_rounding.fingerprint
    assert first.fingerprint != other.fingerprint


def test_a_version_never_published_is_an_error() -> None:
    with pytest.raises(ModelError, match="it holds nothing"):
        MemoryStore("float32").fetch(Publication(version=3, fingerprint="", num_bytes=0))


def test_a_record_of_another_store_is_an_error() -> None:
    here, there = MemoryStore("float32"), MemoryStore("float32")
    here.publish(0, weights(1.0))
    with pytest.raises(ModelError, match="must be the one that was published here"):
        here.fetch(there.publish(0, weights(2.0)))
