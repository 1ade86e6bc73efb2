"""TOML from a file or from the command line: read whole, or refused with the reason."""

from __future__ import annotations

import tomllib
from typing import Any

from tether.errors import ConfigError

_BITS = 63  # TOML's integers have 64 bits, one of them the sign; tomllib takes longer ones


def read_toml(content: bytes, what: str) -> dict[str, Any]:
    """The tables of a TOML file, with or without a byte-order mark; ``what`` names it in messages.

    >>> read_toml(b"[run]\\nsteps = 3\\n", "recipe 'mine'")
    {'run': {'steps': 3}}
    """
    try:
        return loads(content.decode("utf-8-sig"), what)
    except UnicodeDecodeError as error:
        line, byte = error.object[: error.start].count(b"\n") + 1, error.object[error.start]
        raise ConfigError(f"{what} must be UTF-8; line {line} has the byte {byte:#04x}: save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{what} is not valid TOML: {error}") from error


def loads(text: str, what: str) -> dict[str, Any]:
    """Tables of a text; raises ``tomllib.TOMLDecodeError`` if it is no TOML, ``ConfigError`` if it is too much of it.

    >>> loads("seed = 0x8000000000000000", "--set")
    Traceback (most recent call last):
    tether.errors.ConfigError: a whole number in --set must fit 64 bits; seed has 64 and a sign: give a smaller one
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # more digits than Python converts
        raise ConfigError(f"a whole number in {what} must fit 64 bits; got thousands of digits") from error
    except RecursionError as error:
        raise ConfigError(f"{what} must not be nested so deeply; got hundreds of levels of brackets") from error
    _check_integers(tables, what, "")
    return tables


def _check_integers(value: Any, what: str, key: str) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_integers(inner, what, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            _check_integers(inner, what, key)
    elif isinstance(value, int) and value.bit_length() > _BITS:
        raise ConfigError(
            f"a whole number in {what} must fit 64 bits; {key} has {value.bit_length()} and a sign: give a smaller one"
        )
