"""Any value at any key: a recipe that can run, or a ConfigError; never another exception, never a hang."""

import json
from contextlib import suppress

import pytest

from tether.config.build import check
from tether.config.recipe import Recipe, load
from tether.errors import ConfigError, TetherError

WITH_EVERYTHING = [
    'algorithm.kl={name="k3"}',
    "algorithm.corrections=[{name='decoupled', level='sequence'}]",
    "algorithm.proximal=ewma",
    "algorithm.step_size=vcpo",
    "algorithm.rule.dual_clip=3.0",
    "pipeline.max_staleness=99",
]
NASTY = [
    *("nan", "inf", "-inf", "1e300", "1e39", "1e21", "-1", "0", "1e-300", "-1e-300", "true", '"x"', '""', '"\\u0000"'),
    *("[]", "{}", "[1]", "[nan]", "[[]]", "[" * 3000, "1979-05-27", "x\udcff", "5\nseed=7", "9223372036854775807"),
    *("1" + "0" * 400, "1" + "0" * 5000, "0x" + "f" * 6000),
]


def values(table: dict, prefix: str = "") -> dict[str, object]:
    """Every table and key of a resolved recipe, by its dotted name."""
    found: dict[str, object] = {}
    for key, value in table.items():
        found[prefix + key] = value
        if isinstance(value, dict):
            found |= values(value, f"{prefix}{key}.")
    return found


def every() -> dict[str, object]:
    resolved = load(settings=WITH_EVERYTHING).resolved()
    return values({key: table for key, table in resolved.items() if key not in ("recipe", "derived")})


def numbers(kind: type) -> list[str]:
    return [key for key, value in every().items() if type(value) is kind]


def told(*settings: str) -> str:
    """What refuses these settings says."""
    with pytest.raises(ConfigError) as refused:
        load(settings=[*WITH_EVERYTHING, *settings])
    return str(refused.value)


@pytest.mark.parametrize("key", every())
def test_any_value_at_any_key_makes_a_recipe_or_a_config_error(key):
    for value in NASTY:
        with suppress(ConfigError):
            recipe = load(settings=[*WITH_EVERYTHING, f"{key}={value}"])
            assert isinstance(recipe, Recipe)
            json.dumps(recipe.resolved(), allow_nan=False)
            with suppress(TetherError):
                check(recipe)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("key", numbers(float))
def test_a_number_that_is_not_finite_is_refused_by_its_key(key, value):
    assert told(f"{key}={value}").startswith(f"{key} must be a finite number; got {float(value)}")


@pytest.mark.parametrize("key", numbers(float))
def test_a_number_that_float32_cannot_hold_is_refused_by_its_key(key):
    assert told(f"{key}=1e39").startswith(f"{key} must be a number that float32 can hold")
    assert told(f"{key}=1{'0' * 18}e300").startswith(key)


def test_a_number_that_float32_cannot_hold_is_refused_inside_lists_too():
    assert "trainer.betas must be a number that float32 can hold" in told("trainer.betas=[0.9, 1e300]")
    assert "algorithm.corrections[0].cap must be" in told("algorithm.corrections=[{name='tis', cap=1e300}]")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("run.steps=1000000001", "run.steps must be at most 1000000000; got 1000000001"),
        ("task.max_operations=1001", "max_operations must be at most 1000; got 1001"),
        ("engine.max_tokens=10000001", "engine.max_tokens must be at most 10000000; got 10000001"),
        ("engine.max_rows=1000001", "engine.max_rows must be at most 1000000; got 1000001"),
        ("engine.yield_every=10000001", "engine.yield_every must be at most 10000000; got 10000001"),
        ("engine.temperature=1e-7", "engine.temperature must be 0 (greedy) or lie in 1e-6 .. 1e3; got 1e-07"),
        ("engine.temperature=1001", "engine.temperature must be 0 (greedy) or lie in 1e-6 .. 1e3; got 1001.0"),
        ("eval.temperature=1e-7", "eval.temperature must be 0 (greedy) or lie in 1e-6 .. 1e3; got 1e-07"),
        ("eval.temperature=1e21", "eval.temperature must be 0 (greedy) or lie in 1e-6 .. 1e3; got 1e+21"),
        ("eval.prompts=10000001", "eval.prompts must be at most 10000000; got 10000001"),
        ("eval.every=1000000001", "eval.every must be at most 1000000000; got 1000000001"),
        ("pipeline.lag=1000001", "pipeline.lag must be at most 1000000; got 1000001"),
        ("pipeline.group_size=1000001", "pipeline.group_size must be at most 1000000; got 1000001"),
        ("pipeline.prompts_per_step=1000001", "pipeline.prompts_per_step must be at most 1000000; got 1000001"),
        ("algorithm.entropy=-0.1", "algorithm.entropy must lie in 0 .. 1e+06 (0 for none); got -0.1"),
        ("algorithm.entropy=1e7", "algorithm.entropy must lie in 0 .. 1e+06 (0 for none); got 10000000.0"),
        ("algorithm.rule.epsilon_high=1e31", "epsilon_high of sat must be at most 1e+09 (0.2 is usual); got 1e+31"),
        ("algorithm.rule.dual_clip=1e31", "dual_clip of sat must be at most 1e+09 (3 is usual); got 1e+31"),
        ("algorithm.kl.coefficient=1e7", "coefficient of k3 must be at most 1e+06; got 10000000.0"),
        (
            "algorithm.aggregation={name='seq-mean-token-sum-norm', horizon=1000000001}",
            "horizon of seq-mean-token-sum-norm must be at most 1000000000; got 1000000001",
        ),
        ("trainer.lr=1001", "trainer.lr must be at most 1000; got 1001.0"),
        ("trainer.weight_decay=1001", "trainer.weight_decay must be at most 1000; got 1001.0"),
        ("trainer.grad_clip=1e10", "trainer.grad_clip must be at most 1e+09; got 10000000000.0"),
        ("trainer.warmup=1000000001", "trainer.warmup must be at most 1e+09; got 1000000001"),
        ("trainer.token_budget=1000000001", "trainer.token_budget must be at most 1e+09; got 1000000001"),
        ("placement.costs.reward_s=1e7", "placement.costs.reward_s must lie in 0 .. 1e+06 seconds; got 10000000.0"),
        ("placement.hang_after_s=1e10", "placement.hang_after_s must lie in 0.1 .. 1e+09 seconds; got 10000000000.0"),
    ],
)
def test_a_value_beyond_its_bound_is_refused(setting, message):
    assert message in told(setting)


