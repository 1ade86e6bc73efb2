"""Signs into an expression. All of them: what is left over at the end makes the whole unreadable."""

from __future__ import annotations

from fractions import Fraction

from tether.verifier.expressions import EULER, IMAGINARY, INFINITY, PI, Call, Node, Number, Symbol, Unreadable, negative
from tether.verifier.tokens import DECORATED, FUNCTIONS, Token

DEEPEST = 40
"""Groups within one another that are read: Python's own stack is not to be tried by an answer."""
LARGEST_EXPONENT = 5000
"""Of ten, in scientific notation."""
CONSTANTS: dict[str, Node] = {"pi": PI, "e": EULER, "i": IMAGINARY, "infinity": INFINITY}
FUNCTION_SIGNS = frozenset("fghFGP")
"""Letters that, before a bracket, are functions and not factors."""
INVERSE = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}


def read(tokens: list[Token]) -> Node:
    """The expression that the signs spell, as a whole.

    >>> from tether.verifier.tokens import tokenize
    >>> read(tokenize("2 2/3")), read(tokenize("11 5/6"))
    (Number(value=Fraction(8, 3), decimals=None), Number(value=Fraction(71, 6), decimals=None))
    >>> read(tokenize("3 4"))
    Traceback (most recent call last):
        ...
    tether.verifier.expressions.Unreadable: two numbers stand side by side
    """
    reader = _Reader(list(tokens))
    node = reader.expression()
    if reader.position < len(reader.tokens):
        raise Unreadable(f"{reader.tokens[reader.position].text!r} is left over")
    return node


def number(text: str) -> Number:
    """A number as written, exactly.

    >>> number("6.02e3").value, number("12,345.60")
    (Fraction(6020, 1), Number(value=Fraction(61728, 5), decimals=2))
    """
    text = text.replace(",", "")
    if len(text) > 4000:
        raise Unreadable("a number of more than 4000 digits")
    mantissa, _, exponent = text.lower().partition("e")
    if exponent and abs(int(exponent)) > LARGEST_EXPONENT:
        raise Unreadable(f"a number with the exponent {exponent}")
    decimals = len(mantissa.partition(".")[2]) if "." in mantissa and not exponent else None
    return Number(Fraction(mantissa.rstrip(".")) * Fraction(10) ** int(exponent or 0), decimals)


