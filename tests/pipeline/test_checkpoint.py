import json
from pathlib import Path

import pytest

from tether.errors import ConfigError, ModelError, ResumeError
from tether.pipeline.checkpoint import CheckpointOptions, Checkpoints

OFFSETS = {"events.jsonl": 3, "ledger.jsonl": 2, "rollouts.jsonl": 0}


def save(checkpoints: Checkpoints, step: int, *, error: Exception | None = None) -> Path:
    def write(folder: Path) -> None:
        (folder / "state").mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(bytes([step]) * 100)
        if error is not None:
            raise error

    def run(state: Path) -> None:
        (state / "run.pt").write_bytes(b"state")

    checkpoints.put(write, step=step, run=run, offsets=OFFSETS, keep=2)
    return checkpoints.model.parent / "checkpoints" / f"step-{step:06d}"


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def newest(checkpoints: Checkpoints) -> tuple[int | None, list[str]]:
    told: list[str] = []
    found = checkpoints.newest(told.append, OFFSETS)
    return (None if found is None else found.step), told


def test_the_newest_are_kept_and_the_newest_of_them_is_opened(checkpoints, home):
    for step in (2, 4, 6, 10):
        save(checkpoints, step)
    assert sorted(path.name for path in home.iterdir()) == ["step-000006", "step-000010"]
    found = checkpoints.newest(pytest.fail, OFFSETS)
    assert found is not None
    assert (found.step, found.offsets, found.state) == (10, OFFSETS, home / "step-000010" / "state")


def test_without_a_checkpoint_there_is_none(checkpoints):
    assert newest(checkpoints) == (None, [])


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: (folder / "model.safetensors").write_bytes(b"\x04" * 99),
        lambda folder: (folder / "model.safetensors").write_bytes(b"\x05" * 100),
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "state" / "run.pt").write_bytes(b"stat3"),
        lambda folder: (folder / "state" / "manifest.json").unlink(),
        lambda folder: (folder / "state" / "manifest.json").write_text("{"),
        lambda folder: (folder / "state" / "manifest.json").write_text("[]"),
        lambda folder: (folder / "state" / "manifest.json").write_text('{"schema": 99, "step": 4}'),
        lambda folder: (folder / "state" / "manifest.json").write_text(
            '{"schema": 2, "step": 4, "offsets": {}, "files": {}}'
        ),
        lambda folder: (folder / "state" / "manifest.json").write_text(
            json.dumps({"schema": 2, "step": 4, "files": [], "offsets": OFFSETS})
        ),
    ],
)
def test_a_checkpoint_that_is_not_what_was_written_is_skipped_with_a_message(checkpoints, home, harm):
    save(checkpoints, 2)
    harm(save(checkpoints, 4))
    step, told = newest(checkpoints)
    assert step == 2
    assert len(told) == 1
    assert "step-000004 is skipped" in told[0]


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        RuntimeError("[enforce fail] . PytorchStreamWriter failed"),
        ModelError("cannot write the model"),
    ],
)
def test_a_disk_that_is_full_is_one_message_and_leaves_the_earlier_ones_whole(checkpoints, home, error):
    save(checkpoints, 2)
    with pytest.raises(ResumeError, match=r"cannot write the checkpoint of step 4 .* the earlier ones are whole"):
        save(checkpoints, 4, error=error)
    assert [path.name for path in home.iterdir()] == ["step-000002"]
    assert newest(checkpoints) == (2, [])


def test_what_an_earlier_process_left_half_written_is_no_checkpoint_and_is_swept_away(checkpoints, home):
    for name in (".step-000004.partial", "..step-000004.partial.x1y2"):
        (home / name / "state").mkdir(parents=True)
    assert newest(checkpoints) == (None, [])
    save(checkpoints, 2)
    assert [path.name for path in home.iterdir()] == ["step-000002"]


def test_a_checkpoint_made_again_replaces_the_one_of_its_step(checkpoints):
    (save(checkpoints, 2) / "state" / "run.pt").write_bytes(b"harmed")
    save(checkpoints, 2)
    assert newest(checkpoints) == (2, [])


def test_later_checkpoints_are_named_in_order(checkpoints, home):
    for step in (2, 4):
        save(checkpoints, step)
    assert [path.name for path in checkpoints.later_than(2)] == ["step-000004"]


@pytest.mark.parametrize(("every", "due"), [(0, []), (1, [1, 2, 3, 4]), (2, [2, 4])])
def test_one_is_due_after_every_so_many_steps(every, due):
    assert [step for step in range(1, 5) if CheckpointOptions(every=every).due(step)] == due


def test_a_run_whose_checkpoints_are_all_of_another_version_is_not_started_over(checkpoints, home):
    manifest = save(checkpoints, 2) / "state" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "schema": 1}))
    with pytest.raises(ResumeError, match=r"step-000002 .* it has schema 1, not 3; resume with the version that wrote"):
        newest(checkpoints)
    save(checkpoints, 4)
    assert newest(checkpoints) == (4, [])


@pytest.mark.parametrize("options", [{"every": -1}, {"keep": 0}])
def test_settings_that_keep_nothing_are_refused(options):
    with pytest.raises(ConfigError, match="checkpoint needs every >= 0 and keep >= 1"):
        CheckpointOptions(**options)


def test_a_checkpoint_whose_journal_has_lost_lines_is_skipped_for_an_earlier_one(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 2)
    told: list[str] = []
    assert checkpoints.newest(told.append, {**OFFSETS, "ledger.jsonl": 1}) is None
    assert "step-000002 is skipped: ledger.jsonl has lost lines that it had then" in told[0]


def test_what_somebody_else_keeps_beside_the_checkpoints_is_not_touched(checkpoints, home):
    save(checkpoints, 2)
    (home / "step-000002-best").mkdir()
    (home / "step-notes.txt").write_text("mine")
    (home / ".hidden").mkdir()
    for step in (4, 6, 8):
        save(checkpoints, step)
    assert sorted(path.name for path in home.iterdir()) == [
        ".hidden", "step-000002-best", "step-000006", "step-000008", "step-notes.txt",
    ]  # fmt: skip
    assert newest(checkpoints) == (8, [])
