"""What is asked of one side of a comparison: its words, its interval, the name that it gives a value to."""

from __future__ import annotations

import re
from fractions import Fraction

from tether.verifier.evaluation import NotExact, Undefined, exact
from tether.verifier.expressions import EULER, INFINITY, Call, Node, Number, Symbol, TooLarge, negative, symbols, walk
from tether.verifier.spelling import TEXT
from tether.verifier.structure import Relation, Scalar, Sequence, Structure

FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}
DRESS = re.compile(r"[\"'`]|(?<!\d)[.,;:]|[.,;:](?!\d)|[!?]+$")
CAPITALS = re.compile(r"[A-Z]")
BASES: dict[str, tuple[Node, ...]] = {
    "ten": (Number(Fraction(10)),),
    "natural": (EULER,),
    "either": (Number(Fraction(10)), EULER),
}


def wording(text: str) -> str:
    """Words without what dresses them."""
    return " ".join(DRESS.sub("", TEXT.sub(r" \1 ", text)).split())


def has_bare_logarithm(node: Node) -> bool:
    """Whether a ``log`` in it has no base."""
    return any(isinstance(part, Call) and part.name == "log" and len(part.args) == 1 for part in walk(node))


def with_base(node: Node, base: Node) -> Node:
    """With that base at each ``log`` that has none."""
    if not isinstance(node, Call):
        return node
    args = tuple(with_base(arg, base) for arg in node.args)
    return Call("log", (*args, base)) if node.name == "log" and len(args) == 1 else Call(node.name, args)


def singular(text: str) -> str:
    """Each word without its final ``s``."""
    return " ".join(word[:-1] if len(word) > 3 and word.endswith("s") else word for word in text.split())


def of_hundred(value: Scalar) -> Node:
    """The value, a hundredth of it if it is in percent."""
    return Call("div", (value.node, Number(Fraction(100)))) if value.unit == "percent" else value.node


def rounds_to(gold: Node, other: Node) -> bool:
    """Whether the other, known more exactly, rounds to a reference that was written with decimals."""
    if not isinstance(gold, Number) or not gold.decimals or symbols(other):
        return False
    if isinstance(other, Number) and other.decimals is not None and other.decimals <= gold.decimals:
        return False
    half = Fraction(1, 2 * 10**gold.decimals)
    try:
        return abs(exact(other) - gold.value) <= half
    except (NotExact, Undefined, TooLarge):
        return False


def scalar_nodes(items: tuple[Structure, ...]) -> tuple[Node, ...] | None:
    """Their expressions, if each is a value without a unit."""
    nodes = tuple(item.node for item in items if isinstance(item, Scalar) and not item.unit)
    return nodes if len(nodes) == len(items) else None


def is_time(ratio: Sequence) -> bool:
    """Whether it may be a time of day: ``12:00``."""
    return ratio.brackets == "time"


def is_name(term: Structure) -> bool:
    """Whether it is a letter, or a function of letters, that an equation gives the value of."""
    if isinstance(term, Sequence) and term.brackets == "()":
        return all(is_name(item) for item in term.items)
    if not isinstance(term, Scalar) or term.unit:
        return False
    node = term.node
    if isinstance(node, Call) and node.name == "mul" and len(symbols(node)) == 2:
        # a segment, as AB
        return all(isinstance(arg, Symbol) and CAPITALS.fullmatch(arg.name) for arg in node.args)
    return isinstance(node, Symbol) or (isinstance(node, Call) and node.name.startswith("apply:"))


def is_named(relation: Relation) -> bool:
    """Whether it starts with a name."""
    return is_name(relation.terms[0])


def lhs(relation: Structure) -> Structure | None:
    """The name that an equation starts with."""
    return relation.terms[0] if isinstance(relation, Relation) and is_named(relation) else None


def subject(relation: Relation) -> Node | None:
    """The letter that an inequality is about."""
    names = [t.node for t in relation.terms if isinstance(t, Scalar) and isinstance(t.node, Symbol)]
    return names[0] if names else None


def as_interval(relation: Relation) -> Sequence | None:
    """The interval that ``0 < x <= 1`` or ``x > 3`` says."""
    terms = scalar_nodes(relation.terms)
    if terms is None or not set(relation.signs) <= {"<", "<=", ">", ">="}:
        return None
    signs = list(relation.signs)
    if all(sign in (">", ">=") for sign in signs):
        terms, signs = terms[::-1], [FLIPPED[sign] for sign in signs][::-1]
    elif not all(sign in ("<", "<=") for sign in signs):
        return None
    place = next((n for n, node in enumerate(terms) if isinstance(node, Symbol)), None)
    if place is None or any(symbols(node) & symbols(terms[place]) for n, node in enumerate(terms) if n != place):
        return None
    low, high = terms[:place], terms[place + 1 :]
    if len(low) > 1 or len(high) > 1:
        return None
    left = "(" if not low or signs[0] == "<" else "["
    right = ")" if not high or signs[-1] == "<" else "]"
    bounds = (low[0] if low else negative(INFINITY), high[0] if high else INFINITY)
    return Sequence("tuple", (Scalar(bounds[0]), Scalar(bounds[1])), left + right)


def as_union(several: Sequence) -> Sequence | None:
    """The union that ``x < 1 or x > 2`` says; with ``and`` it says none."""
    if several.word == "and":
        return None
    intervals = [as_interval(item) for item in several.items if isinstance(item, Relation)]
    found = tuple(interval for interval in intervals if interval is not None)
    subjects = {subject(item) for item in several.items if isinstance(item, Relation)}
    return Sequence("union", found) if len(found) == len(several.items) and len(subjects) == 1 else None
