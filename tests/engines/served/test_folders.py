from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tether.engines.filed import Filed
from tether.engines.served.folders import Folders
from tether.errors import ConfigError, ModelError
from tether.models.catalog import folder_of
from tether.models.loading import load_model, load_skeleton
from tether.ports import Publication
from tether.weights.directory import DirectoryStore
from tether.weights.memory import MemoryStore


@pytest.mark.parametrize("name", ["tiny-moe", "tiny-dense"])
def test_a_folder_holds_what_the_models_own_files_hold(name: str, tmp_path: Path) -> None:
    store = MemoryStore("float32")
    folders = Folders(store, Filed(load_skeleton(name)), str(tmp_path))
    published = store.publish(3, load_model(name).model.state_dict())
    folder, arrived = folders.take(published)
    assert arrived == published.fingerprint
    wrote, own = load_file(folder / "model.safetensors"), load_file(folder_of(name) / "model.safetensors")
    assert wrote.keys() == own.keys()
    assert all(torch.equal(wrote[key], own[key]) for key in own)


def test_a_folder_that_a_store_wrote_is_read_where_it_lies_if_its_names_are_those_of_files(tmp_path: Path) -> None:
    for name, is_there in (("tiny-dense", True), ("tiny-moe", False)):
        store = DirectoryStore(tmp_path / name, "float32")
        published = store.publish(0, load_model(name).model.state_dict())
        folders = Folders(store, Filed(load_skeleton(name)), str(tmp_path / "mine"))
        folder, _ = folders.take(published)
        assert (str(folder) == published.where) == is_there
        folders.sweep(folder)
        assert folder.is_dir()


def test_what_arrived_otherwise_than_announced_is_refused_before_it_is_written(tmp_path: Path) -> None:
    store = MemoryStore("float32", keep=2)
    weights = load_model("tiny-dense").model.state_dict()
    first, other = store.publish(0, weights), store.publish(8, {name: t + 1 for name, t in weights.items()})

    class Confused(MemoryStore):
        def fetch(self, publication: Publication) -> Mapping[str, torch.Tensor]:
            return store.fetch(other)

    folders = Folders(Confused("float32"), Filed(load_skeleton("tiny-dense")), str(tmp_path))
    with pytest.raises(ModelError, match="was announced as"):
        folders.take(first)
    assert not list(folders.home.iterdir())


def test_old_folders_are_swept_and_all_go_with_the_engine(tmp_path: Path) -> None:
    store = MemoryStore("float32", keep=3)
    folders = Folders(store, Filed(load_skeleton("tiny-dense")), str(tmp_path))
    weights = load_model("tiny-dense").model.state_dict()
    first, _ = folders.take(store.publish(0, weights))
    second, _ = folders.take(store.publish(8, weights))
    folders.sweep(second)
    assert [first.exists(), second.exists()] == [False, True]
    home = folders.home
    del folders
    assert not home.exists()


def test_a_folder_that_cannot_be_is_refused_with_the_key_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"must be one that can be written to: .*; set engine\.folder"):
        Folders(MemoryStore("float32"), Filed(load_skeleton("tiny-dense")), str(tmp_path / "file" / "below"))