@pytest.mark.parametrize(
    "setting",
    [
        *("run.steps=1000000000", "task.max_operations=1000", "engine.max_tokens=10000000", "engine.max_rows=1000000"),
        *("engine.temperature=1e-6", "engine.temperature=1000", "eval.temperature=0", "eval.prompts=10000000"),
        *("pipeline.group_size=1000000", "pipeline.prompts_per_step=1000000", "trainer.lr=1000"),
        *("trainer.weight_decay=1000", "algorithm.entropy=1e6", "algorithm.rule.epsilon_high=1e9"),
        *("algorithm.kl.coefficient=1e6", "placement.costs.reward_s=1e6"),
    ],
)
def test_a_bound_itself_is_allowed(setting):
    assert load(settings=[*WITH_EVERYTHING, "faults.rollout_s=1e9", "faults.reward_s=1e9", setting])


def test_the_largest_lag_is_allowed():
    assert load(settings=["pipeline.lag=1000000"]).pipeline.bound == 1_999_999


@pytest.mark.parametrize(
    "value", ["meta", "mps", "cpu:0", "cuda:", "cuda:x", "cuda:1234", "CPU", "", " cpu", "cuda\\n"]
)
def test_a_device_other_than_cpu_or_cuda_is_refused(value):
    assert told(f'run.device="{value}"').startswith("run.device must be auto, cpu, cuda or cuda:N; got ")


@pytest.mark.parametrize("value", ["auto", "cpu", "cuda", "cuda:0", "cuda:12"])
def test_cpu_and_any_cuda_device_may_be_named(value):
    assert load(settings=[f"run.device={value}"]).run.device == value


@pytest.mark.parametrize("value", ["5", "true", '""', "{}", "routing", "{name='x'}"])
def test_replay_must_be_a_list_of_names(value):
    assert told(f"algorithm.replay={value}").startswith("algorithm.replay must be a list, such as ")


@pytest.mark.parametrize("value", ['["a"]', "5", "true", "{}", "[]", "0", "false"])
def test_a_preset_must_be_a_name(value):
    assert told(f"algorithm.preset={value}").startswith('algorithm.preset must be a name, such as "sat-gspo"; got ')


@pytest.mark.parametrize("value", ["[]", "0", "false", '""'])
@pytest.mark.parametrize("table", ["run", "task", "engine", "algorithm", "trainer", "placement"])
def test_what_is_empty_but_no_table_is_not_taken_for_an_empty_table(table, value):
    assert table in told(f"{table}={value}")


@pytest.mark.parametrize(
    ("setting", "ending"),
    [
        ("algorithm.clip=1", "entropy, step_size, replay, preset"),
        ("engine.topp=1", "yield_every, kind"),
        ("task.modulo=5", "reward, name"),
        ("placement.nodes=2", "costs, hang_after_s, kind"),
    ],
)
def test_the_keys_that_name_a_choice_are_listed_with_the_known_ones(setting, ending):
    assert told(setting).endswith(ending)
