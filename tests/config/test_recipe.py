import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.presets import NEEDED, RUNNING
from tether.cli import train
from tether.cli.console import print_recipe
from tether.config.build import _sampling
from tether.config.overrides import PLUGIN_KEYS, parse
from tether.config.presets import PRESETS, preset
from tether.config.recipe import TABLES, Recipe, from_tables, load, names
from tether.core.aggregation import SeqMeanTokenSumNorm
from tether.errors import ConfigError, TetherError, UnknownNameError
from tether.registry import ENGINES


def recipe_file(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


def resolved(*settings: str) -> dict:
    return load(settings=settings).resolved()


# --- what is unknown


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("trainer.learning_rate=1", "unknown key trainer.learning_rate; [trainer] has lr, warmup, schedule, betas"),
        ("run.stepss=1", "unknown key run.stepss; [run] has steps, seed, device, samples"),
        ("algorithm.rule.epsilon=1", "unknown key algorithm.rule.epsilon; [algorithm.rule] has epsilon_low"),
        ("algorithm.clip=1", "unknown key algorithm.clip; [algorithm] has proximal, level, rule"),
        ("task.modulo=5", "unknown key task.modulo; [task] has modulus"),
        ("engine.topp=1", "unknown key engine.topp; [engine] has dtype"),
        ("placement.costs.sleep_s=1", "unknown key placement.costs.sleep_s; [placement.costs] has generate_token_s"),
        ("training.lr=1", "unknown table [training]; a recipe has run, model, task"),
        ("lr=1", "unknown table [lr]; a recipe has"),
    ],
)
def test_an_unknown_key_lists_the_known_ones(setting, message):
    with pytest.raises(ConfigError) as refused:
        load(settings=[setting])
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("algorithm.rule=stat", "no rule 'stat'; there are "),
        ("algorithm.preset=sat", "no preset 'sat'; close to it are sat-grpo, sat-gspo, sat-grpo-r3"),
        ("algorithm.preset=zzz", "no preset 'zzz'; close to it are grpo, gspo, grpo-tis"),
        ("algorithm.aggregation=mean", "no aggregation 'mean'; there are seq-mean-token-mean"),
        ("algorithm.advantage=gae", "no advantage 'gae'; there are dr-grpo, grpo, rloo"),
        ("algorithm.proximal=oldest", "no proximal 'oldest'; there are a3po, anchor, ewma, old, rollout"),
        ('algorithm.kl={name="k4"}', "no kl 'k4'; there are k1, k2, k3, low_var_kl"),
        ("algorithm.rule.kernel=gauss", "no kernel 'gauss'; there"),
        ('algorithm.corrections=["rs"]', "no correction 'rs'; there"),
        ('algorithm.replay=["top-p"]', "no replay 'top-p'; there are routing, support"),
        ("engine.kind=vlmm", "no engine 'vlmm'; there "),
        ("task.name=chess", "no task 'chess'; there are arithmetic, "),
    ],
)
def test_an_unknown_name_lists_the_known_ones(setting, message):
    with pytest.raises(UnknownNameError) as refused:
        load(settings=[setting])
    assert str(refused.value).startswith(message)


def test_an_unknown_recipe_or_placement_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no recipe 'quikstart'; there are cluster, quick.*, or give the path"):
        load("quikstart")
    with pytest.raises(ConfigError, match=r"no placement 'slurm'; there are inline, ray"):
        load(settings=["placement.kind=slurm"])
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load(recipe_file(tmp_path, "[run\n"))


# --- types


@pytest.mark.parametrize(
    "setting",
    [
        "run.steps=true",
        "run.steps=2.5",
        "run.steps=10.0",
        'run.steps="10"',
        "run.steps=ten",
        "run.steps=",
        "run.steps=[1]",
        "run.steps={a=1}",
        "run.steps=2026-01-01",
        "run.device=1",
        "trainer.lr=true",
        'trainer.lr="1e-4"',
        "trainer.betas=0.9",
        "trainer.betas=[0.9]",
        "trainer.betas=[0.9, true]",
        "trainer.gradient_checkpointing=1",
        "trainer.gradient_checkpointing=yes",
        "trainer.schedule=linear",
        "pipeline.regime=async",
        "pipeline.max_staleness=some",
        "model.dtype=float16",
        "algorithm.level=word",
        "algorithm.measure=ranks",
        "algorithm.advantage.ddof=2",
        "algorithm.advantage.ddof=true",
        "algorithm.rule.enabled=0",
        "algorithm.rule=5",
        'algorithm.rule=[{name="ppo"}]',
        "algorithm.kl=true",
        "algorithm.corrections=tis",
        'algorithm.corrections={name="tis"}',
        "run=5",
        "algorithm=5",
        "placement.costs=0.1",
        "engine=torch",
    ],
)
def test_a_value_of_another_type_is_refused_by_its_key(setting):
    with pytest.raises(ConfigError) as refused:
        load(settings=[setting])
    key = setting.partition("=")[0]
    assert key in str(refused.value)


