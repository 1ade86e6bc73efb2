"""What may not become a plug-in, and what may not be asked of one."""

from __future__ import annotations

import dataclasses

import pytest

from tether.errors import ConfigError, UnknownNameError
from tether.registry import ALGORITHM_KINDS, CORRECTIONS, RULES, Registry


@pytest.fixture
def toys() -> Registry:
    return Registry("toy", plural="toys")


def ball(doc: str, *, frozen: bool = True, name: str = "Ball") -> type:
    return dataclasses.make_dataclass(name, [("radius", float, 1.0)], frozen=frozen, namespace={"__doc__": doc})


GOOD = """A ball.

>>> 1 + 1
2
"""


def test_a_taken_name_is_refused_with_its_owner(toys):
    toys.register("ball")(ball(GOOD))
    with pytest.raises(ConfigError, match=r"toy 'ball' is already .*Ball"):
        toys.register("ball")(ball(GOOD, name="OtherBall"))


def test_a_mutable_class_is_refused(toys):
    with pytest.raises(TypeError, match="Ball must be a frozen dataclass: its fields are its options"):
        toys.register("ball")(ball(GOOD, frozen=False))
    with pytest.raises(TypeError, match="frozen dataclass"):
        toys.register("plain")(type("Plain", (), {"__doc__": GOOD}))
    assert toys.names() == ()


def test_a_docstring_without_an_example_is_refused(toys):
    with pytest.raises(TypeError, match="Ball must show a worked example"):
        toys.register("ball")(ball("A ball, without an example."))


def test_an_unknown_name_lists_the_known_ones(toys):
    with pytest.raises(UnknownNameError, match="no toy 'bal'; there are none yet"):
        toys.get("bal")
    toys.register("ball")(ball(GOOD))
    with pytest.raises(UnknownNameError, match="no toy 'bal'; there is ball"):
        toys.get("bal")
    with pytest.raises(UnknownNameError, match=r"no rule 'stat'; there are .*ppo.*sat"):
        RULES.build("stat")


def test_an_unknown_option_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"rule 'sat' has no option 'quantil'; it has epsilon_low, .*scale"):
        RULES.build("sat", quantil=0.9)
    with pytest.raises(ConfigError, match="correction 'tis' has no option 'limit'; it has cap"):
        CORRECTIONS.build("tis", limit=2.0)


@pytest.mark.parametrize("kind", ALGORITHM_KINDS, ids=lambda kind: kind.kind)
def test_every_plug_in_is_found_by_its_folder_and_named_back(kind):
    assert kind.names()
    for name, cls in kind.items():
        assert kind.name_of(object.__new__(cls)) == name
        assert kind.summary(name)
        assert cls.__dataclass_params__.frozen
