# ruff: noqa: SIM905  (a list of words reads better as words)
"""Text into signs: numbers, names, operators. A text with a sign that is not known here has no reading."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tether.verifier.expressions import NeedsLibrary, Unreadable

Kind = Literal["number", "name", "text", "word", "sign"]
"""``text``: what stood in ``\\text{}``; ``word``: letters that are no name of mathematics."""

FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth ln log exp abs max min gcd lcm".split()
)
PLAIN = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "pi": "pi", "inf": "infinity", "infty": "infinity",
    "infinity": "infinity", "oo": "infinity", "sqrt": "sqrt", "binom": "binom",
}  # fmt: skip
GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau "
    "upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell".split()
)
COMMANDS = {
    "cdot": "*", "times": "*", "ast": "*", "div": "/", "le": "<=", "leq": "<=", "leqslant": "<=", "lt": "<",
    "ge": ">=", "geq": ">=", "geqslant": ">=", "gt": ">", "ne": "!=", "neq": "!=", "approx": "~", "in": "in",
    "cup": "cup", "pm": "pm", "mp": "mp", "lbrace": "set{", "rbrace": "set}", "langle": "(", "rangle": ")",
    "lvert": "|", "rvert": "|", "vert": "|", "mid": "|", "degree": "degree", "colon": ":", "prime": "'",
    "lfloor": "lfloor", "rfloor": "rfloor", "lceil": "lceil", "rceil": "rceil", "emptyset": "empty",
    "varnothing": "empty", "lor": "or", "vee": "or", "quad": " ",
}  # fmt: skip
DOTS = frozenset("ldots dots cdots dotsc dotsb dotsm dotso".split())
STRUCTURES = frozenset("frac sqrt binom overline".split())
DECORATED = frozenset("vec hat bar tilde mathbb mathcal mathfrak mathscr overrightarrow widehat underline".split())
LIBRARY = frozenset("int sum prod lim iint oint bmod pmod mod det partial nabla operatorname limsup liminf".split())
WORDS = frozenset("text textbf textit textrm mathrm mbox mathbf rm textsf texttt operatorname mathit".split())
SMALL_WORDS = frozenset("no on so is it in up us we be by to of at an am as he me my go do if".split())
FAMILIES = ("abc", "xyz", "pqr", "mnk")

GROUPED = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)(?:\.\d+)?")
NUMBER = re.compile(r"(?:\d+(?:\.(?!\.)\d*)?|\.\d+)(?:[eE](?:[+-]?\d+)(?![\w.]))?")
COMMAND = re.compile(r"\\([A-Za-z]+)\*?")
GROUP = re.compile(r"\s*\{([^{}]*)\}")
CONJUNCTION = re.compile(r"(?<=\s)(and|or)(?=\s)")
LETTERS = re.compile(r"[A-Za-z]+")
SIGN = re.compile(r"\*\*|<=|>=|!=|==|\.\.\.+|[-+*/^_()\[\]{}|,;:=<>!&%']")
OPEN, CLOSE = frozenset({"(", "[", "set{", "{"}), frozenset({")", "]", "set}", "}"})


@dataclass(frozen=True, slots=True)
class Token:
    """One sign and whether a space stood before it."""

    kind: Kind
    text: str
    is_spaced: bool = False


def tokenize(text: str) -> list[Token]:
    r"""The signs of a spelled text, all of it.

    >>> [token.text for token in tokenize(r"-2*pi, 12,345, 6\cdot x")]
    ['-', '2', '*', 'pi', ',', '12,345', ',', '6', '*', 'x']
    """
    found: list[Token] = []
    position, depth, is_spaced = 0, 0, False
    while position < len(text):
        if text[position].isspace() or text[position] == "$":
            position, is_spaced = position + 1, True
            continue
        tokens, position = _next(text, position, depth, is_spaced)
        for token in tokens:
            depth += (token.text in ("(", "[", "set{")) - (token.text in (")", "]", "set}"))
        found += tokens
        is_spaced = False
    return found


def _next(text: str, position: int, depth: int, is_spaced: bool) -> tuple[list[Token], int]:
    """The tokens that start at ``position``, mostly one, and where the next begins."""
    is_after_group = position > 0 and text[position - 1] in ",."
    if depth == 0 and not is_after_group and (m := GROUPED.match(text, position)):
        return [Token("number", m[0], is_spaced)], m.end()
    if m := NUMBER.match(text, position):
        return [Token("number", m[0], is_spaced)], m.end()
    if text[position] == "\\":
        return _command(text, position, is_spaced)
    if m := LETTERS.match(text, position):
        return [Token(token.kind, token.text, is_spaced) for n, token in enumerate(_letters(m[0]))], m.end()
    if m := SIGN.match(text, position):
        sign = {"**": "^", "==": "=", "%": "percent", "<=": "<=", "!=": "!="}.get(m[0], m[0])
        return [Token("name", "dots") if sign.startswith("...") else Token("sign", sign, is_spaced)], m.end()
    raise Unreadable(f"the sign {text[position]!r} is not known")


def _command(text: str, position: int, is_spaced: bool) -> tuple[list[Token], int]:
    short = {"{": "set{", "}": "set}", "%": "percent", "$": "currency", "\\": "newline", "|": "|"}
    if (name := text[position + 1 : position + 2]) in short:
        return [Token("sign", short[name], is_spaced)], position + 2
    if (m := COMMAND.match(text, position)) is None:
        raise Unreadable(f"the sign {text[position : position + 2]!r} is not known")
    name, end = m[1], m.end()
    if name in WORDS:
        return _worded(name, text, end)
    if name in ("begin", "end"):
        if (group := GROUP.match(text, end)) is None or not group[1].rstrip("*").endswith("matrix"):
            raise Unreadable(f"the environment at {text[position : position + 20]!r} is not known")
        if group[1].rstrip("*").lower() == "vmatrix":
            raise Unreadable("a determinant or a norm is no matrix")
        return [Token("sign", name, is_spaced)], group.end()
    if name in COMMANDS:
        return [Token("sign", COMMANDS[name], is_spaced)], end
    if name in DOTS:
        return [Token("name", "dots", is_spaced)], end
    if name in FUNCTIONS or name in GREEK or name in STRUCTURES or name in DECORATED or name in PLAIN:
        return [Token("name", PLAIN.get(name, name), is_spaced)], end
    if name in LIBRARY:
        raise NeedsLibrary(f"\\{name} is read by the library")
    raise Unreadable(f"the command \\{name} is not known")


def _worded(command: str, text: str, position: int) -> tuple[list[Token], int]:
    if (group := GROUP.match(text, position)) is None:
        raise Unreadable(f"\\{command} without a closed group")
    inside = group[1].strip()
    parts = CONJUNCTION.split(f" {inside} ")
    if len(parts) > 1:
        pieces = [
            _piece(command, part.strip()) if n % 2 == 0 else [Token("sign", part)] for n, part in enumerate(parts)
        ]
        return [token for piece in pieces for token in piece], group.end()
    return _piece(command, inside), group.end()


def _piece(command: str, inside: str) -> list[Token]:
    """What stood in a text group, or in a part of it: mathematics after all, or words."""
    is_mathematics = not any(char.isalpha() for char in inside) or (
        command != "text" and (len(inside) == 1 or inside in FUNCTIONS or inside in PLAIN)
    )
    if inside and is_mathematics:
        return tokenize(inside)
    return [Token("text", inside, True)] if inside else []


def _letters(run: str) -> list[Token]:
    """What a run of letters is: a function, a constant, a word, or a product of letters."""
    if run in ("and", "or"):
        return [Token("sign", run)]
    if run in FUNCTIONS or run in PLAIN:
        return [Token("name", PLAIN.get(run, run))]
    if run in GREEK and len(run) > 2:
        return [Token("name", run)]
    is_product = len(run) == 1 or (len(run) == 2 and run.lower() not in SMALL_WORDS)
    if is_product or (len(run) == 3 and any(set(run) <= set(family) for family in FAMILIES)):
        return [Token("name", letter) for letter in run]
    return [Token("word", run)]
