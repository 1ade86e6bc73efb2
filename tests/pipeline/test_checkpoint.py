from pathlib import Path

import pytest
import torch

from tether.errors import ConfigError
from tether.models.loading import load_model
from tether.pipeline.checkpoint import CheckpointOptions, Checkpoints


@pytest.fixture(scope="module")
def loaded():
    return load_model("tiny-moe")


def test_weights_are_saved_where_due_and_only_the_newest_are_kept(tmp_path: Path, loaded):
    checkpoints = Checkpoints(tmp_path, loaded, CheckpointOptions(every=2, keep=2), "float32")
    saved = [checkpoints.save(step) for step in range(1, 8)]
    assert [path.name if path else None for path in saved] == [
        None, "step-000002", None, "step-000004", None, "step-000006", None,
    ]  # fmt: skip
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-000004", "step-000006"]


def test_nothing_is_saved_on_the_way_unless_asked(tmp_path: Path, loaded):
    checkpoints = Checkpoints(tmp_path, loaded, CheckpointOptions(), "float32")
    assert [checkpoints.save(step) for step in range(1, 4)] == [None] * 3
    assert not list(tmp_path.iterdir())


def test_the_final_model_has_the_dtype_of_the_recipe_and_training_goes_on_in_its_own(tmp_path: Path, loaded):
    path = Checkpoints(tmp_path, loaded, CheckpointOptions(), "bfloat16").save_final()
    assert path == tmp_path / "model"
    assert loaded.model.dtype == torch.float32
    again = load_model(str(path), dtype="bfloat16")
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, loaded.model.state_dict()[name].bfloat16())


@pytest.mark.parametrize("options", [{"every": -1}, {"keep": 0}])
def test_settings_that_keep_nothing_are_refused(options):
    with pytest.raises(ConfigError, match="checkpoint needs every >= 0 and keep >= 1"):
        CheckpointOptions(**options)
