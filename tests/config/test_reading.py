"""Recipes as files and settings as text: read whole, or refused with the reason."""

from pathlib import Path

import pytest

from tether.cli.console import print_recipe
from tether.config.evaluate import EvaluationSettings, exam_of
from tether.config.overrides import parse
from tether.config.recipe import load
from tether.config.rewarding import reward_of
from tether.errors import ConfigError, UnknownNameError


def recipe_file(folder: Path, content: bytes) -> str:
    path = folder / "mine.toml"
    path.write_bytes(content)
    return str(path)


def test_a_recipe_may_begin_with_a_byte_order_mark(tmp_path):
    assert load(recipe_file(tmp_path, b"\xef\xbb\xbf[run]\r\nsteps = 3\r\n")).run.steps == 3


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_recipe_that_is_not_utf_8_is_refused_with_line_and_byte(mark, tmp_path):
    with pytest.raises(ConfigError, match=r"recipe '.*mine.toml' must be UTF-8; line 2 has the byte 0xe9: save it as"):
        load(recipe_file(tmp_path, mark + "# café\n".encode() + b"# caf\xe9\n[run]\n"))


def test_a_recipe_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    path = recipe_file(tmp_path, b"[run]\n")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ConfigError, match=r"recipe '.*mine.toml' cannot be read: Permission denied; give a file that"):
        load(path)


def test_a_name_that_no_file_can_have_is_refused_like_any_other():
    with pytest.raises(ConfigError, match="cannot be read: File name too long"):
        load("x" * 5000)
    for source in ("", "a\0b", "/"):
        with pytest.raises(ConfigError, match="no recipe "):
            load(source)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps = 9223372036854775808", "must fit 64 bits; run.steps has 64 and a sign: give a smaller one"),
        ("steps = [[1, 0xfffffffffffffffff]]", "must fit 64 bits; run.steps has 68 and a sign"),
        ("steps = 1" + "0" * 5000, "must fit 64 bits; got thousands of digits"),
        ("steps = " + "[" * 3000, "must not be nested so deeply"),
        ("steps = ", "is not valid TOML"),
    ],
)
def test_toml_that_is_no_recipe_is_refused_in_a_file_and_as_a_setting(text, message, tmp_path):
    with pytest.raises(ConfigError, match=r"recipe '.*mine.toml'") as refused:
        load(recipe_file(tmp_path, f"[run]\n{text}\n".encode()))
    assert message in str(refused.value)
    with pytest.raises(ConfigError, match=r"run\.steps"):
        load(settings=["run." + text.replace(" = ", "=")])


@pytest.mark.parametrize(
    ("text", "other"),
    [("run.steps=5\nseed=7", "seed"), ("a.b=1\n[table]\nx=1", "table"), ("a.b=[1,\n2]\nc=3\nd=4", "c")],
)
def test_a_setting_that_holds_more_than_one_key_is_refused(text, other):
    with pytest.raises(
        ConfigError, match=rf"--set takes one key=value a time; got .*; give {other} a --set of its own"
    ):
        parse(text)


def test_a_value_over_several_lines_is_still_one_value():
    assert parse("a.b=[1,\n2]") == ("a.b", [1, 2])
    assert parse("a.b=one\ntwo") == ("a.b", "one\ntwo")


@pytest.mark.parametrize("path", ["\x7f", 'a\x7f"\\b', "\x01\t\n\x1f", "é€😀"])
def test_any_text_of_a_printed_recipe_is_read_again(path, tmp_path, capsys):
    recipe = load(recipe_file(tmp_path, b"[run]\n"))
    printed = recipe.resolved()
    printed["model"]["path"] = path
    print_recipe(printed)
    assert load(recipe_file(tmp_path, capsys.readouterr().out.encode())).model.path == path


def test_a_reward_is_a_registered_name_or_the_place_of_a_function():
    assert type(reward_of("exact")).__name__ == "Exact"
    assert reward_of("tests.rewards.judges:length") is not None
    with pytest.raises(ConfigError, match=r"'python' does not say which function; give its place, package.module:"):
        reward_of("python")
    with pytest.raises(UnknownNameError, match="no reward 'exakt'; there are boxed, cosine, exact, "):
        reward_of("exakt")


@pytest.mark.parametrize("temperature", [float("nan"), float("inf"), -1.0, 1e-9, 1e9])
def test_an_evaluation_apart_from_a_run_has_the_bounds_of_one_inside(temperature):
    with pytest.raises(ConfigError, match=r"eval\.temperature must"):
        exam_of(EvaluationSettings(source="tiny-moe", count=8, temperature=temperature), {})
