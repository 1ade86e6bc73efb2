"""``tether model``: what it lists, makes, leaves alone and refuses."""

from pathlib import Path

import pytest

from tests.cli.calling import tether
from tether.models import smollm2
from tether.models.smollm2 import Made


@pytest.fixture
def making(monkeypatch):
    calls = []

    def make(out, *, dtype, told):
        told("reading")
        calls.append((out, dtype))
        return Made(folder=out, is_new=len(calls) == 1, num_parameters=134_515_008, num_bytes=541_600_000)

    monkeypatch.setattr(smollm2, "make", make)
    return calls


def test_without_a_name_it_lists_the_models(capsys):
    told = tether(capsys, "model")
    assert told.code == 0
    assert all(f"  {name} " in told.out for name in ("tiny-moe", "tiny-dense", "smollm2"))
    assert "tether model NAME --out DIR" in told.out


def test_it_says_size_parameters_seconds_and_what_comes_next(capsys, making):
    told = tether(capsys, "model", "smollm2", "--out", "m")
    assert told.code == 0
    reading, made, following = told.out.splitlines()
    assert reading == "reading"
    assert made == "m: 134,515,008 parameters, float32, 542 MB, 0 s"
    assert following == "next: tether train smollm2-arithmetic --set model.path=m"
    assert making == [(Path("m"), "float32")]


def test_a_model_that_is_there_is_left_alone_with_a_sentence(capsys, making):
    tether(capsys, "model", "smollm2", "--out", "m", "--dtype", "bfloat16")
    told = tether(capsys, "model", "smollm2", "--out", "m", "--dtype", "bfloat16")
    assert told.code == 0
    assert "m holds the model already and was left alone: 134,515,008 parameters, bfloat16" in told.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("smolm",), "no model 'smolm' to make; there is smollm2"),
        (
            ("tiny-moe", "--out", "m"),
            "tiny-moe comes with the package and needs no folder; use it as model.path=tiny-moe",
        ),
        (("smollm2",), "tether model smollm2 --out smollm2"),
        (("smollm2", "--out", "m", "--dtype", "int8"), "'int8' is not one of"),
    ],
)
def test_what_cannot_be_made_is_refused_with_the_way_out(capsys, making, words, message):
    told = tether(capsys, "model", *words)
    assert told.code != 0
    assert message in told.err
    assert not making