def test_a_whole_number_may_stand_where_a_float_is_meant():
    recipe = load(settings=["trainer.lr=1", "trainer.betas=[0, 0.5]"])
    assert (recipe.trainer.lr, recipe.trainer.betas) == (1.0, (0.0, 0.5))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["run.steps=0"], "run.steps must be at least 1; got 0"),
        (["run.seed=-1"], "run.samples and run.seed must be >= 0"),
        (["pipeline.lag=0"], "pipeline.lag must be at least 1"),
        (["pipeline.regime=sync"], "pipeline.lag must be 1 in regime 'sync'"),
        (["engine.temperature=0"], "engine.temperature must be > 0 for training"),
        (["engine.temperature=nan"], "engine.temperature must be a finite number; got nan"),
        (["algorithm.entropy=nan"], "algorithm.entropy must be a finite number; got nan"),
        (["placement.costs.reward_s=inf"], "placement.costs.reward_s must be a finite number; got inf"),
        (["trainer.betas=[0.9, nan]"], "trainer.betas must be tuple[float, float]; got [0.9, nan]"),
        (["eval.every=-1"], "eval.every must be >= 0"),
        (["eval.temperature=nan"], "eval.temperature must be a finite number"),
        (["pipeline.group_size=1"], "group_size = 1 leaves every group without a baseline"),
        (["model.reference=tiny-moe"], "there is no [algorithm.kl] to use it"),
        (['algorithm.kl={name="k3", coefficient=0}'], "[algorithm.kl] coefficient of k3 must be > 0"),
        (["algorithm.proximal=anchor"], "the ratio cannot see how stale the data are"),
        (["algorithm.rule.scale.level=1.5"], "quantile must lie in (0, 1]; got 1.5"),
        (["task.modulus=11"], "modulus must be 2 to 10"),
    ],
)
def test_settings_that_cannot_work_together_are_refused(settings, message):
    with pytest.raises(ConfigError) as refused:
        load(settings=settings)
    assert message in str(refused.value)


def test_a_group_of_one_is_allowed_where_its_reward_is_taken_as_it_is():
    for single in ("raw", "zero"):
        one = ["algorithm.preset=grpo", "pipeline.group_size=1", f"algorithm.advantage.single={single}"]
        assert load(settings=one)


def test_a_required_key_that_is_missing_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"algorithm.proximal is not set; \[algorithm\] needs proximal, level, rule"):
        load(recipe_file(tmp_path, "[algorithm]\nentropy = 0.1\n"))


# --- settings on top


@pytest.mark.parametrize("text", ["lr", "=1", "trainer.=1", ".lr=1", "trainer..lr=1", ""])
def test_a_setting_is_a_key_an_equals_sign_and_a_value(text):
    with pytest.raises(ConfigError, match="--set takes key=value"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b=1", 1),
        ("a.b = 1e-4 ", 1e-4),
        ("a.b=true", True),
        ("a.b=tiny-moe", "tiny-moe"),
        ('a.b="tiny-moe"', "tiny-moe"),
        ("a.b=x=y", "x=y"),
        ("a.b=my.module:reward", "my.module:reward"),
        ("a.b=", ""),
        ("a.b=[1, 2]", [1, 2]),
        ('a.b={name = "ppo"}', {"name": "ppo"}),
        ("a.b=/data/model v1", "/data/model v1"),
    ],
)
def test_a_value_is_read_as_toml_and_else_as_a_string(text, value):
    assert parse(text) == ("a.b", value)


def test_settings_are_applied_in_order():
    assert resolved("trainer.lr=1e-3", "trainer.lr=1e-4")["trainer"]["lr"] == 1e-4


def test_a_setting_inside_what_is_no_table_is_refused():
    with pytest.raises(ConfigError, match=r"run.seed.deep cannot be set: run.seed is 0, not a table"):
        load(settings=["run.seed.deep=1"])


