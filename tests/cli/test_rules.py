import dataclasses

import pytest

from tests.presets import WAITING
from tether.config.overrides import parse
from tether.config.presets import PRESETS
from tether.registry import ALGORITHM_KINDS, RULES

from .calling import tether

NAMES = [name for registry in ALGORITHM_KINDS for name in registry.names()]


def test_every_choice_and_preset_is_listed_by_kind(capsys):
    told = tether(capsys, "rules")
    assert told.code == 0
    words = set(told.out.split())
    assert words >= {*NAMES, *PRESETS}
    lines = [line.strip() for line in told.out.splitlines()]
    places = [lines.index(kind) for kind in (*(registry.plural for registry in ALGORITHM_KINDS), "presets")]
    assert places == sorted(places)


@pytest.mark.parametrize("name", NAMES)
def test_a_choice_is_explained_by_its_docstring_and_its_options(capsys, name):
    told = tether(capsys, "rules", name)
    assert told.code == 0
    registry = next(r for r in ALGORITHM_KINDS if name in r.names())
    assert registry.summary(name) in told.out
    assert ">>>" in told.out


def test_every_option_stands_with_its_default_and_its_meaning(capsys):
    told = tether(capsys, "rules", "sat").out
    line = next(line for line in told.splitlines() if line.startswith("  epsilon_high"))
    assert line == "  epsilon_high = 0.2    Radius above 1 of an ungated token."
    for option in dataclasses.fields(RULES.get("sat")):
        assert f"  {option.name} = " in told


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_explained_by_keys_that_can_be_set_as_they_are_printed(capsys, name):
    told = tether(capsys, "rules", name)
    assert told.code == 0
    assert f"preset {name}: " in told.out
    lines = [line.strip() for line in told.out.splitlines() if line.startswith("  algorithm.")]
    assert dict(map(parse, lines)) == {f"algorithm.{key}": value for key, value in PRESETS[name].items()}


def test_a_name_of_a_preset_and_of_a_choice_explains_both(capsys):
    told = tether(capsys, "rules", "grpo").out
    assert "preset grpo: " in told
    assert "advantage grpo\n" in told


def test_an_unknown_name_is_answered_with_those_close_to_it(capsys):
    told = tether(capsys, "rules", "stat")
    assert told.code == 1
    assert told.err.startswith("error: no rule, preset or choice 'stat'; close to it: sat, ")
    assert "close to it: dppo, paper/dppo" in tether(capsys, "rules", "DPPO").err


@pytest.mark.parametrize("name", WAITING)
def test_a_preset_that_cannot_run_says_so_and_stands_with_a_star(capsys, name):
    assert "it cannot run as it is: " in tether(capsys, "rules", name).out
    assert f"  {name} * " in tether(capsys, "rules").out


def test_the_product_and_everything_beside_the_rule_is_shown_for_a_recipe(capsys):
    told = tether(capsys, "rules", "--check", "quickstart", "--set", "algorithm.preset=tis")
    for line in (
        "  rule         ppo reads clipped = pi / anchor, by token",
        "  weight       tis reads weight = anchor / behavior, by token",
        "  product      pi / behavior",
        "  statistics   none",
    ):
        assert line in told.out
    assert "doubtful: proximal 'anchor' with one update a batch makes every clipped ratio 1" in told.out
    told = tether(capsys, "rules", "--check", "quickstart", "--set", "algorithm.preset=paper/sat-gspo-r3")
    for word in ("low_var_kl, 0.001 of pi / reference", "over the micro-batch", "replay       routing"):
        assert word in told.out
    assert (
        "vcpo: EffectiveShare" in tether(capsys, "rules", "--check", "quickstart", "--set", "algorithm.preset=vcpo").out
    )


def test_what_cannot_be_asked_together_is_refused(capsys):
    assert tether(capsys, "rules", "sat", "--check", "quickstart").code != 0
    assert tether(capsys, "rules", "--set", "run.steps=1").code != 0
