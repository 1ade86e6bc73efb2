r"""LaTeX as plain text, as the ``upstream`` mode reads it before it compares: ``\frac{a}{b}`` is ``a/b``, braces go.

What is lost is lost on purpose, for parity: ``\frac{x+1}{2}`` becomes ``x+1/2``, the index of a root is dropped, a
macro without a sign of its own vanishes and leaves its arguments. Facts taken from how pylatexenc 2.x answers.
"""

from __future__ import annotations

import re
import unicodedata

from .latex_signs import MACROS

DEEPEST = 60
"""Groups inside groups; what is deeper is not converted."""
LONGEST = 20_000
"""Letters; what is longer is not converted."""

ACCENTS = {"hat": "\u0302", "bar": "\u0305", "tilde": "\u0303", "dot": "\u0307", "vec": "\u20d7"}
LETTERS = {"mathbf": 0x1D400, "mathfrak": 0x1D504}
"""Where an alphabet's capital A stands; its small letters follow the capitals."""
SWALLOWED = ("mbox", "textsf", "label", "vspace", "title")
"""Macros that vanish with their argument."""
TOKEN = re.compile(r"\\([A-Za-z]+)([ \t]*\n?[ \t]*)|\\(.)|([{}~&])|(---?|''|``)|([^\\{}~&'`-]+|.)", re.DOTALL)
SPECIALS = {"\\": "", "~": "\xa0", "&": "   ", "--": "\u2013", "---": "\u2014", "''": "\u201d", "``": "\u201c"}
MATRIX = re.compile(r"\\begin\{(pmatrix|bmatrix|array)\}(.*?)\\end\{\1\}", re.DOTALL)
ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[A-Za-z]*\*?\}")


class UnconvertibleError(ValueError):
    """This LaTeX has no plain text."""


def latex_text(latex: str) -> str:
    r"""The plain text of LaTeX.

    >>> latex_text(r"\frac{\sqrt{2}}{3}\pi"), latex_text(r"x^{10}"), latex_text(r"\boxed{204"), latex_text(r"20\,4")
    ('√(2)/3π', 'x^10', '204', '20 4')
    """
    if len(latex) > LONGEST:
        raise UnconvertibleError(f"{len(latex)} letters are too many: {LONGEST} are converted")
    flat = MATRIX.sub(lambda found: matrix_text(*found.groups()), latex)
    flat = ENVIRONMENT.sub("", flat)
    return Reader(flat).text()


def matrix_text(kind: str, inside: str) -> str:
    """A matrix as ``[ 1 2; 3 4 ]``, its cells of one width."""
    inside = re.sub(r"^\{[^{}]*\}", "", inside) if kind == "array" else inside
    rows = [[Reader(cell).text().strip() for cell in row.split("&")] for row in inside.split("\\\\")]
    width = max(len(cell) for row in rows for cell in row)
    return "[ " + "; ".join(" ".join(cell.rjust(width) for cell in row) for row in rows) + " ]"


class Reader:
    """Goes through LaTeX once, from left to right."""

    def __init__(self, latex: str) -> None:
        self.tokens = list(TOKEN.finditer(latex))
        self.at = 0
        self.depth = 0

    def text(self) -> str:
        """Everything to the end; closing braces that nothing opened are dropped."""
        out = []
        while self.at < len(self.tokens):
            out.append(self.group())
            self.at += 1
        return "".join(out)

    def group(self) -> str:
        """What stands before the next closing brace, which is left; or before the end."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise UnconvertibleError("groups inside groups are too deep")
        out = []
        while self.at < len(self.tokens) and self.tokens[self.at][0] != "}":
            out.append(self.item())
        self.depth -= 1
        return "".join(out)

    def item(self) -> str:
        """The next thing: a group, a macro with what it takes, or plain signs."""
        token = self.tokens[self.at]
        self.at += 1
        if token[0] == "{":
            inside = self.group()
            self.at += 1
            return inside
        name = token[1] or token[3]
        if name is None:
            return SPECIALS.get(token[0], token[0])
        return self.macro(name)

    def macro(self, name: str) -> str:
        """What a macro becomes, with its arguments where it takes any."""
        if name == "frac":
            above, below = self.argument(), self.argument()
            return f"{above}/{below}" if above is not None and below is not None else "%s/%s" + (above or "")
        if name == "sqrt":
            self.skip_option()
            if (inside := self.argument()) is None:
                raise UnconvertibleError("a root has nothing under it")
            return f"√({inside})"
        if name == "\\":
            self.skip_option()
        if name in SWALLOWED:
            self.argument()
            return ""
        if name in ACCENTS:
            return unicodedata.normalize("NFC", (self.argument() or "") + ACCENTS[name])
        if name == "mathbb":
            return "".join(double_struck(letter) for letter in self.argument() or "")
        if name in LETTERS:
            return "".join(styled(letter, LETTERS[name]) for letter in self.argument() or "")
        return MACROS.get(name, "")

    def argument(self) -> str | None:
        """The next argument: a group, a macro alone, or one sign; none at the end of a group or of the text."""
        while self.at < len(self.tokens) and self.tokens[self.at][0].isspace():
            self.at += 1
        if self.at >= len(self.tokens) or self.tokens[self.at][0] == "}":
            return None
        token = self.tokens[self.at]
        name = token[1] or token[3]
        if name is not None:
            self.at += 1
            if name == "sqrt":
                raise UnconvertibleError("a root is an argument without braces")
            return "%s/%s" if name == "frac" else MACROS.get(name, "")
        if token[6] is None:
            return self.item()
        sign, rest = token[0].lstrip()[0], token[0].lstrip()[1:]
        if rest:
            self.tokens[self.at : self.at + 1] = TOKEN.finditer(rest)
        else:
            self.at += 1
        return sign

    def skip_option(self) -> None:
        """Past an argument in square brackets, where one stands next."""
        if self.at >= len(self.tokens) or not (rest := self.tokens[self.at][0].lstrip()).startswith("["):
            return
        at, rest = self.at, rest[1:]
        while "]" not in rest:
            at += 1
            if at >= len(self.tokens):
                return
            rest = self.tokens[at][0]
        self.tokens[self.at : at + 1] = TOKEN.finditer(rest.partition("]")[2])


def double_struck(letter: str) -> str:
    """A letter as ``mathbb`` sets it."""
    try:
        return unicodedata.lookup(f"DOUBLE-STRUCK CAPITAL {letter}")
    except KeyError:
        return letter


def styled(letter: str, first: int) -> str:
    """A letter of another alphabet."""
    if not (letter.isascii() and letter.isalpha()):
        return letter
    return chr(first + ord(letter.upper()) - ord("A") + (0 if letter.isupper() else 26))