def test_a_preset_discards_the_algorithm_of_the_recipe_and_later_settings_apply_on_top(tmp_path):
    path = recipe_file(
        tmp_path,
        '[algorithm]\npreset = "sat-gspo"\nentropy = 0.5\nlevel = "token"\n[algorithm.rule.scale]\nlevel = 0.5\n',
    )
    assert load(path).resolved()["algorithm"]["rule"]["scale"] == {"name": "quantile", "level": 0.5}
    assert load(path).resolved()["algorithm"]["level"] == "token"
    after = load(path, ["algorithm.preset=sat-gspo", "algorithm.rule.scale.level=0.8"])
    assert after.algorithm.entropy == 0.0
    assert after.algorithm.level == "sequence"
    assert after.resolved()["algorithm"]["rule"]["scale"]["level"] == 0.8


def leaves(table: dict, prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= leaves(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


OTHER = {
    "proximal.name": None,  # changes what else must hold: see below
    "level": lambda old: "token" if old == "sequence" else "sequence",
    "rule.name": lambda old: "ppo" if old == "sat" else "sat",
    "rule.epsilon_low": lambda old: 0.125,
    "rule.epsilon_high": lambda old: 0.375,
    "aggregation.name": lambda old: "token-sum",
    "advantage.name": lambda old: "rloo",
    "measure": lambda old: "step" if old == "micro-batch" else "micro-batch",
}


@pytest.mark.parametrize("name", ["grpo", "dr-grpo", "gspo", "sat-grpo", "sat-gspo"])
def test_any_key_of_a_preset_can_be_overridden(name):
    for key, before in leaves(preset(name)).items():
        change = OTHER[key]
        if change is None:
            continue
        after = resolved(f"algorithm.preset={name}", f"algorithm.{key}={json.dumps(change(before))}")["algorithm"]
        assert leaves(after)[key] == change(before)
        others = {
            k: v for k, v in leaves(preset(name)).items() if k != key and not (key == "rule.name" and "rule" in k)
        }
        assert {k: leaves(after)[k] for k in others} == others


def test_the_proximal_of_a_preset_can_be_overridden_together_with_its_correction():
    chosen = ["algorithm.preset=gspo", "algorithm.corrections=[{name='tis', cap=3}]", "algorithm.proximal=anchor"]
    after = load(settings=chosen).resolved()
    assert after["algorithm"]["proximal"] == {"name": "anchor"}
    assert after["algorithm"]["corrections"] == [{"name": "tis", "cap": 3.0, "level": "recipe"}]


def test_naming_another_plugin_discards_the_options_of_the_one_before():
    after = resolved("algorithm.rule.scale.level=0.5", "algorithm.rule.epsilon_low=0.1", "algorithm.rule.name=ppo")
    assert after["algorithm"]["rule"] == {"name": "ppo", "epsilon_low": 0.2, "epsilon_high": 0.2, "dual_clip": None}
    again = resolved("algorithm.rule.scale.level=0.5", "algorithm.rule.name=sat")
    assert again["algorithm"]["rule"]["scale"] == {"name": "quantile", "level": 0.5}


def test_an_option_of_a_plugin_that_stands_as_a_name_can_be_set(tmp_path):
    text = '[algorithm]\npreset = "grpo"\nadvantage = "grpo"\nrule = "sat"\n[pipeline]\nlag = 2\n'
    after = load(recipe_file(tmp_path, text), ["algorithm.advantage.ddof=0", "algorithm.rule.kernel.exponent=4"])
    assert after.resolved()["algorithm"]["advantage"]["ddof"] == 0
    assert after.resolved()["algorithm"]["rule"]["kernel"] == {"name": "hill", "exponent": 4.0}


def test_an_option_of_a_plugin_that_a_class_has_by_default_can_be_set_without_its_name():
    after = resolved("algorithm.rule.kernel.exponent=4")["algorithm"]["rule"]
    assert after["kernel"] == {"name": "hill", "exponent": 4.0}
    assert after["scale"] == {"name": "quantile", "level": 0.9}


def test_plugin_keys_are_keys_of_the_algorithm():
    algorithm = resolved()["algorithm"]
    for key in PLUGIN_KEYS - {"algorithm.kl", "algorithm.step_size"}:
        table = algorithm
        for part in key.split(".")[1:]:
            table = table[part]
        assert "name" in table


def test_a_changed_preset_is_shown_as_changed():
    assert load().algorithm_label == "sat-gspo-r3"
    assert load(settings=["algorithm.preset=dr-grpo"]).algorithm_label == "dr-grpo"
    assert load(settings=["algorithm.rule.scale.level=0.9"]).algorithm_label == "sat-gspo-r3"
    assert load(settings=["algorithm.rule.scale.level=0.8"]).algorithm_label == "sat-gspo-r3, changed"


# --- presets


PAPERS = [name for name in PRESETS if name.startswith("paper/")]


@pytest.mark.parametrize("name", [name for name in PAPERS if name != "paper/dppo"])
def test_a_cell_of_the_study_differs_from_its_twin_by_scope_and_penalty_alone(name):
    ours, papers = preset(name.removeprefix("paper/")), preset(name)
    assert (ours.pop("measure"), papers.pop("measure")) == ("step", "micro-batch")
    assert papers.pop("kl") == {"name": "low_var_kl", "coefficient": 1e-3}
    assert ours == papers


def test_every_cell_of_the_study_is_a_preset():
    rows = ("grpo", "gspo", "grpo-r3", "gspo-r3", "grpo-tis", "gspo-tis", "grpo-tis-r3", "gspo-tis-r3", "dppo")
    sats = ("sat-grpo", "sat-gspo", "sat-grpo-r3", "sat-gspo-r3")
    assert {f"paper/{name}" for name in (*rows, *sats)} == set(PAPERS)


def test_the_studys_dppo_is_ppos_clip_times_a_mask_at_a_thousandth():
    rule = preset("paper/dppo")["rule"]
    assert (rule["form"], rule["delta_low"], rule["delta_high"], rule["epsilon_high"]) == ("clip", 1e-3, 1e-3, 0.2)


def test_presets_are_copies():
    preset("grpo")["rule"]["name"] = "broken"
    assert preset("grpo")["rule"]["name"] == "ppo"


@pytest.mark.parametrize("name", RUNNING)
def test_every_preset_makes_a_recipe(name):
    recipe = load(settings=[f"algorithm.preset={name}", *NEEDED.get(name, [])])
    assert recipe.preset == name
    assert recipe.algorithm.measure == ("micro-batch" if name.startswith("paper/") else "step")


def test_the_horizon_of_dr_grpo_is_the_longest_answer_of_the_engine_unless_set():
    def horizon(*settings: str) -> int:
        aggregation = load(settings=["algorithm.preset=dr-grpo", *settings]).algorithm.aggregation
        assert isinstance(aggregation, SeqMeanTokenSumNorm)
        return aggregation.horizon

    assert horizon("engine.max_tokens=48") == 48
    assert horizon("engine.max_tokens=48", "algorithm.aggregation.horizon=0") == 48
    assert horizon("engine.max_tokens=48", "algorithm.aggregation.horizon=7") == 7


# --- the resolved recipe


ROUND_TRIPS = [
    [],
    *[[f"algorithm.preset={name}", *NEEDED.get(name, [])] for name in RUNNING],
    ["pipeline.regime=sync", "pipeline.lag=1", "trainer.betas=[0.5, 0.75]", "placement.costs.reward_s=0.5"],
    ["algorithm.corrections=[{name='decoupled'}]", "algorithm.proximal=ewma", "pipeline.max_staleness=99"],
    ["algorithm.kl={name='k3'}", "model.reference=tiny-moe", "algorithm.entropy=0.01", "algorithm.rule.dual_clip=3.0"],
    ["algorithm={proximal='rollout', level='token', rule='ppo', aggregation='token-mean', advantage='rloo'}"],
    ['model.path=/some where/"quoted" \\ back', "task.operators=+*"],
]


@pytest.mark.parametrize("settings", ROUND_TRIPS, ids=lambda s: s[0][:40] if s else "quickstart")
def test_a_resolved_recipe_makes_the_same_recipe_again(settings):
    recipe = load(settings=settings)
    tables = {table: values for table, values in recipe.resolved().items() if table in TABLES}
    assert set(recipe.resolved()) - set(tables) == {"recipe", "derived"}
    assert from_tables(tables, recipe.name) == recipe
    assert from_tables(json.loads(json.dumps(tables)), recipe.name).resolved() == recipe.resolved()


@pytest.mark.parametrize("settings", ROUND_TRIPS, ids=lambda s: s[0][:40] if s else "quickstart")
def test_a_printed_recipe_makes_the_same_run(settings, tmp_path, capsys):
    wanted: Recipe = load(settings=settings)
    print_recipe(wanted.resolved())
    printed = capsys.readouterr().out
    assert load(recipe_file(tmp_path, printed)).resolved() == {**wanted.resolved(), "recipe": "mine"}
    assert f"staler than {wanted.pipeline.bound} optimizer updates" in printed


def test_a_dry_run_prints_the_recipe_and_makes_nothing(tmp_path, capsys):
    told = CliRunner().invoke(train.command, ["--dry-run", "--out", str(tmp_path / "run"), "--set", "pipeline.lag=4"])
    assert told.exit_code == 0, told.exception
    print_recipe(load(settings=["pipeline.lag=4"]).resolved())
    assert told.output == capsys.readouterr().out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.path=/nowhere/at/all", "no model '/nowhere/at/all'"),
        ("task.reward=nowhere.at:all", "nowhere"),
        ("run.device=cuda:99", "run.device 'cuda:99' is not usable"),
        ("task.reward=python", "task.reward = 'python' does not say which function; give its place, package.module:"),
    ],
)
def test_a_dry_run_refuses_what_a_run_would_refuse_before_it_loads_a_model(setting, message):
    told = CliRunner().invoke(train.command, ["--dry-run", "--set", setting])
    assert isinstance(told.exception, TetherError)
    assert message in str(told.exception)


