# ruff: noqa: RUF001 RUF002
"""The many ways to write the same sign, made one: Unicode, spaces, thousands, wrappers that only concern looks."""

from __future__ import annotations

import re
import unicodedata

SIGNS = str.maketrans(
    {"−": "-", "–": "-", "—": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "÷": "/"}
    | {"∞": r"\infty ", "√": r"\sqrt ", "°": r"^\circ ", "º": r"^\circ ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne "}
    | {"∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "±": r"\pm ", "∓": r"\mp ", "∅": r"\emptyset ", "…": r"\ldots "}
    | {"≈": r"\approx ", "⟨": r"\langle ", "⟩": r"\rangle ", "∀": r"\forall ", "∑": r"\sum ", "∫": r"\int "}
    | {"π": r"\pi ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "θ": r"\theta "}
    | {
        "λ": r"\lambda ",
        "μ": r"\mu ",
        "ρ": r"\rho ",
        "σ": r"\sigma ",
        "φ": r"\phi ",
        "ω": r"\omega ",
        "ε": r"\epsilon ",
    }
    | {"½": r"\frac12 ", "¼": r"\frac14 ", "¾": r"\frac34 ", "⅓": r"\frac13 ", "⅔": r"\frac23 ", "′": "'"}
    | {"\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u200b": "", "\ufeff": ""}
)
RAISED = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
LOWERED = re.compile(r"[₀₁₂₃₄₅₆₇₈₉]+")
PLAIN_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻₀₁₂₃₄₅₆₇₈₉", "0123456789-0123456789")

LOOKS = re.compile(
    r"\\(?:left|right)(?![A-Za-z])\.?"
    r"|\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|[bB]igg?[lrm]?|boldsymbol|bm|tiny|small"
    r"|normalsize|large|Large|LARGE|huge|Huge)(?![A-Za-z])|\\(?:text)?color\s*\{[^{}]*\}"
)
THIN_THOUSANDS = re.compile(r"(?<=\d)(?:\\,|~)(?=\d{3}(?!\d))")
BRACED_COMMA = re.compile(r"(?<=\d)\{,\} ?(?=\d)")
SPACES = re.compile(r"\\[,;:> ]|~|\\(?:q?quad|thinspace|enspace|hspace\{[^{}]*\})(?![A-Za-z])|\s+")
FRACTIONS = re.compile(r"\\(?:[dtcsx]|nice)frac(?![A-Za-z])")
BINOMIALS = re.compile(r"\\[dt]binom(?![A-Za-z])")
DEGREES = re.compile(r" ?\^ ?(?:\{ ?\\circ ?\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])")
ENDING = " \t\r\n\f\v;,"
HALF_SPACE = re.compile(r"(?<!\\)\\\Z")
"""What is left of a space such as ``\\,`` at the end."""
WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\[", r"\]"), (r"\(", r"\)"), ("**", "**"))
TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mbox|mathbf|rm|textsf|texttt)\s*\{([^{}]*)\}")
LOOSE_SPACE = re.compile(r"(?<![\d,]) |(?<=,) (?!\d{3}(?!\d))| (?!\d)")


def unwrap(text: str) -> str:
    r"""Without the marks of mathematics or emphasis around all of it, and the point that ends a sentence.

    >>> unwrap(r"$\frac{1}{2}$."), unwrap("**73**"), unwrap("$1$ and $2$")
    ('\\frac{1}{2}', '73', '$1$ and $2$')
    """
    while True:
        before = text
        text = HALF_SPACE.sub("", text.strip(ENDING))
        bare = text.rstrip(ENDING + ".")
        if text.count(".", len(bare)) == 1:  # two dots and more say something
            text = bare
        for start, end in WRAPPERS:
            inner = text[len(start) : len(text) - len(end)]
            is_whole = len(text) > len(start) + len(end) and text.startswith(start) and text.endswith(end)
            if is_whole and start not in inner and end not in inner:
                text = inner
        if text == before:
            return text if text.strip("$") else ""


def spell(text: str) -> str:
    r"""One spelling for each sign.

    >>> spell(r"1{,}000 − x²"), spell(r"\left(3, 5\,000\right)"), spell(r"90^{\circ}")
    ('1,000 - x^{2}', '(3, 5000 )', '90\\degree')
    """
    text = RAISED.sub(lambda m: "^{" + m[0].translate(PLAIN_DIGITS) + "}", text)
    text = LOWERED.sub(lambda m: "_{" + m[0].translate(PLAIN_DIGITS) + "}", text)
    text = unicodedata.normalize("NFKC", text.translate(SIGNS)).translate(SIGNS)
    text = LOOKS.sub(" ", " ".join(text.split())).replace(r"\!", "")
    text = BRACED_COMMA.sub(lambda m: "," if re.match(r"\d{3}(?!\d)", m.string[m.end() :]) else ".", text)
    text = THIN_THOUSANDS.sub("", text)
    text = BINOMIALS.sub(r"\\binom", FRACTIONS.sub(r"\\frac", text))
    text = DEGREES.sub(r"\\degree ", text)
    return SPACES.sub(" ", text).strip()


def plain(text: str) -> str:
    r"""For comparing two texts sign by sign: no spaces but those between digits, no text wrappers, no dollars.

    >>> plain(spell(r"\text{ June 5}")), plain("2 2/3"), plain("2 + 3")
    ('June5', '2 2/3', '2+3')
    """
    return LOOSE_SPACE.sub("", TEXT.sub(r"\1", text).replace(r"\$", "\\dollar").replace("$", "").strip())
