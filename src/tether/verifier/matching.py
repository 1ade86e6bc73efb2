"""Whether two answers of any shape say the same, part by part, and which policy was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from tether.verifier.aspects import (
    BASES,
    FLIPPED,
    as_interval,
    as_union,
    has_bare_logarithm,
    is_name,
    is_named,
    is_time,
    lhs,
    of_hundred,
    rounds_to,
    scalar_nodes,
    singular,
    subject,
    with_base,
    wording,
)
from tether.verifier.equality import are_equal, factor
from tether.verifier.expressions import Call, Node, Number, Symbol, negative, symbols
from tether.verifier.policies import Policies
from tether.verifier.spelling import plain
from tether.verifier.structure import Based, Dots, Matrix, Relation, Scalar, Sequence, Structure, Words

MOST_ITEMS = 200
"""Of a collection whose order does not matter: its pairs are compared."""


@dataclass(slots=True)
class Matcher:
    """Compares a reference with an answer under one set of policies, and remembers the policy that decided."""

    policies: Policies
    policy: str = ""
    library: Callable[[str, str], bool] | None = None
    """Asked about what only math-verify reads."""
    seen: set[str] = field(default_factory=set)
    """What kinds of comparison were made: ``number``, ``symbolic``, ``structure``, ``text``, ``library``."""

    def decide(self, name: str, holds: bool) -> bool:
        """Note that a policy was asked, and pass on what it said."""
        self.policy = name
        return holds

    def matches(self, gold: Structure, other: Structure) -> bool:
        """Whether they say the same. The reference comes first: some policies look at what it has."""
        match gold, other:
            case Words(), Words():
                return self.words(gold, other)
            case Scalar(), Scalar():
                return self.scalars(gold, other)
            case (Based(), _) | (_, Based()):
                return self.based(gold, other)
            case Dots(), Dots():
                return True
            case Matrix(), Matrix():
                return self.matrices(gold, other)
            case Relation(), Relation():
                return self.relations(gold, other)
            case Sequence(), Sequence():
                return self.sequences(gold, other)
        return self.across(gold, other)

    def across(self, gold: Structure, other: Structure) -> bool:
        """Two answers of different shapes that may say the same."""
        if isinstance(gold, Words) or isinstance(other, Words):
            self.seen.add("text")
            return False
        self.seen.add("structure")
        for relation, value in ((gold, other), (other, gold)):
            if isinstance(relation, Relation):
                interval = as_interval(relation)
                if interval is not None and isinstance(value, Sequence) and value.kind == "tuple":
                    same = self.matches(interval, value)
                    return same and self.decide("intervals", self.policies.intervals == "same")
                inner = self.value_of(relation)
                if inner is None or isinstance(value, Relation):
                    return False
                same = self.matches(inner, value) if relation is gold else self.matches(value, inner)
                return same and (not is_named(relation) or self.decide("names", self.policies.names == "optional"))
        for matrix, value in ((gold, other), (other, gold)):
            if isinstance(matrix, Matrix) and isinstance(value, Sequence) and value.kind == "tuple":
                entries = [row[0] for row in matrix.rows] if all(len(r) == 1 for r in matrix.rows) else matrix.rows[0]
                is_vector = len(entries) == sum(len(row) for row in matrix.rows)
                same = is_vector and value.brackets in ("()", "[]") and self.each(tuple(entries), value.items)
                return same and self.decide("vectors", self.policies.vectors == "same")
        if isinstance(gold, Sequence) and gold.kind == "ratio" and isinstance(other, Scalar):
            return self.ratio_as_value(gold, other)
        if isinstance(other, Sequence) and other.kind == "ratio" and isinstance(gold, Scalar):
            return self.ratio_as_value(other, gold)
        for several, one in ((gold, other), (other, gold)):
            if isinstance(several, Sequence) and several.kind in ("list", "set") and len(several.items) == 1:
                return self.matches(*((several.items[0], one) if several is gold else (one, several.items[0])))
        return False

    def words(self, gold: Words, other: Words) -> bool:
        """Text against text; what only looks like mathematics must be the same to the sign."""
        self.seen.add("text")
        if plain(gold.text) == plain(other.text) != "":
            return True
        if any(side.is_malformed or side.for_library for side in (gold, other)):
            return False
        a, b = wording(gold.text), wording(other.text)
        if not a or not b:
            return False
        if a == b:
            return True
        if a.lower() == b.lower():
            return self.decide("text", self.policies.text != "exact")
        if singular(a.lower()) == singular(b.lower()):
            return self.decide("text", self.policies.text == "plural")
        return False

    def scalars(self, gold: Scalar, other: Scalar) -> bool:
        """Values with their units."""
        if gold.unit != other.unit:
            if gold.unit and other.unit:
                return False
            if "percent" in (gold.unit, other.unit) and self.policies.percent == "value":
                return self.nodes(of_hundred(gold), of_hundred(other)) and self.decide("percent", True)
            name = "percent" if "percent" in (gold.unit, other.unit) else "units"
            same = self.nodes(gold.node, other.node)
            return same and self.decide(name, name == "percent" or self.policies.units == "optional")
        return self.nodes(gold.node, other.node)

    def nodes(self, gold: Node, other: Node) -> bool:
        """Values without units."""
        self.seen.add("symbolic" if symbols(gold) or symbols(other) else "number")
        if gold == other:
            return True
        if has_bare_logarithm(gold) or has_bare_logarithm(other):
            bases = BASES[self.policies.logarithm]
            same = any(are_equal(with_base(gold, base), with_base(other, base)) for base in bases)
            return self.decide("logarithm", same)
        if are_equal(gold, other):
            return True
        if self.policies.positive_variables and are_equal(gold, other, are_positive=True):
            return self.decide("positive_variables", True)
        return rounds_to(gold, other) and self.decide("rounding", self.policies.rounding == "reference")

    def based(self, gold: Structure, other: Structure) -> bool:
        """Where one has its base written. A reference without one is in base ten."""
        self.seen.add("number")
        if isinstance(gold, Based) and isinstance(other, Based):
            return gold.value == other.value
        if isinstance(gold, Based) and isinstance(other, Scalar):
            if self.policies.base_suffix == "required":
                return self.decide("base_suffix", self.nodes(Number(gold.value), other.node))
            digits = other.node.value if isinstance(other.node, Number) else None
            return self.decide("base_suffix", gold.digits.isdigit() and digits == int(gold.digits))
        if isinstance(gold, Scalar) and isinstance(other, Based):
            return self.nodes(gold.node, Number(other.value))
        if isinstance(gold, Relation) or isinstance(other, Relation):
            return self.across(gold, other)
        return False

    def matrices(self, gold: Matrix, other: Matrix) -> bool:
        """Entry by entry."""
        self.seen.add("structure")
        same = len(gold.rows) == len(other.rows)
        return same and all(self.each(a, b) for a, b in zip(gold.rows, other.rows, strict=True))

    def each(self, gold: tuple[Structure, ...], other: tuple[Structure, ...]) -> bool:
        """Part by part, in order."""
        return len(gold) == len(other) and all(self.matches(a, b) for a, b in zip(gold, other, strict=True))

    def unordered(self, gold: tuple[Structure, ...], other: tuple[Structure, ...]) -> bool:
        """One partner for each; a list with dots or too many items keeps its order."""
        if len(gold) != len(other):
            return False
        if any(isinstance(item, Dots) for item in (*gold, *other)) or len(gold) > MOST_ITEMS:
            return self.each(gold, other)
        free = list(other)
        for item in gold:
            partner = next((n for n, candidate in enumerate(free) if self.matches(item, candidate)), None)
            if partner is None:
                return False
            del free[partner]
        return True

    def sequences(self, gold: Sequence, other: Sequence) -> bool:
        """Several against several."""
        self.seen.add("structure")
        kinds = (gold.kind, other.kind)
        match kinds:
            case "tuple", "tuple":
                return gold.brackets == other.brackets and self.each(gold.items, other.items)
            case ("set", "set") | ("union", "union"):
                return self.unordered(self.distinct(gold.items), self.distinct(other.items))
            case "list", "list":
                return not self.is_other_joint(gold, other) and self.lists(gold.items, other.items)
            case ("list", "set") | ("set", "list"):
                same = self.unordered(self.distinct(gold.items), self.distinct(other.items))
                return same and self.decide("set_braces", self.policies.set_braces == "optional")
            case ("tuple", "list") | ("list", "tuple"):
                if {gold.brackets, other.brackets} != {"", "()"}:
                    return False
                same = self.each(gold.items, other.items)
                return same and self.decide("parentheses", self.policies.parentheses == "optional")
            case ("list", "union") | ("union", "list"):
                a, b = (as_union(side) if side.kind == "list" else side for side in (gold, other))
                same = a is not None and b is not None and self.sequences(a, b)
                return same and self.decide("intervals", self.policies.intervals == "same")
            case "ratio", "ratio":
                return self.ratios(gold, other)
        return False

    def is_other_joint(self, gold: Sequence, other: Sequence) -> bool:
        """Whether one holds all at once and the other any of several conditions: ``x > 1 and x < 2``, with ``or``."""
        conditions = [item for item in gold.items if isinstance(item, Relation) and set(item.signs) - {"=", "~", "in"}]
        return bool(conditions) and {gold.word, other.word} == {"and", "or"}

    def lists(self, gold: tuple[Structure, ...], other: tuple[Structure, ...]) -> bool:
        """Bare lists: all of one in all of the other, as often."""
        if len(gold) != len(other):
            return False
        if self.each(gold, other):
            return True
        # x=1, y=2 against 2, 1: names on one side only tie each value to its place
        named = [{side for side in items if isinstance(side, Relation)} for items in (gold, other)]
        if bool(named[0]) != bool(named[1]) and len({lhs(item) for side in named for item in side}) > 1:
            return False
        return self.unordered(gold, other) and self.decide("order", self.policies.order == "any")

    def distinct(self, items: tuple[Structure, ...]) -> tuple[Structure, ...]:
        """Each once, as sets have them."""
        kept: list[Structure] = []
        for item in items[:MOST_ITEMS]:
            if not any(self.matches(item, known) for known in kept):
                kept.append(item)
        return (*kept, *items[MOST_ITEMS:])

    def ratios(self, gold: Sequence, other: Sequence) -> bool:
        """``3:2`` and ``6:4``; two times of day are equal only if they are the same."""
        if len(gold.items) != len(other.items):
            return False
        if self.each(gold.items, other.items):
            return is_time(gold) == is_time(other)
        if is_time(gold) and is_time(other):
            return False
        return self.decide("ratio", self.policies.ratio == "reduced") and self.proportional(gold, other)

    def proportional(self, gold: Sequence, other: Sequence) -> bool:
        """Whether one is a multiple of the other."""
        a, b = scalar_nodes(gold.items), scalar_nodes(other.items)
        if a is None or b is None:
            return False
        crossed = [(Call("mul", (a[0], y)), Call("mul", (x, b[0]))) for x, y in zip(a[1:], b[1:], strict=True)]
        is_zero = any(are_equal(node, Number(Fraction(0))) for node in (a[0], b[0]))
        return not is_zero and all(are_equal(x, y) for x, y in crossed)

    def ratio_as_value(self, ratio: Sequence, value: Scalar) -> bool:
        """``3:2`` and 3/2."""
        parts = scalar_nodes(ratio.items)
        if parts is None or len(parts) != 2 or is_time(ratio) or value.unit:
            return False
        return self.decide("ratio", self.policies.ratio == "reduced") and self.nodes(Call("div", parts), value.node)

    def relations(self, gold: Relation, other: Relation) -> bool:
        """Equations and inequalities."""
        self.seen.add("structure")
        if gold.signs == other.signs and self.each(gold.terms, other.terms):
            return True
        a, b = as_interval(gold), as_interval(other)
        if a is not None and b is not None:
            return subject(gold) == subject(other) and self.matches(a, b)
        if len(gold.signs) == len(other.signs) == 1 and gold.signs[0] in FLIPPED and other.signs[0] in FLIPPED:
            return self.same_solutions(gold, other)
        x, y = self.value_of(gold), self.value_of(other)
        if x is None or y is None or (is_named(gold) and is_named(other) and lhs(gold) != lhs(other)):
            return False
        return self.matches(x, y)

    def same_solutions(self, gold: Relation, other: Relation) -> bool:
        """Equations are the same up to a factor, inequalities up to a positive one."""
        a, b = scalar_nodes(gold.terms), scalar_nodes(other.terms)
        if a is None or b is None:
            return False
        self.seen.add("symbolic")
        ratio = factor(Call("add", (a[0], negative(a[1]))), Call("add", (b[0], negative(b[1]))))
        if ratio is None:
            return False
        expected = other.signs[0] if ratio > 0 else FLIPPED[other.signs[0]]
        return gold.signs[0] == expected

    def value_of(self, relation: Relation) -> Structure | None:
        """What ``x = 5`` says of x; of ``10/2 = 5``, 5, if the two are equal; of ``x ~ 1.41``, nothing."""
        terms, signs = relation.terms, relation.signs
        if signs == ("~",) and is_name(terms[0]):
            return terms[1]
        if signs[-1] == "~" and all(sign == "=" for sign in signs[:-1]):
            terms, signs = terms[:-1], signs[:-1]
            if len(terms) == 1:
                return terms[0]
        if signs == ("in",) and isinstance(terms[0], Scalar) and isinstance(terms[0].node, Symbol):
            return terms[1]
        if any(sign != "=" for sign in signs):
            return None
        if not is_named(relation) and isinstance(terms[-1], Scalar) and isinstance(terms[-1].node, Symbol):
            terms = terms[::-1]
        rest = terms[1:] if is_name(terms[0]) else terms
        plainly = Matcher(self.policies)
        if any(not plainly.matches(rest[0], term) for term in rest[1:]):
            return None
        if rest is terms and any(isinstance(t, Scalar) and symbols(t.node) for t in terms):
            return None
        return rest[-1]
