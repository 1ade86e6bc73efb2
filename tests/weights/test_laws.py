"""What holds of every store that needs no Ray; Ray's own tests say the same of its."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tether.errors import ConfigError, ModelError
from tether.models.fingerprint import fingerprint
from tether.ports import WeightStore
from tether.weights import directory, memory
from tether.weights.directory import DirectoryStore
from tether.weights.memory import MemoryStore

Open = Callable[..., WeightStore]


@pytest.fixture(params=["memory", "directory"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "memory":
        return MemoryStore
    return lambda dtype, keep=2: DirectoryStore(tmp_path / "weights", dtype, keep=keep)


def weights(value: float = 1.0) -> dict[str, torch.Tensor]:
    table = torch.arange(6.0).reshape(2, 3) + value
    return {
        "table": table,
        "tied": table.detach(),
        "part": table[:1],
        "turned": table.t(),
        "parameter": torch.nn.Parameter(torch.full((4,), value)),
        "count": torch.tensor([2**40 + 1]),
        "bytes": torch.arange(32, dtype=torch.uint8),
        "flags": torch.tensor([True, False]),
        "empty": torch.zeros(0, 4),
        "scale": torch.tensor(value),
    }


def test_it_is_a_weight_store(open_store: Open) -> None:
    assert isinstance(open_store("float32"), WeightStore)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_fetched_are_the_published_values_in_the_published_dtype(open_store: Open, dtype: str) -> None:
    store, given_ = open_store(dtype), weights(1.0 / 3)
    publication = store.publish(0, given_)
    got = store.fetch(publication)
    assert got.keys() == given_.keys()
    for name, tensor in given_.items():
        is_float = tensor.is_floating_point()
        expected = tensor.detach().to(getattr(torch, dtype)) if is_float else tensor
        assert got[name].dtype == expected.dtype, name
        assert torch.equal(got[name], expected), name
        assert got[name].is_contiguous()
        assert not got[name].requires_grad
    assert fingerprint(got) == publication.fingerprint


def test_tied_weights_travel_once_and_come_back_tied(open_store: Open) -> None:
    table = torch.ones(5, 3)
    store = open_store("bfloat16")
    publication = store.publish(0, {"embedding": table, "head": table.detach(), "part": table[:1]})
    got = store.fetch(publication)
    assert got["embedding"] is got["head"]
    assert publication.num_bytes == (15 + 3) * 2


def test_every_store_gives_the_same_weights_the_same_name_and_size(tmp_path: Path) -> None:
    one = MemoryStore("bfloat16").publish(0, weights())
    other = DirectoryStore(tmp_path, "bfloat16").publish(0, weights())
    assert replace(other, where=None) == one


@settings(max_examples=15)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_publications_are_numbered_one_by_one_whatever_versions_they_skip(tmp_path_factory, gaps: list[int]) -> None:
    for store in (MemoryStore("float32"), DirectoryStore(tmp_path_factory.mktemp("w"), "float32")):
        versions = [sum(gaps[:i]) for i in range(len(gaps))]
        made = [store.publish(version, {"w": torch.ones(1)}) for version in versions]
        assert [publication.number for publication in made] == list(range(len(gaps)))
        assert [publication.version for publication in made] == versions


def test_a_publication_stays_what_it_was_when_the_weights_move_on(open_store: Open) -> None:
    live, store = weights(1.0), open_store("float32")
    publication = store.publish(0, live)
    live["table"] += 1.0
    assert store.fetch(publication)["table"].tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


def test_a_forgotten_version_is_an_error_that_says_what_there_is(open_store: Open) -> None:
    store = open_store("float32", keep=2)
    zero, eight, sixteen = (store.publish(v, weights(float(v))) for v in (0, 8, 16))
    assert store.fetch(eight)["scale"] == 8
    assert store.fetch(sixteen)["scale"] == 16
    with pytest.raises(ModelError, match=r"version 0 must still be in .* holds 8, 16 \(keep = 2\)"):
        store.fetch(zero)


def test_another_fingerprint_is_refused(open_store: Open) -> None:
    store = open_store("float32")
    publication = store.publish(0, weights())
    with pytest.raises(ModelError, match="must be the one that was published here"):
        store.fetch(replace(publication, fingerprint="0" * 64))


@pytest.mark.parametrize("version", [8, 7, 0])
def test_versions_must_increase(open_store: Open, version: int) -> None:
    store = open_store("float32")
    held = store.publish(8, weights())
    with pytest.raises(ModelError, match=f"got {version} after 8"):
        store.publish(version, weights(2.0))
    assert store.fetch(held)["scale"] == 1


def test_an_empty_publication_is_refused(open_store: Open) -> None:
    with pytest.raises(ModelError, match="must hold tensors"):
        open_store("float32").publish(0, {})


def test_settings_that_cannot_work_are_refused(open_store: Open) -> None:
    with pytest.raises(ConfigError, match="dtype"):
        open_store("int4")
    with pytest.raises(ConfigError, match="keep"):
        open_store("float32", keep=0)


def test_a_publication_that_fails_leaves_nothing_and_takes_no_number(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> str:
        raise MemoryError("no memory")

    store = open_store("float32")
    held = store.publish(0, weights())
    with monkeypatch.context() as patch:
        for module in (memory, directory):
            patch.setattr(module, "fingerprint", fails)
        with pytest.raises(MemoryError):
            store.publish(8, weights(2.0))
    assert store.fetch(held)["scale"] == 1
    assert store.publish(8, weights(2.0)).number == 1
