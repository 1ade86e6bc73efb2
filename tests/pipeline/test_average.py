"""The average of the weights that the proximal ewma stands for, kept beside the optimizer."""

from __future__ import annotations

import copy

import pytest
import torch

from tether.errors import ResumeError
from tether.models.policy import Policy
from tether.proximal.ewma import EWMAProximal

from .small import Bench, algorithm_of, loaded_of, step_of

DECAY = 0.5


@pytest.fixture(scope="module")
def dense() -> Bench:
    return Bench(loaded_of("tied"))


def trainer_of(bench: Bench, **proximal):
    algorithm = algorithm_of("ppo-ewma", proximal={"name": "ewma", "decay": DECAY, **proximal})
    return bench.trainer(algorithm, lr=1e-2)


def parameters(trainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trainer.policy.model.named_parameters()}


def test_the_average_is_the_bias_corrected_one_of_all_weights_so_far(dense):
    trainer, step = trainer_of(dense), step_of(dense.groups)
    history = [parameters(trainer)]
    for _ in range(3):
        trainer.step(step)
        history.append(parameters(trainer))
    counts = [DECAY**age for age in range(len(history))][::-1]
    for name, mean in trainer.state()["average"]["mean"].items():
        wanted = sum(count * weights[name] for count, weights in zip(counts, history, strict=True)) / sum(counts)
        torch.testing.assert_close(mean, wanted, rtol=1e-5, atol=1e-7)


def test_the_proximal_log_probs_are_those_of_a_model_that_holds_the_average(dense):
    trainer, step = trainer_of(dense), step_of(dense.groups)
    trainer.step(step)
    inputs = step.micro_batches[0].inputs
    under_average = trainer._average.logp(inputs)
    current = trainer.policy(inputs, temperature=1.0).logp.detach()
    held = copy.deepcopy(dense.loaded)
    held.model.load_state_dict(trainer.state()["average"]["mean"], strict=False)
    wanted = Policy(held)(inputs, temperature=1.0).logp.detach()
    torch.testing.assert_close(under_average, wanted, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(under_average, current, atol=1e-4)
    torch.testing.assert_close(trainer.policy(inputs, temperature=1.0).logp.detach(), current, rtol=0, atol=0)


def test_the_first_update_is_clipped_against_the_weights_themselves(dense):
    trainer = trainer_of(dense)
    inputs = step_of(dense.groups).micro_batches[0].inputs
    assert torch.equal(trainer._average.logp(inputs), trainer.policy(inputs, temperature=1.0).logp.detach())


@pytest.mark.parametrize(("reset_below", "resets"), [(0.0, 0), (1.0, 1)])
def test_the_average_starts_anew_where_too_few_tokens_survive(dense, reset_below, resets):
    trainer, step = trainer_of(dense, reset_below=reset_below), step_of(dense.groups)
    trainer.step(step)
    for _ in range(6):
        metrics = trainer.step(step).metrics
        if metrics["proximal/surviving_fraction"].value < 1:
            break
    assert metrics["proximal/surviving_fraction"].value < 1
    assert metrics["proximal/is_reset"].value == resets
    mean, now = trainer.state()["average"]["mean"], parameters(trainer)
    assert all(torch.equal(mean[name], now[name]) for name in now) == bool(resets)


def test_the_average_is_saved_and_goes_on_to_the_last_bit(dense):
    first, step = trainer_of(dense), step_of(dense.groups)
    first.step(step)
    saved = copy.deepcopy(first.state())
    first.step(step)
    wanted = copy.deepcopy(first.state()["average"])
    second = trainer_of(dense)
    second.restore(saved)
    second.step(step)
    got = second.state()["average"]
    assert got["weight"] == wanted["weight"]
    assert all(torch.equal(got["mean"][name], mean) for name, mean in wanted["mean"].items())


def test_a_checkpoint_without_an_average_is_refused(dense):
    saved = copy.deepcopy(dense.trainer().state())
    with pytest.raises(ResumeError, match="proximal ewma goes on with the average of the run"):
        trainer_of(dense).restore(saved)


def test_the_average_is_float32_whatever_the_weights_compute_in():
    algorithm = algorithm_of("ppo-ewma", proximal={"name": "ewma", "decay": DECAY})
    loaded = loaded_of("tied")
    loaded.model.to(torch.bfloat16)
    trainer = Bench(loaded).trainer(algorithm, lr=1e-2)
    trainer.step(step_of(Bench(loaded_of("tied")).groups))
    assert {mean.dtype for mean in trainer.state()["average"]["mean"].values()} == {torch.float32}


def test_the_usual_decay_follows_from_the_window():
    assert EWMAProximal(window=8).beta == pytest.approx(0.8)