class _Reader:
    """Recursive descent; a method a level, loosest first."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self.depth = 0
        self.open_bars = 0

    def peek(self, ahead: int = 0) -> str:
        token = self.at(ahead)
        return "" if token is None or token.kind == "number" else token.text

    def at(self, ahead: int = 0) -> Token | None:
        place = self.position + ahead
        return self.tokens[place] if place < len(self.tokens) else None

    def take(self, text: str) -> None:
        if self.peek() != text:
            raise Unreadable(f"{text!r} was expected, not {self.peek()!r}")
        self.position += 1

    def expression(self) -> Node:
        terms = [self.term()]
        while (sign := self.peek()) in ("+", "-"):
            self.position += 1
            term = self.term()
            terms.append(term if sign == "+" else negative(term))
        return terms[0] if len(terms) == 1 else Call("add", tuple(terms))

    def term(self) -> Node:
        node = self.signed()
        while True:
            if (sign := self.peek()) in ("*", "/"):
                self.position += 1
                node = Call("mul" if sign == "*" else "div", (node, self.signed()))
            elif self.starts_factor():
                node = Call("mul", (node, self.power()))
            else:
                return node

    def starts_factor(self) -> bool:
        token = self.at()
        if token is None:
            return False
        if token.kind == "number":
            raise Unreadable("two numbers stand side by side")
        if token.kind == "name":
            return token.text not in ("dots",)
        return token.text in ("(", "[", "{", "lfloor", "lceil") or (token.text == "|" and not self.open_bars)

    def signed(self) -> Node:
        is_negative = False
        while self.peek() in ("+", "-"):
            is_negative ^= self.peek() == "-"
            self.position += 1
        return negative(self.power()) if is_negative else self.power()

    def power(self) -> Node:
        base = self.postfix()
        if self.peek() != "^":
            return base
        self.position += 1
        if isinstance(base, Symbol) and self.peek() == "'":
            self.position += 1
            return Symbol(base.name + "'")
        exponent = self.exponent()
        if self.peek() in ("!", "^"):
            raise Unreadable(f"{self.peek()!r} follows a power")
        return Call("pow", (base, exponent))

    def exponent(self) -> Node:
        if self.peek() in ("+", "-"):
            sign = self.peek()
            self.position += 1
            return negative(self.exponent()) if sign == "-" else self.exponent()
        base = self.postfix()
        if self.peek() != "^":
            return base
        self.position += 1
        return Call("pow", (base, self.exponent()))

    def postfix(self) -> Node:
        node = self.primary()
        if isinstance(node, Symbol):
            if self.peek() == "_":
                self.position += 1
                node = Symbol(f"{node.name}_{self.raw()}")
            while self.peek() == "'":
                self.position += 1
                node = Symbol(node.name + "'")
            if node.name[0] in FUNCTION_SIGNS and self.peek() == "(":
                return Call("apply:" + node.name, self.arguments())
        if self.peek() == "!":
            self.position += 1
            node = Call("factorial", (node,))
        if self.peek() == "degree":
            self.position += 1
            node = Call("degree", (node,))
        return node

    def primary(self) -> Node:
        token = self.at()
        if token is None:
            raise Unreadable("the expression breaks off")
        if token.kind == "number":
            return self.numeral()
        if token.kind == "name":
            self.position += 1
            return self.named(token.text)
        closing = {"(": ")", "[": "]", "{": "}", "lfloor": "rfloor", "lceil": "rceil"}.get(token.text)
        if closing is not None:
            self.position += 1
            node = self.group(closing)
            return node if token.text in ("(", "[", "{") else Call(token.text[1:], (node,))
        if token.text == "|":
            self.position += 1
            self.open_bars += 1
            node = self.expression()
            self.open_bars -= 1
            self.take("|")
            return Call("abs", (node,))
        raise Unreadable(f"{token.text!r} begins no expression")

    def group(self, closing: str) -> Node:
        """An expression up to its closing bracket, where bars outside do not count."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise Unreadable(f"more than {DEEPEST} groups within one another")
        bars, self.open_bars = self.open_bars, 0
        node = self.expression()
        self.take(closing)
        self.open_bars = bars
        self.depth -= 1
        return node

    def numeral(self) -> Node:
        """A number; with a proper fraction behind it, the mixed number: ``1 1/4`` is 5/4."""
        token = self.at()
        assert token is not None
        self.position += 1
        if self.peek() == "overline":
            return self.repeating(token.text)
        value = number(token.text)
        if value.value.denominator != 1 or value.decimals is not None or not token.text.isdigit():
            return value
        part = self.fraction_of_digits()
        return value if part is None else Number(value.value + part)

    def fraction_of_digits(self) -> Fraction | None:
        """A fraction of two written integers, less than one, that follows here; the place moves behind it."""
        ahead = [self.at(n) for n in range(7)]
        texts = [token.text if token is not None else "" for token in ahead]
        if texts[1] == "/" and ahead[0] is not None and ahead[0].kind == "number" and ahead[0].is_spaced:
            top, bottom, length = texts[0], texts[2], 3
        elif texts[0] == "frac" and texts[1] == "{" and texts[3:5] == ["}", "{"] and texts[6] == "}":
            top, bottom, length = texts[2], texts[5], 7
        elif texts[0] == "frac" and texts[1].isdigit() and len(texts[1]) == 2:
            top, bottom, length = texts[1][0], texts[1][1], 2
        else:
            return None
        if not (top.isdigit() and bottom.isdigit() and 0 < int(top) < int(bottom)) or max(len(top), len(bottom)) > 50:
            return None
        self.position += length
        if self.peek() in ("^", "!", "_"):
            raise Unreadable(f"{self.peek()!r} follows a mixed number")
        return Fraction(int(top), int(bottom))

    def repeating(self, start: str) -> Node:
        r"""``0.1\overline{6}`` is 1/6."""
        self.take("overline")
        period = self.raw()
        if "." not in start or not period.isdigit() or len(period) > 100:
            raise Unreadable("a bar over what is no period")
        decimals = len(start.partition(".")[2])
        tail = Fraction(int(period), 10 ** len(period) - 1) / 10**decimals
        return Number(number(start).value + tail)

    def named(self, name: str) -> Node:
        if name in CONSTANTS:
            return CONSTANTS[name]
        if name == "frac":
            return Call("div", (self.argument(), self.argument()))
        if name == "binom":
            return Call("binom", self.arguments() if self.peek() == "(" else (self.argument(), self.argument()))
        if name == "sqrt":
            return self.root()
        if name in FUNCTIONS:
            return self.function(name)
        if name in DECORATED or name == "overline":
            return Symbol(f"{name}:{self.raw()}")
        if name == "dots":
            raise Unreadable("dots stand for what is not said")
        return Symbol(name)

    def argument(self) -> Node:
        r"""What a command takes: a group, or one sign; ``\frac12`` takes one digit twice."""
        token = self.at()
        if token is None:
            raise Unreadable("the expression breaks off")
        if self.peek() == "{":
            self.position += 1
            return self.group("}")
        if token.kind == "number":
            if not token.text.isdigit():
                raise Unreadable(f"{token.text!r} as the part of a fraction")
            self.position += 1
            if len(token.text) > 1:
                self.position -= 1
                self.tokens[self.position] = Token("number", token.text[1:])
            return Number(Fraction(int(token.text[0])))
        if token.kind == "name":
            self.position += 1
            return self.named(token.text)
        raise Unreadable(f"{token.text!r} as the part of a fraction")

    def root(self) -> Node:
        degree: Node = Number(Fraction(2))
        if self.peek() == "[":
            self.position += 1
            degree = self.group("]")
        token = self.at()
        if token is not None and token.kind == "number":
            self.position += 1
            inside: Node = number(token.text)
        elif self.peek() == "(":
            self.position += 1
            inside = self.group(")")
        else:
            inside = self.argument()
        return Call("root", (inside, degree))

    def function(self, name: str) -> Node:
        exponent: Node | None = None
        base: tuple[Node, ...] = ()
        if self.peek() == "_" and name == "log":
            self.position += 1
            base = (self.argument(),)
        if self.peek() == "^":
            self.position += 1
            exponent = self.exponent()
        if exponent == Number(Fraction(-1)):
            if name not in INVERSE:
                raise Unreadable(f"the power -1 of {name}")
            name, exponent = INVERSE[name], None
        args = self.arguments() if self.peek() in ("(", "{", "[") else (self.juxtaposed(),)
        node = Call(name, args + base)
        return node if exponent is None else Call("pow", (node, exponent))

    def juxtaposed(self) -> Node:
        r"""The argument of ``\sin 2x``: factors side by side, up to the next function."""
        if self.at() is None or self.peek() in ("+", "-"):
            raise Unreadable("a function without its argument")
        node = self.power()
        while self.starts_factor() and self.peek() not in FUNCTIONS and self.peek() not in ("(", "["):
            node = Call("mul", (node, self.power()))
        return node

    def arguments(self) -> tuple[Node, ...]:
        closing = {"(": ")", "{": "}", "[": "]"}[self.peek()]
        self.position += 1
        self.depth += 1
        if self.depth > DEEPEST:
            raise Unreadable(f"more than {DEEPEST} groups within one another")
        bars, self.open_bars = self.open_bars, 0
        args = [self.expression()]
        while self.peek() == ",":
            self.position += 1
            args.append(self.expression())
        self.take(closing)
        self.open_bars = bars
        self.depth -= 1
        return tuple(args)

    def raw(self) -> str:
        """A group, or one sign, as it stands."""
        if self.peek() != "{":
            token = self.at()
            if token is None or token.kind == "sign":
                raise Unreadable("nothing to attach")
            self.position += 1
            return token.text
        depth, start = 0, self.position
        while (token := self.at()) is not None:
            depth += (token.text == "{") - (token.text == "}")
            self.position += 1
            if depth == 0:
                return " ".join(t.text for t in self.tokens[start + 1 : self.position - 1])
        raise Unreadable("a group never closes")
