# ruff: noqa: SIM905  (a list of words reads better as words)
"""The shape of an answer: one value, or a list, tuple, set, interval, matrix, ratio or relation of values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

from tether.verifier.expressions import INFINITY, Call, NeedsLibrary, Node, Number, Symbol, Unreadable, negative
from tether.verifier.reader import number, read
from tether.verifier.spelling import plain, spell
from tether.verifier.tokens import CLOSE, FUNCTIONS, OPEN, Token, tokenize


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value and its unit (``%``, ``degree``, ``cm``), empty where there is none."""

    node: Node
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """What is not mathematics, or cannot be read as such: compared as text alone."""

    text: str
    """As it was written, spelled."""
    is_malformed: bool = False
    """Whether it looks like mathematics all the same."""
    for_library: bool = False
    """Whether math-verify may be asked."""


@dataclass(frozen=True, slots=True)
class Dots:
    """Three dots in a list: what they stand for is not said, so they equal only themselves."""


@dataclass(frozen=True, slots=True)
class Based:
    """Digits with the base they are in: ``11_8``."""

    digits: str
    base: int

    @property
    def value(self) -> Fraction:
        """In base ten."""
        return Fraction(int(self.digits, self.base))


@dataclass(frozen=True, slots=True)
class Sequence:
    """Several parts. ``brackets`` are those of a tuple or interval (``()``, ``[)``); ``time`` marks ``12:00``."""

    kind: Literal["list", "tuple", "set", "union", "ratio"]
    items: tuple[Structure, ...]
    brackets: str = ""
    word: str = ""
    """``and`` or ``or``, where that is what joins a list."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of values."""

    rows: tuple[tuple[Structure, ...], ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """A chain: ``terms[0] signs[0] terms[1] ...``."""

    terms: tuple[Structure, ...]
    signs: tuple[str, ...]


Structure: TypeAlias = Scalar | Words | Dots | Based | Sequence | Matrix | Relation

RELATIONS = frozenset({"=", "<", ">", "<=", ">=", "!=", "~", "in"})
BASED = re.compile(r"\(?([0-9A-Fa-f]{1,60})\)?\s*_\s*(?:\{\s*(\d{1,2})\s*\}|(\d{1,2}))")
QUALIFIERS = frozenset(
    (
        "if when where for mod base not or and over under divided times plus minus less more than per all any "
        "only either at least most until about approximately between to from no of with is are be modulo "
        "choose factorial squared cubed root half halves third thirds fourth fourths quarter quarters fifth "
        "fifths sixth sixths eighth eighths tenth tenths hundredth hundredths thousandth thousandths "
        "repeating recurring remainder r one two three four five six seven eight nine ten twenty trillionth "
        "negative positive below above minus maybe then but "
        "eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen thirty forty fifty sixty seventy "
        "eighty ninety tens twenties sevenths ninths twelfths millionth millionths billionths score gross lakh crore "
        "myriad zillion point double twice triple thrice inverse reciprocal opposite imaginary complex infinitely "
        "i e x y z pi infinite wrong incorrect false never impossible unlikely rejected approx "
        "approximate ish nearly roughly "
    ).split()
)
"""Words after a number that change what it says, and so are no unit."""
SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
SCALES |= {f"{name}s": scale for name, scale in SCALES.items()} | {"quadrillion": 10**15}
REALS = Symbol("mathbb:R")
LONGEST = 4000
"""Characters of an answer that is read as mathematics."""
UNIT_SHAPE = re.compile(r"w+(?:\^(?:[23]|\{[23]\}))?(?:[*/]?w+(?:\^(?:[23]|\{[23]\}))?)*")
"""Of a unit, its words as ``w``: ``cm^2``, ``m/s^2``."""
MATHEMATICAL = re.compile(r"[\\^_=+*/<>{}|~]")


def understand(text: str) -> Structure:
    r"""What an answer says. Never raises: what cannot be read is ``Words``.

    >>> understand("11_8")
    Based(digits='11', base=8)
    >>> understand(r"(1, 2)").brackets, understand(r"1, 2, \ldots, n").items[2]
    ('()', Dots())
    >>> understand(r"4\sqrt(").is_malformed
    True
    """
    spelled = spell(text)
    if len(spelled) > LONGEST:
        return Words(spelled, is_malformed=True)
    if (m := BASED.fullmatch(spelled.replace(r"\text", "").replace(r"\mathrm", ""))) is not None:
        base = int(m[2] or m[3])
        has_digit = any(char.isdigit() for char in m[1]) or (base == 16 and len(m[1]) > 1)
        if has_digit and 2 <= base <= 16 and all(int(digit, 16) < base for digit in m[1]):
            return Based(m[1].upper(), base)
    try:
        return _structure(tokenize(spelled))
    except NeedsLibrary:
        return Words(spelled, for_library=True)
    except (Unreadable, RecursionError):
        without_text = re.sub(r"\\text\{[^{}]*\}", "", spelled)
        return Words(spelled, is_malformed=bool(MATHEMATICAL.search(without_text)))


def _split(tokens: list[Token], separators: frozenset[str]) -> tuple[list[list[Token]], list[str]]:
    """Parts between separators outside all brackets, and the separators."""
    parts: list[list[Token]] = [[]]
    found: list[str] = []
    depth = 0
    for token in tokens:
        if token.kind == "sign":
            depth += (token.text in OPEN or token.text == "begin") - (token.text in CLOSE or token.text == "end")
            if depth < 0:
                raise Unreadable("a bracket closes that was not opened")
            if depth == 0 and token.text in separators:
                parts.append([])
                found.append(token.text)
                continue
        parts[-1].append(token)
    if depth:
        raise Unreadable("a bracket is not closed")
    return parts, found


def _structure(tokens: list[Token]) -> Structure:
    parts, separators = _split(tokens, frozenset({",", ";", "and", "or"}))
    if len(parts) > 1:
        # "1, 2, and 3": the comma before the word says no more
        parts = [p for n, p in enumerate(parts) if p or not (n < len(separators) and separators[n] in ("and", "or"))]
        items: list[Structure] = []
        for part in parts:
            item = _item(part)
            items += item.items if isinstance(item, Sequence) and item.kind == "list" else (item,)
        word = next((separator for separator in separators if separator in ("and", "or")), "")
        return Sequence("list", tuple(items), word=word)
    return _item(tokens)


def _item(tokens: list[Token]) -> Structure:
    """One part of a list: a relation, a union, or a value; with a double sign, the list of both."""
    if not tokens:
        raise Unreadable("an empty part")
    if any(token.text in ("pm", "mp") and token.kind == "sign" for token in tokens):
        return Sequence("list", tuple(_item(_signed(tokens, plus, minus)) for plus, minus in (("+", "-"), ("-", "+"))))
    parts, signs = _split(tokens, RELATIONS)
    if len(parts) > 1:
        if not parts[0] and signs == ["~"]:
            return _item(parts[1])
        return Relation(tuple(_item(part) for part in parts), tuple(signs))
    parts, _ = _split(tokens, frozenset({"cup"}))
    if len(parts) > 1:
        return Sequence("union", tuple(_item(part) for part in parts))
    parts, _ = _split(tokens, frozenset({":"}))
    if len(parts) > 1:
        return Sequence("ratio", tuple(_item(part) for part in parts), "time" if _is_time(parts) else "")
    return _bracketed(tokens) or _value(tokens)


def _signed(tokens: list[Token], plus: str, minus: str) -> list[Token]:
    """With one choice of the double signs."""
    chosen = {"pm": plus, "mp": minus}
    return [Token("sign", chosen.get(token.text, token.text)) if token.kind == "sign" else token for token in tokens]


def _is_time(parts: list[list[Token]]) -> bool:
    """Whether they may be hours and minutes, which are written with two digits."""
    if len(parts) != 2 or any(len(part) != 1 for part in parts):
        return False
    hours, minutes = parts[0][0].text, parts[1][0].text
    return bool(re.fullmatch(r"[01]?\d|2[0-4]", hours) and re.fullmatch(r"[0-5]\d", minutes))


def _bracketed(tokens: list[Token]) -> Structure | None:
    """A tuple, interval, set or matrix, if that is what all of it is."""
    first, last = tokens[0], tokens[-1]
    if first.kind != "sign" or last.kind != "sign":
        return None
    if first.text == "empty" and len(tokens) == 1:
        return Sequence("set", ())
    if first.text == "begin" and last.text == "end":
        rows, _ = _split(tokens[1:-1], frozenset({"newline"}))
        rows = rows if rows[-1] else rows[:-1]
        return Matrix(tuple(tuple(_item(cell) for cell in _split(row, frozenset({"&"}))[0]) for row in rows))
    if first.text not in ("(", "[", "set{", "{") or last.text not in (")", "]", "set}", "}"):
        return None
    if not _closes_at_the_end(tokens):
        return None
    if first.text == "{":
        return _structure(tokens[1:-1]) if last.text == "}" else None
    if (first.text == "set{") != (last.text == "set}"):
        raise Unreadable("a brace with a bracket")
    if first.text == "set{" and len(tokens) == 2:
        return Sequence("set", ())
    parts, _ = _split(tokens[1:-1], frozenset({",", ";"}))
    if first.text == "set{":
        if any(token.text in ("|", ":") for token in tokens):
            raise Unreadable("a set by its condition")
        items: list[Structure] = []
        for part in parts:
            item = _item(part)
            items += item.items if isinstance(item, Sequence) and item.kind == "list" else (item,)
        return Sequence("set", tuple(items))
    if len(parts) == 1:
        return _item(parts[0]) if first.text == "(" and last.text == ")" else None
    return Sequence("tuple", tuple(_item(part) for part in parts), first.text + last.text)


def _closes_at_the_end(tokens: list[Token]) -> bool:
    depth = 0
    for n, token in enumerate(tokens):
        if token.kind == "sign":
            depth += (token.text in OPEN) - (token.text in CLOSE)
            if depth == 0:
                return n == len(tokens) - 1
    return False


def _value(tokens: list[Token]) -> Structure:
    """A single value with or without a unit, or words."""
    if len(tokens) == 1 and tokens[0].text == "dots":
        return Dots()
    if all(token.kind in ("word", "text") for token in tokens):
        return Words(" ".join(token.text for token in tokens))
    unit = ""
    if tokens[0].text == "currency" and len(tokens) > 1:
        tokens, unit = tokens[1:], "dollar"
    elif [token.text for token in tokens[:2]] == ["-", "currency"]:
        tokens, unit = [tokens[0], *tokens[2:]], "dollar"
    tokens, trailing, scale = _unit(tokens)
    if unit and trailing and trailing != unit:
        raise Unreadable(f"two units, {unit} and {trailing}")
    node = read(tokens)
    if node == REALS and not unit and not trailing:
        return Sequence("tuple", (Scalar(negative(INFINITY)), Scalar(INFINITY)), "()")
    if scale != 1:
        node = Call("mul", (node, Number(Fraction(scale))))
    return Scalar(node, unit or trailing)


def _unit(tokens: list[Token]) -> tuple[list[Token], str, int]:
    """The tokens before a trailing unit, the unit, and the number that a word such as 'million' multiplies by."""
    is_angle_in_function = any(token.kind == "name" and token.text in FUNCTIONS for token in tokens)
    if len(tokens) > 1 and tokens[-1].text in ("percent", "degree") and not is_angle_in_function:
        return tokens[:-1], tokens[-1].text, 1
    start = next((n for n, token in enumerate(tokens) if token.kind in ("word", "text")), len(tokens))
    if start == 0 or start == len(tokens):
        return tokens, "", 1
    tail = tokens[start:]
    words = " ".join(token.text for token in tail).lower().split()
    scale = 1
    while words and words[0] in SCALES:
        scale *= SCALES[words.pop(0)]
    shape = "".join("w" if token.kind in ("word", "text") else token.text for token in tail)
    if (
        not UNIT_SHAPE.fullmatch(shape)
        or len(words) > 6
        or QUALIFIERS & {re.sub(r"[^a-z]", "", word) for word in words}
    ):
        raise Unreadable(f"the words {' '.join(words)!r} are no unit")
    if any(not re.fullmatch(r"[A-Za-z^{}/.23*° -]*", word) for word in words):
        raise Unreadable(f"the words {' '.join(words)!r} are no unit")
    if tail[0].kind == "word" and not tail[0].is_spaced and words and words[0] not in UNITS:
        raise Unreadable(f"the letters {tail[0].text!r} on a number")
    before = tokens[:start]
    if before[-1].text == "degree":
        before = before[:-1]
    return before, _same_unit("".join(words)), scale


UNITS = {
    "degrees": "degree", "deg": "degree", "dollars": "dollar", "usd": "dollar", "percent": "percent",
    "centimeters": "cm", "centimeter": "cm", "meters": "m", "meter": "m", "metres": "m", "metre": "m",
    "kilometers": "km", "kilometer": "km", "hours": "h", "hour": "h", "hr": "h", "hrs": "h", "seconds": "s",
    "second": "s", "sec": "s", "minutes": "min", "minute": "min", "mins": "min", "kilograms": "kg", "kilogram": "kg",
    "grams": "g", "gram": "g", "liters": "l", "liter": "l", "litres": "l", "litre": "l", "inches": "in", "inch": "in",
    "feet": "ft", "foot": "ft", "miles": "mi", "mile": "mi", "million": "", "billion": "", "min": "min",
}  # fmt: skip


def _same_unit(unit: str) -> str:
    """One name for a unit and its plural, without the braces of its power."""
    unit = re.sub(r"[{}. °]", "", unit)
    return UNITS.get(unit, unit[:-1] if len(unit) > 3 and unit.endswith("s") else unit)


def as_number(text: str) -> Fraction | None:
    r"""The value of a text that is a plain number or fraction, read without further ado; most answers are.

    >>> as_number("-12"), as_number(r"\frac{3}{6}"), as_number("1,000"), as_number("2 2/3")
    (Fraction(-12, 1), Fraction(1, 2), Fraction(1000, 1), None)
    """
    if (m := PLAIN_NUMBER.fullmatch(text)) is None:
        return None
    sign = -1 if m["sign"] == "-" else 1
    if m["number"] is not None:
        return sign * number(m["number"]).value
    top, bottom = m["top"] or m["over"], m["bottom"] or m["under"]
    return sign * Fraction(int(top), int(bottom)) if int(bottom) else None


PLAIN_NUMBER = re.compile(
    r"(?P<sign>[+-]?)\s*(?:(?P<number>[1-9]\d{0,2}(?:,\d{3}){1,30}|\d{1,300}(?:\.\d{0,300})?|\.\d{1,300})"
    r"|\\[dt]?frac\{(?P<top>\d{1,300})\}\{(?P<bottom>\d{1,300})\}|(?P<over>\d{1,300})/(?P<under>\d{1,300}))"
)


def flat(text: str) -> str:
    """The text as it is compared with another sign by sign."""
    return plain(spell(text))
