"""The math reward: right answers give 1, all others 0 with their status; what no answer can help fails the rollout."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.verifier import standins
from tests.verifier.test_pool import ROOT
from tether.config.bind import bind, describe_plugin, plugin
from tether.errors import ConfigError, DataError, RewardError, VerifierError
from tether.records import Answer, Grade, Prompt
from tether.registry import REWARDS
from tether.rewards import math as module
from tether.rewards.math import Math
from tether.rewards.scoring import grade
from tether.verifier import pool
from tether.verifier.policies import Policies


def prompt_with(reference):
    return Prompt(id="dapo/train/0/0", text="How many?", token_ids=(1,), reference=reference)


@pytest.fixture
def standing_in(monkeypatch):
    """Verifiers of their own, whose judges do what an answer says."""
    monkeypatch.setattr(pool, "JUDGE", standins.JUDGE)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    module._verifier.cache_clear()
    yield
    module._verifier.cache_clear()


@pytest.mark.parametrize(
    ("response", "reference", "value", "status"),
    [
        (r"so \boxed{\frac{1}{2}}", "0.5", 1.0, "correct"),
        (r"\boxed{\sqrt{8}}", r"2\sqrt{2}", 1.0, "correct"),
        (r"\boxed{3}", "2", 0.0, "wrong"),
        (r"\boxed{}", "2", 0.0, "no_answer"),
        (r"\boxed{10^{10^{10}}}", "1", 0.0, "too_large"),
        (r"\boxed{\text{Blue}}", "blue", 1.0, "correct"),
        (
            r"\boxed{\frac{x^2}{4}+\frac{y^2}{3}=1}",
            r"$\frac{x^2}{16}+\frac{y^2}{12}=1$",
            0.0,
            "wrong",
        ),
    ],
)
def test_only_right_answers_are_worth_one(response, reference, value, status):
    given = Math()(prompt_with(reference), Answer(response))
    assert (given.value, given.status) == (value, status)


def test_it_judges_from_any_thread():
    told: list[Grade] = []
    ask = lambda: told.append(Math()(prompt_with(r"\frac13"), Answer(r"\boxed{\frac13}")))  # noqa: E731
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert [given.value for given in told] == [1.0]


def test_modes_and_policies_are_options():
    percent = prompt_with(r"50\%"), Answer(r"\boxed{50}")
    strict = Math(policies=Policies(percent="value"))
    assert [Math()(*percent).value, strict(*percent).value] == [1.0, 0.0]
    assert Math()(*percent).stage.endswith(":percent")
    hundredfold = prompt_with("200"), Answer(r"\boxed{2}")
    assert [Math(mode=mode)(*hundredfold).value for mode in ("robust", "upstream", "strict-int")] == [0.0, 1.0, 0.0]


def test_a_recipe_can_set_every_option():
    table = {"name": "math", "mode": "robust", "workers": 2, "limit_s": 1, "policies": {"order": "kept"}}
    reward = plugin(REWARDS, table, "reward.parts[0]")
    assert reward == Math(workers=2, limit_s=1.0, policies=Policies(order="kept"))
    described = describe_plugin(REWARDS, reward)
    assert bind(Math, {key: value for key, value in described.items() if key != "name"}, "reward") == reward
    assert described["policies"]["order"] == "kept"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "upstream", "policies": Policies(order="kept")}, "policies belong to mode 'robust'"),
        ({"workers": 0}, "at least 1 worker"),
        ({"limit_s": 0.0}, "limit_s must be at least"),
    ],
)
def test_options_that_cannot_work_are_refused_when_they_are_made(options, said):
    with pytest.raises(ConfigError, match=said):
        Math(**options)


def test_an_undecided_answer_is_wrong_or_fails_its_rollout(standing_in):
    wrong, fail = Math(limit_s=0.3), Math(limit_s=0.3, undecided="fail")
    for act, status in {"spin": "timeout", "eat": "timeout", "crash": "parse_error", "raise": "parse_error"}.items():
        given = wrong(prompt_with("1"), Answer(act))
        assert (given.value, given.status) == (0.0, status)
        with pytest.raises(VerifierError, match="undecided is 'fail'"):
            fail(prompt_with("1"), Answer(act))
    assert fail(prompt_with("2"), Answer("1")).value == 0.0
    assert fail(prompt_with("1"), Answer("1")).value == 1.0


@pytest.mark.parametrize(
    ("mode", "reference"), [("strict-int", "1/2"), ("robust", "10^{10^{10}}"), ("robust", " "), ("upstream", "")]
)
def test_a_reference_that_cannot_be_read_is_a_fault_of_the_data(mode, reference):
    with pytest.raises(DataError, match=r"prompt dapo/train/0/0"):
        Math(mode=mode)(prompt_with(reference), Answer(r"\boxed{1}"))


def test_an_answer_that_is_too_large_is_wrong_and_no_fault_of_the_data():
    assert Math(undecided="fail")(prompt_with("1"), Answer(r"\boxed{100000000!}")).status == "too_large"


def test_a_verifier_that_cannot_start_fails_the_rollout_and_pays_nothing(monkeypatch, standing_in):
    monkeypatch.setattr(pool, "JUDGE", standins.BROKEN)
    with pytest.raises(RewardError, match=r"(?s)dapo/train/0/0 reward Math raised VerifierError: .*install it"):
        grade(Math(), prompt_with("1"), Answer("1", id="7"))
    monkeypatch.setattr(pool, "JUDGE", standins.JUDGE)
    module._verifier.cache_clear()
    assert grade(Math(), prompt_with("1"), Answer("1", id="7")).value == 1.0


def test_rewards_that_are_alike_share_their_workers(standing_in):
    a, b, other = Math(), pickle.loads(pickle.dumps(Math())), Math(limit_s=3.0)
    assert module._verifier(a) is module._verifier(b)
    assert module._verifier(a) is not module._verifier(other)
    with ThreadPoolExecutor(4) as threads:
        told = list(threads.map(lambda n: a(prompt_with(str(n)), Answer("7")).value, range(40)))
    assert told == [float(n == 7) for n in range(40)]