def test_every_setting_with_its_default_stands_in_the_resolved_recipe():
    tables = resolved()
    assert set(tables) == {*TABLES, "recipe", "derived"}
    assert tables["derived"] == {"algorithm": "sat-gspo-r3", "staleness_bound": 15, "group_slots": 128, "doubts": []}
    assert tables["trainer"]["betas"] == [0.9, 0.98]
    assert tables["algorithm"]["rule"]["kernel"] == {"name": "hill", "exponent": 2.0}
    assert tables["placement"]["kind"] == "inline"
    json.dumps(tables, allow_nan=False)


def test_recipes_of_the_package_are_valid():
    assert "quickstart" in names()
    for name in names():
        assert load(name).name == name


@pytest.mark.parametrize("lag", [1, 8])
def test_the_studys_headline_with_vllm_is_a_recipe(lag):
    recipe = load("vllm-r3", [f"pipeline.lag={lag}"])
    assert (ENGINES.name_of(recipe.engine), recipe.preset, recipe.pipeline.lag) == ("vllm", "sat-gspo-r3", lag)
    assert _sampling(recipe).routing


def test_a_recipe_file_is_named_after_its_file(tmp_path):
    assert load(recipe_file(tmp_path, "[run]\nsteps = 3\n")).name == "mine"


