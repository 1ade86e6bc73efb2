from pathlib import Path

import torch

from tether.core.advantage import GRPO
from tether.errors import NonFiniteError
from tether.pipeline.nonfinite import DUMP_FILE, dump
from tether.pipeline.packing import credited

from .making import completion_of, group_of, rollout_of


def rows():
    rollouts = [rollout_of(f"g3/{m}", [3, 4], completion_of([5, 6 + m], version=[8, 9]), m) for m in range(2)]
    return credited([group_of(3, rollouts)], GRPO())


def test_a_dumped_batch_is_read_back_by_plain_torch(tmp_path: Path):
    error = dump(tmp_path, rows(), NonFiniteError("logp is nan"))
    assert str(error) == f"logp is nan. The batch is in {DUMP_FILE} of the run directory"
    dumped = torch.load(tmp_path / DUMP_FILE)
    assert dumped["error"] == "logp is nan"
    first, second = dumped["rows"]
    assert (first["rollout"], first["group"], first["reward"]) == ("g3/0", 3, 0.0)
    assert second["prompt_ids"].tolist() == [3, 4]
    assert second["token_ids"].tolist() == [5, 7]
    assert second["version"].tolist() == [8, 9]
    assert second["advantage"] > 0 > first["advantage"]


def test_a_dump_that_fails_does_not_hide_the_error(tmp_path: Path):
    error = dump(tmp_path / "no" / "such", rows(), NonFiniteError("logp is nan"))
    assert str(error).startswith("logp is nan. The batch could not be written to nonfinite-batch.pt: ")
