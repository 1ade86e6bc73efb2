import importlib

import pytest

from tether.cli import rules
from tether.cli.app import COMMANDS
from tether.errors import TetherError

from .calling import tether


@pytest.mark.parametrize("words", [["--help"], ["-h"]])
def test_help_lists_every_command(capsys, words):
    told = tether(capsys, *words)
    assert told.code == 0
    for name, summary in COMMANDS.items():
        assert name in told.out
        assert summary in told.out


def test_the_version_is_that_of_the_distribution(capsys):
    told = tether(capsys, "--version")
    assert told.code == 0
    assert told.out.startswith("tether, version ")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_lies_in_its_own_file_and_has_help(capsys, name):
    assert importlib.import_module(f"tether.cli.{name}").command.name == name
    told = tether(capsys, name, "--help")
    assert told.code == 0
    assert told.out.startswith(f"Usage: tether {name}")


@pytest.mark.parametrize("words", [["trian"], ["--nonsense"], ["train", "--nonsense"]])
def test_what_is_no_command_or_option_is_a_usage_error(capsys, words):
    told = tether(capsys, *words)
    assert told.code == 2
    assert "No such" in told.err


def failing(error: BaseException):
    def run(**_: object) -> None:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (TetherError("the rule, the value, the way out"), 1, "error: the rule, the value, the way out\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_of_ours_is_one_message_and_an_exit_code(capsys, monkeypatch, error, code, said):
    monkeypatch.setattr(rules.command, "callback", failing(error))
    told = tether(capsys, "rules", "sat")
    assert told.code == code
    assert said in told.err
    assert "Traceback" not in told.err


def test_an_error_that_is_not_ours_keeps_its_traceback(capsys, monkeypatch):
    monkeypatch.setattr(rules.command, "callback", failing(ZeroDivisionError("a bug")))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        tether(capsys, "rules", "sat")
