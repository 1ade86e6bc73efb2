import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from tether.errors import ConfigError, ModelError, NonFiniteError, StalledError, TetherError
from tether.journal import RunView
from tether.models.loading import load_model, save_model
from tether.records import Prompt

from .quick import assert_books_balance, controller_of, go, journal, train


def histograms(run: RunView) -> list[set[int]]:
    return [{int(k) for k in event.metrics["staleness/histogram"].value} for event in run.steps]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunView:
    return train(tmp_path_factory.mktemp("runs") / "one")


def test_two_runs_with_one_seed_write_the_same_journal(run, tmp_path):
    one, other = journal(run.folder), journal(train(tmp_path / "other").folder)
    assert one.keys() == other.keys()
    for name in one:
        assert one[name] == other[name], name
    weights = [load_model(str(folder / "model")).model.state_dict() for folder in (run.folder, tmp_path / "other")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_another_seed_writes_another_journal(run, tmp_path):
    other = journal(train(tmp_path / "other", "run.seed=1", "run.steps=2").folder)
    same = set(journal(run.folder)["events"]) & set(other["events"])
    assert {json.loads(line)["event"] for line in same} <= {"start", "publish"}


def test_staleness_is_0_to_lag_less_one_in_the_first_block_then_lag_to_twice_lag_less_one(run):
    assert histograms(run) == [{0}, {1}, {2}, {3}, {2}, {3}]
    assert run.config["derived"]["staleness_bound"] == 3


def test_a_run_tells_its_whole_life_in_order(run):
    kinds = [(event.event, event.step, event.version) for event in run.events]
    assert kinds == [
        ("start", 0, 0),
        *[(told, 0, 0) for told in ("publish", "check")],
        ("eval", 0, 0),
        *[("step", s, s) for s in (1, 2)],
        *[(told, 2, 2) for told in ("publish", "check")],
        *[("step", s, s) for s in (3, 4)],
        ("eval", 4, 4),
        *[(told, 4, 4) for told in ("publish", "check")],
        *[("step", s, s) for s in (5, 6)],
        ("eval", 6, 6),
        *[(told, 6, 6) for told in ("publish", "check")],
        ("finish", 6, 6),
    ]
    assert run.status == "finished"


def test_the_ledger_of_a_finished_run_balances(run):
    assert_books_balance(run, groups=12, size=4)
    assert run.balance() == {"trained": 48}
    assert run.last("finish").metrics["ledger/balance"].value == {"trained": 48.0}
    for line in run.ledger:
        assert line.step == 1 + int(line.group[1:]) // 2
        assert line.started_s <= line.finished_s <= line.used_s
        assert line.version_first == line.version_last == 2 * max(0, (line.step - 1) // 2 - 1)


def test_every_metric_of_the_contract_is_written_at_every_step(run):
    mismatch = ("abs_mean", "variance", "k1", "k2", "k3", "p99", "max", "is_deviation_fraction", "ess")
    sat = ("q", "gate_fraction", "newly_cut_fraction", "effective_radius_low", "effective_radius_high")
    wanted = {"reward/mean", "staleness/mean", "staleness/max", "staleness/histogram"}
    wanted |= {"policy/entropy", "policy/grad_norm", "policy/lr", "clip/fraction", "clip/outward_fraction"}
    wanted |= {"throughput/tokens_per_s", "time/virtual_s", "time/train_s"}
    wanted |= {f"mismatch/{name}" for name in mismatch} | {f"sat/{name}" for name in sat}
    for event in run.steps:
        assert wanted <= event.metrics.keys()


def test_stored_samples_are_those_that_were_trained(run):
    assert run.rollouts
    lines = {line.id: line for line in run.ledger}
    for sample in run.rollouts:
        line = lines[sample.id]
        assert (sample.step, sample.reward) == (line.step, line.reward)
        assert len(sample) == line.num_completion_tokens
        assert (sample.staleness == sample.step - 1 - sample.version).all()
        assert sample.trainable.all()
        assert abs(sample.mismatch).max() < 0.5
        assert "".join(sample.token_texts).startswith(sample.completion)


def test_the_engine_really_differs_from_the_trainer_and_in_float32_it_does_not(run, tmp_path):
    first = run.steps[0].metrics
    assert first["mismatch/abs_mean"].value > 1e-4
    same = train(tmp_path / "same", "engine.dtype=float32", "run.steps=1", "eval.prompts=0")
    assert same.steps[0].metrics["mismatch/max"].value < 1e-5


def test_sync_has_no_staleness(tmp_path):
    run = train(tmp_path / "run", "pipeline.regime=sync", "pipeline.lag=1", "eval.prompts=0", "run.steps=4")
    assert histograms(run) == [{0}] * 4
    assert_books_balance(run, groups=8, size=4)
    assert [line.version_first for line in run.ledger] == [line.step - 1 for line in run.ledger]


def test_lag_one_has_staleness_0_then_1(tmp_path):
    run = train(tmp_path / "run", "pipeline.lag=1", "eval.prompts=0", "run.steps=4")
    assert histograms(run) == [{0}, {1}, {1}, {1}]


@pytest.mark.parametrize("preset", ["grpo", "dr-grpo", "paper/sat-grpo"])
def test_other_presets_run(tmp_path, preset):
    run = train(
        tmp_path / "run", f"algorithm.preset={preset}", "trainer.token_budget=60", "run.steps=2", "eval.prompts=0"
    )
    assert run.status == "finished"
    assert ("sat/q" in run.steps[0].metrics) == ("sat" in preset)


def test_kl_entropy_and_an_anchor_with_tis_run_together(tmp_path):
    settings = (
        "algorithm.preset=grpo",
        "algorithm.proximal=anchor",
        "algorithm.corrections=[{name='tis'}]",
        "algorithm.kl={name='k3', coefficient=0.01}",
        "algorithm.entropy=0.001",
    )
    run = train(tmp_path / "run", *settings, "run.steps=3", "eval.prompts=0")
    assert run.steps[0].metrics["policy/kl_reference"].value == pytest.approx(0.0, abs=1e-7)
    assert run.steps[2].metrics["policy/kl_reference"].value > 0
    assert {event.metrics["clip/fraction"].value for event in run.steps} == {0.0}


def test_a_bfloat16_trainer_runs_and_saves_in_the_dtype_of_the_model(tmp_path):
    run = train(tmp_path / "run", "trainer.dtype=bfloat16", "run.steps=2", "eval.prompts=0")
    assert run.status == "finished"
    assert load_model(str(run.model)).model.dtype == torch.float32


def test_checkpoints_are_models_of_their_step(tmp_path):
    run = train(tmp_path / "run", "checkpoint.every=2", "run.steps=5", "eval.prompts=0")
    folders = sorted((run.folder / "checkpoints").iterdir())
    assert [folder.name for folder in folders] == ["step-000002", "step-000004"]
    two, four = (load_model(str(folder)).model.state_dict() for folder in folders)
    assert not all(torch.equal(two[name], four[name]) for name in two)


# --- what stops a run


def stopped(controller, error: type[BaseException], match: str | None = None) -> RunView:
    """The readable run directory of a run that an error stopped; the error came out as it was."""
    with pytest.raises(error, match=match):
        go(controller)
    run = RunView(controller.writer.folder)
    assert not run.is_torn
    assert run.status == "failed"
    assert run.model is None
    assert_books_balance(run, groups=12, size=4, admitted_only=True)
    assert not controller.loops.ledger.open_lines
    assert run.last("fail").metrics["ledger/balance"].value == run.balance()
    return run


def test_weights_that_stop_being_numbers_stop_the_run_and_leave_the_batch(tmp_path, monkeypatch):
    controller = controller_of(tmp_path / "run")
    after = controller.after_step

    async def poison(number, step, report, standing):
        await after(number, step, report, standing)
        if number == 3:
            with torch.no_grad():
                next(controller.loops.learner.trainer.policy.model.parameters())[:] = float("nan")

    monkeypatch.setattr(type(controller), "after_step", lambda self, *args: poison(*args))
    said = r"logp of the trainer is nan at token \d+ of rollout 'g\d+/\d' \(id \d+, version 0, update 3\)"
    run = stopped(controller, NonFiniteError, said)
    note = run.last("fail").note
    assert "No update was made" in note
    assert note.endswith("The batch is in nonfinite-batch.pt of the run directory")
    assert len(run.steps) == 3
    dumped = torch.load(run.folder / "nonfinite-batch.pt")
    assert {row["rollout"] for row in dumped["rows"]} == {f"g{g}/{m}" for g in (6, 7) for m in range(4)}
    assert run.balance()["trained"] == 24


def spoil(controller, value: float = float("nan")) -> None:
    with torch.no_grad():
        next(controller.loops.learner.trainer.policy.model.parameters())[0, 0] = value


def test_weights_that_are_no_numbers_are_not_published(tmp_path):
    controller = controller_of(tmp_path / "run", ["eval.prompts=0"])
    spoil(controller)
    with pytest.raises(NonFiniteError, match=r"weights must be finite; in the model being trained 'model\."):
        go(controller)
    assert [event.event for event in RunView(tmp_path / "run").events] == ["start", "fail"]


def test_weights_that_the_last_update_spoiled_are_not_saved_as_a_success(tmp_path, monkeypatch):
    controller = controller_of(tmp_path / "run", ["eval.prompts=0"])
    trainer, step = controller.loops.learner.trainer, type(controller.loops.learner.trainer).step

    def spoiling(self, batch, *updates):
        report = step(self, batch, *updates)
        if trainer.updates == controller.loops.steps:
            spoil(controller, float("inf"))
        return report

    monkeypatch.setattr(type(trainer), "step", spoiling)
    stopped(controller, NonFiniteError, r"weights must be finite; in the model .* has 1 of \d+ that are not")
    assert not (tmp_path / "run" / "model").exists()


def test_a_rollout_whose_logits_are_no_numbers_is_the_one_that_failed(tmp_path, monkeypatch):
    controller = controller_of(tmp_path / "run", ["eval.prompts=0", "checks.prompts=0"])

    engine = controller.loops.rolling.pool.engines["engine-0"]
    generate = engine.generate

    async def broken(request):
        if request.id == "g0/3":
            raise NonFiniteError("logits must be finite", rollout_id=request.id)
        return await generate(request)

    monkeypatch.setattr(engine, "generate", broken, raising=False)
    run = stopped(controller, NonFiniteError, "logits must be finite")
    assert run.balance()["failed:non-finite"] == 1
    assert set(run.balance()) == {"failed:non-finite", "in-flight"}


def test_a_task_without_any_signal_is_warned_about_once(tmp_path):
    settings = ["engine.max_tokens=1", "run.steps=12", "eval.prompts=0"]
    controller = controller_of(tmp_path / "run", settings)
    go(controller)
    warnings = [event for event in RunView(tmp_path / "run").events if event.event == "warn"]
    assert [event.step for event in warnings] == [10]
    assert "nothing is learned from them (truncated answers: 100%)" in warnings[0].note


def broken_reward(prompt: Prompt, response: str) -> float:
    if prompt.id.endswith("/5"):
        raise LookupError("the judge is away")
    return 1.0


def test_a_reward_that_raises_fails_its_rollouts_and_the_run_goes_on(tmp_path):
    run = train(tmp_path / "run", f"task.reward={__name__}:broken_reward", "eval.prompts=0")
    assert run.status == "finished"
    assert run.balance() == {"failed:reward": 4, "trained": 48}
    failed = [line for line in run.ledger if line.fate == "failed:reward"]
    assert {(line.group, line.reward) for line in failed} == {("g5", None)}
    assert_books_balance(run, groups=13, size=4)
    (warning,) = (event.note for event in run.events if event.event == "warn")
    assert "a rollout failed, and its group goes on without it" in warning
    assert "LookupError: the judge is away" in warning


def test_a_group_goes_on_with_the_rollouts_that_did_not_fail(tmp_path):
    run = train(tmp_path / "run", f"task.reward={__name__}:reward_of_the_third", "eval.prompts=0", "run.steps=2")
    assert run.status == "finished"
    fates = {line.id: line.fate for line in run.ledger}
    assert {id for id, fate in fates.items() if fate == "failed:reward"} == {"g0/2"}
    assert [fates[f"g0/{member}"] for member in (0, 1, 3)] == ["trained"] * 3


def test_rewards_that_all_raise_stop_the_run_and_the_message_says_how_many_may(tmp_path):
    settings = [f"task.reward={__name__}:reward_that_raises", "eval.prompts=0", "faults.most_failed=7"]
    controller = controller_of(tmp_path / "run", settings)
    said = r"7 rollouts of task 'arithmetic' failed in a row, the most that faults\.most_failed allows; the last: .*no"
    run = stopped(controller, TetherError, said)
    assert 7 <= run.balance()["failed:reward"] <= 8  # those of one moment fail together
    assert set(run.balance()) == {"failed:reward", "in-flight"}
    assert "failed in a row" in run.last("fail").note


def reward_that_raises(prompt: Prompt, response: str) -> float:
    raise LookupError("no judge")


_JUDGED: list[str] = []


def reward_of_the_third(prompt: Prompt, response: str) -> float:
    if prompt.id.endswith("/0"):
        _JUDGED.append(response)
        if len(_JUDGED) == 3:
            raise LookupError("the third")
    return float(len(response) % 2)


def test_a_reward_of_your_own_is_trained_on_and_accuracy_stays_exact(tmp_path):
    run = train(tmp_path / "run", f"task.reward={__name__}:length_reward", "run.steps=2")
    lines = [line for line in run.ledger if line.reward]
    assert lines
    assert all(line.reward == (line.num_completion_tokens - 1) / 100 for line in lines)
    assert 0 <= run.evals[0].metrics["eval/accuracy"].value < 1


def length_reward(prompt: Prompt, response: str) -> float:
    return len(response) / 100


@pytest.mark.parametrize("how", ["raised in the work", "sent as a signal"])
def test_an_interrupt_in_mid_run_leaves_a_readable_run_with_every_fate(tmp_path, how):
    controller = controller_of(tmp_path / "run", ["eval.prompts=0"])
    step = controller.loops.learner.trainer.step

    def interrupted(batch, *updates):
        if controller.loops.learner.trainer.updates == 3:
            if how == "raised in the work":
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGINT)
        return step(batch, *updates)

    controller.loops.learner.trainer.step = interrupted
    run = stopped(controller, KeyboardInterrupt)
    assert run.last("fail").note == "interrupted"
    num_steps = 3 if how == "raised in the work" else 4  # a signal lets the step under way end
    assert run.balance()["trained"] == 8 * num_steps
    assert len(run.steps) == num_steps
    assert run.last("fail").version == controller.loops.learner.trainer.updates


def test_a_reward_that_hangs_is_broken_off_and_the_journal_says_where(tmp_path):
    settings = ["eval.prompts=0", "placement.hang_after_s=1.5", f"task.reward={__name__}:reward_that_hangs"]
    run = train(tmp_path / "run", *settings, "run.steps=3")
    assert run.status == "finished"
    (warning,) = (event.note for event in run.events if event.event == "warn")
    assert "in reward_that_hangs" in warning
    assert "one piece of work has taken more than" in warning
    assert {line.group for line in run.ledger if line.fate == "failed:reward"} == {"g4"}


def reward_that_hangs(prompt: Prompt, response: str) -> float:
    if prompt.id.endswith("/4"):
        signal.pause()
    return 1.0


def test_loops_that_wait_for_each_other_are_named_in_the_journal(tmp_path):
    controller = controller_of(tmp_path / "run", ["eval.prompts=0"])

    controller.loops.rolling.buffer.free = lambda: None
    run = stopped(controller, StalledError, r"the trainer waited .* for a batch, .*no rollout is under way; 0 groups")
    assert "0 slots are free" in run.last("fail").note


def test_a_run_of_steps_that_train_nothing_is_stopped_with_a_reason(tmp_path, monkeypatch):
    settings = ["run.steps=12", "eval.prompts=0"]
    controller = controller_of(tmp_path / "run", settings)
    from tether.pipeline.trainer import StepReport

    nothing = StepReport(updated=False, metrics={}, logp={}, staleness={})
    controller.loops.learner.trainer.step = lambda step, *updates: nothing
    with pytest.raises(TetherError, match=r"10 steps in a row held no trainable token \(the last at step 10\)"):
        go(controller, settings)
    run = RunView(tmp_path / "run")
    assert [event.event for event in run.events if event.step][:10] == ["skip"] * 10
    assert run.balance()["filtered:no-advantage"] == 80
    assert {event.version for event in run.events} == {0}


def test_an_error_in_an_evaluation_closes_the_books_too(tmp_path):
    controller = controller_of(tmp_path / "run", ["eval.every=2"])
    evaluator, calls = controller.loops.learner.evaluator, []

    async def second_fails(version, weights):
        calls.append(1)
        if len(calls) == 2:
            raise ModelError("no room for an evaluation")
        return await evaluator(version, weights)

    controller.loops.learner.evaluator = second_fails
    run = stopped(controller, ModelError, "no room for an evaluation")
    assert len(run.steps) == 2


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(other, marks=pytest.mark.long) for other in (signal.SIGTERM, signal.SIGHUP))],
    ids=lambda s: s.name,
)
def test_a_signal_closes_the_books_keeps_the_weights_and_gives_the_shells_exit_code(tmp_path, number):
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from tether.cli.app import main; main()"
    )
    settings = ["run.steps=100000", "eval.prompts=0", "pipeline.lag=2", "pipeline.prompts_per_step=2"]
    command = [sys.executable, "-c", script, "train", "--out", str(tmp_path / "run")]
    command += [part for setting in settings for part in ("--set", setting)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step"):
                process.send_signal(number)
                break
        printed = process.stdout.read()
        assert process.wait(60) == 128 + number
    run = RunView(tmp_path / "run")
    assert "interrupted" in printed
    assert "Traceback" not in printed
    assert run.is_interrupted
    assert_books_balance(run, groups=200000, size=8, admitted_only=True)
    step = run.last("fail").step
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == [f"step-{step:06d}"]
    assert (tmp_path / "run" / "report.html").is_file()


def test_the_default_reference_is_the_model_as_it_was_read(tmp_path):
    settings = ["model.dtype=bfloat16", "algorithm.kl={name='k3', coefficient=0.01}", "run.steps=2", "eval.prompts=0"]
    run = train(tmp_path / "run", *settings)
    assert run.steps[0].metrics["policy/kl_reference"].value == pytest.approx(0.0, abs=1e-7)


def test_a_reference_with_other_words_is_refused_before_the_run_directory_is_made(tmp_path):
    save_model(load_model("tiny-moe"), tmp_path / "other")
    tokenizer = tmp_path / "other" / "tokenizer.json"
    text = json.loads(tokenizer.read_text())
    vocab = text["model"]["vocab"]
    vocab["1"], vocab["2"] = vocab["2"], vocab["1"]
    tokenizer.write_text(json.dumps(text))
    settings = [f"model.reference={tmp_path / 'other'}", "algorithm.kl=k3"]
    with pytest.raises(ConfigError, match=r"model\.reference must have the tokenizer of model\.path"):
        controller_of(tmp_path / "run", settings)
    assert not (tmp_path / "run").exists()