def test_the_quickstart_says_in_toml_what_the_issue_asks_for():
    tables = resolved()
    assert tables["algorithm"]["preset"] == "sat-gspo-r3"
    assert tables["algorithm"]["measure"] == "step"
    assert (tables["pipeline"]["regime"], tables["pipeline"]["lag"]) == ("batch-async", 8)
    assert tables["pipeline"]["prompts_per_step"] * tables["pipeline"]["group_size"] == pytest.approx(64, rel=0.5)
    assert tables["eval"]["prompts"] >= 1024
    assert tomllib.loads((Path(train.__file__).parents[1] / "recipes" / "quickstart.toml").read_text())


# --- what stands on top of a preset


def test_an_option_of_a_listed_correction_can_be_set_by_its_place():
    recipe = load(settings=["algorithm.preset=estr", "algorithm.corrections.0.threshold=0.006"])
    assert recipe.resolved()["algorithm"]["corrections"][0]["threshold"] == 0.006
    assert recipe.algorithm_label == "estr"
    with pytest.raises(ConfigError, match=r"algorithm.corrections.1.cap cannot be set: there are 1 entries"):
        load(settings=["algorithm.preset=tis", "algorithm.corrections.1.cap=3.0"])


def test_a_recipe_file_changes_an_option_of_a_presets_inner_plug_in_and_keeps_the_plug_in(tmp_path):
    path = recipe_file(tmp_path, '[algorithm]\npreset = "sat-bounded"\n[algorithm.rule.scale]\nlevel = 0.8\n')
    assert load(path).resolved()["algorithm"]["rule"]["scale"] == {
        "name": "bounded",
        "level": 0.8,
        "floor": 0.01,
        "ceiling": 0.1,
    }


def test_a_preset_that_would_discard_an_earlier_setting_is_refused():
    with pytest.raises(ConfigError, match=r"algorithm.preset would discard algorithm.rule.epsilon_low before it"):
        load(settings=["algorithm.rule.epsilon_low=0.1", "algorithm.preset=sat-grpo"])


def test_an_option_that_may_be_left_out_is_unset_by_none():
    recipe = load(settings=["algorithm.preset=dual-clip", "algorithm.rule.dual_clip=none"])
    assert recipe.resolved()["algorithm"]["rule"]["dual_clip"] is None
