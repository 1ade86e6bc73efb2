import asyncio

import numpy as np
import pytest
import torch

from tests.engines.tiny import build, engine_of, state
from tether.errors import ConfigError
from tether.evals.evaluation import Evaluation, Protocol
from tether.evals.options import EvalOptions
from tether.evals.runner import Evaluator, Mark
from tether.ports import GenerationRequest
from tether.records import Prompt
from tether.weights.memory import MemoryStore


def questions(count: int, temperature: float = 1.0):
    prompts = [Prompt(id=f"p/{i}", text=str(i), token_ids=(2 + i % 9, 5), reference=str(i % 3)) for i in range(count)]
    requests = [
        GenerationRequest(id=p.id, prompt_ids=p.token_ids, seed=70 + i, max_tokens=6, temperature=temperature)
        for i, p in enumerate(prompts)
    ]
    return prompts, requests


def evaluator_of(model, is_correct, count: int = 12, temperature: float = 1.0) -> Evaluator:
    store = MemoryStore("float32")
    engine = engine_of(model, store=store, dtype="float32")

    def judge(request, prompt, completion) -> Mark:
        is_right = is_correct(request, prompt, completion)
        return Mark(is_right, "correct" if is_right else "wrong")

    return Evaluator(engine, store, protocol(temperature=temperature), questions(count, temperature), judge)


def protocol(samples: int = 1, temperature: float = 1.0) -> Protocol:
    return Protocol(task="p", criterion="own", seed=70, samples=samples, temperature=temperature, max_tokens=6)


@pytest.fixture(scope="module")
def model():
    return build("tied")


def ask(evaluator: Evaluator, version: int, weights) -> Evaluation:
    return asyncio.run(evaluator(version, weights))


def test_each_prompt_is_judged_once_with_its_own_request_and_completion(model):
    seen = []

    def is_correct(request, prompt, completion):
        seen.append((request.id, prompt.id, len(completion)))
        return prompt.reference == "0"

    evaluation = ask(evaluator_of(model, is_correct), 0, state(model))
    assert [(r, p) for r, p, _ in seen] == [(f"p/{i}", f"p/{i}") for i in range(12)]
    assert evaluation.correct.tolist() == [[i % 3 == 0] for i in range(12)]
    assert evaluation.length.tolist() == [[length] for *_, length in seen]
    assert evaluation.accuracy.value == pytest.approx(4 / 12)


def test_the_same_weights_answer_the_same(model):
    evaluator = evaluator_of(model, lambda r, p, c: int(c.token_ids.sum()) % 2 == 0, count=40)
    first, again = (ask(evaluator, 3, state(model)) for _ in range(2))
    assert (first.correct == again.correct).all()
    assert (first.length == again.length).all()
    assert first.version == again.version == 3


def test_new_weights_are_loaded_and_the_answers_are_theirs(model):
    other = state(build("tied", seed=1))
    evaluator = evaluator_of(build("tied"), lambda r, p, c: int(c.token_ids.sum()) % 2 == 0, count=40)
    before, after = ask(evaluator, 0, state(model)), ask(evaluator, 8, other)
    alone = ask(evaluator_of(build("tied", seed=1), lambda r, p, c: int(c.token_ids.sum()) % 2 == 0, 40), 8, other)
    assert (before.version, after.version) == (0, 8)
    assert (after.correct == alone.correct).all()
    assert (before.correct != after.correct).any()


def test_asking_does_not_touch_the_weights_it_is_given(model):
    weights = {name: tensor.clone() for name, tensor in state(model).items()}
    ask(evaluator_of(build("tied"), lambda r, p, c: True), 0, weights)
    assert all(torch.equal(weights[name], tensor) for name, tensor in state(model).items())


def test_metrics_carry_their_counts_and_cut_answers_are_told(model):
    with torch.no_grad():
        endless = build("tied")
        endless.get_output_embeddings().weight[1] = 0.0
    evaluator = evaluator_of(endless, lambda r, p, c: c.finish == "stop")
    metrics = ask(evaluator, 0, state(endless)).metrics()
    assert metrics["eval/accuracy"].count == metrics["eval/truncated_fraction"].count == 12.0
    assert {m.merge for name, m in metrics.items() if name.endswith(("_low", "_high"))} == {"last"}
    total = metrics["eval/truncated_fraction"].value + metrics["eval/accuracy"].value
    assert total == pytest.approx(1.0)
    assert metrics["eval/truncated_fraction"].value > 0.5
    assert 0 < metrics["eval/length_mean"].value <= 6


def test_greedy_answers_do_not_depend_on_seeds(model):
    one = evaluator_of(model, lambda r, p, c: int(c.token_ids.sum()) % 2 == 0, temperature=0.0)
    other = evaluator_of(model, lambda r, p, c: int(c.token_ids.sum()) % 2 == 0, temperature=0.0)
    other._requests = tuple(
        GenerationRequest(id=r.id, prompt_ids=r.prompt_ids, seed=r.seed + 999, max_tokens=6, temperature=0.0)
        for r in one._requests
    )
    a, b = ask(one, 0, state(model)), ask(other, 0, state(model))
    assert (a.correct == b.correct).all()
    assert (a.length == b.length).all()


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"every": 0}, [0, 7]),
        ({"every": 3}, [0, 3, 6, 7]),
        ({"every": 7}, [0, 7]),
        ({"every": 100}, [0, 7]),
        ({"every": 3, "prompts": 0}, []),
    ],
)
def test_evaluations_are_due_before_after_and_every_so_often(options, steps):
    assert [s for s in range(8) if EvalOptions(**options).due(s, 7)] == steps


@pytest.mark.parametrize("name", ["every", "prompts"])
def test_negative_settings_are_refused(name):
    with pytest.raises(ConfigError, match=f"eval.{name} must be >= 0; got -1"):
        EvalOptions(**{name: -1})


def test_arrays_of_an_evaluation_are_a_row_a_prompt_and_an_entry_a_sample(model):
    evaluation = ask(evaluator_of(model, lambda r, p, c: False), 0, state(model))
    assert {evaluation.correct.shape, evaluation.length.shape, evaluation.truncated.shape} == {(12, 1)}
    assert evaluation.correct.dtype == np.bool_
    assert evaluation.accuracy.low == 0.0
