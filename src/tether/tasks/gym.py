"""Any generator of reasoning-gym: problems without end, each with a scorer of its own."""

from __future__ import annotations

import dataclasses
import difflib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from tether.errors import ConfigError, DataError
from tether.registry import TASKS
from tether.rewards.gym import Key, Made, library, make
from tether.tasks.splits import hash_number, is_heldout
from tether.tasks.task import Problem, Split

RUNS_TEXT: Final = "its scorer runs what the model writes as code"
UNSAFE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"), f"{RUNS_TEXT} (eval)"),
    **dict.fromkeys(("countdown", "puzzle24", "polynomial_multiplication"), f"{RUNS_TEXT} (sympy's parse_expr)"),
    **dict.fromkeys(("intermediate_integration", "simple_integration"), f"{RUNS_TEXT} (sympy's parse_expr)"),
    "coin_flip": "its scorer hangs on 1e999999999",
    "complex_arithmetic": "its scorer pays in full for nan",
    "game_of_life_halting": "its scorer pays in full for any answer at all",
}
"""Generators that need ``unsafe``, and why; found in version 0.1.25."""
UNREPEATABLE: Final = frozenset(
    {"isomorphic_strings", "knight_swap", "list_functions", "polynomial_multiplication", "ransom_note", "word_ladder"}
)
"""Generators that make another problem from the same seed in another process, or another answer to it."""
_OURS = ("seed", "size")
_MOST_TRIES = 400


@TASKS.register("gym")
@dataclass(frozen=True, kw_only=True)
class Gym:
    """Problems of a generator of reasoning-gym, or of several by weight.

    A problem is made from a number that split, seed and index decide, and from nothing else; its key says which, and
    the reward ``gym`` makes it again to judge an answer. A question belongs to the held-out split if a hash of its
    text says so, hence no question is in both, whatever the seeds. A pre-trained model is needed: there is no
    demonstration.

    >>> task = Gym(dataset="chain_sum", options={"min_terms": 2, "max_terms": 2})
    >>> problem = task.problem("train", seed=0, index=0)
    >>> problem.reference, problem.key
    ('39', 'chain_sum/1476709956/{"max_terms": 2, "min_terms": 2}')
    >>> problem == task.problem("train", seed=0, index=0)
    True
    """

    criterion: ClassVar[str] = "gym"
    """Name of the reward that decides what is right when accuracy is measured."""

    dataset: str = "chain_sum"
    """Name of a generator."""
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    """Of the generator: its difficulty."""
    mix: tuple[dict[str, Any], ...] = field(default=(), hash=False)
    """Several generators instead: ``{dataset = "gcd", weight = 2.0, options = {}}`` each."""
    pool: int = 0
    """So many different problems of the training split, asked again and again, as a curriculum needs; 0: no end."""
    chat: bool = True
    """Ask in the model's chat format; without it the bare question is the prompt."""
    system: str = ""
    """System message of the chat; empty: whatever the chat template puts there by itself."""
    suffix: str = "Write the final answer between <answer> and </answer>."
    """What follows the question, on a line of its own."""
    unsafe: bool = False
    """Whether generators are taken whose scorers run model text as code, can be made to hang, or pay for what is
    wrong."""
    reward: str = "gym"
    """Name of the reward that judges the answers, or ``package.module:function``."""

    def __post_init__(self) -> None:
        if self.system and not self.chat:
            raise ConfigError(f"a system message needs chat = true; got system {self.system!r} with chat = false")
        if self.pool < 0:
            raise ConfigError(f"task.pool must be at least 1, or 0 for problems without end; got {self.pool}")
        for share in self._shares:
            share.check(unsafe=self.unsafe)

    @property
    def _shares(self) -> tuple[_Share, ...]:
        if not self.mix:
            return (_Share(dataset=self.dataset, options=self.options),)
        return tuple(_Share.read(table, f"task.mix[{number}]") for number, table in enumerate(self.mix))

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """The problem of that number in that split; the same one for the same arguments."""
        place = f"gym/{split}/{seed}/{index % self.pool if self.pool and split == 'train' else index}"
        shares = self._shares
        share = random.Random(place).choices(shares, [one.weight for one in shares])[0]
        key, made = self._made(share, place, split)
        return Problem(
            text=f"{made.question}\n{self.suffix}" if self.suffix else made.question,
            reference=made.reference,
            demonstration="",
            chat=self.chat,
            system=self.system,
            key=str(key),
        )

    def _made(self, share: _Share, place: str, split: Split) -> tuple[Key, Made]:
        """The first problem of the split, in an order that the place decides."""
        options = json.dumps(share.options, sort_keys=True)
        for number in range(_MOST_TRIES):
            key = Key(share.dataset, hash_number(f"{place}/{number}") % 2**31, options)
            made = make(key)
            if is_heldout(made.question) == (split == "heldout"):
                return key, made
        raise DataError(
            f"a generator must make enough different questions for two splits; {share.dataset!r} with {options} made "
            f"{_MOST_TRIES} and none for {split!r}: make it harder with task.options"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """A generator with its part in a mixture."""

    dataset: str
    options: Mapping[str, Any]
    weight: float = 1.0

    @classmethod
    def read(cls, table: Mapping[str, Any], where: str) -> _Share:
        if unknown := sorted(table.keys() - {"dataset", "weight", "options"}):
            raise ConfigError(f"unknown key {where}.{unknown[0]}; it has dataset, weight, options")
        name, weight, options = table.get("dataset"), table.get("weight", 1.0), table.get("options", {})
        if not isinstance(name, str):
            raise ConfigError(f"{where}.dataset must be the name of a generator; got {name!r}")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= 1e6:
            raise ConfigError(f"{where}.weight must be a number above 0, at most 1e6; got {weight!r}")
        if not isinstance(options, Mapping):
            raise ConfigError(f"{where}.options must be a table; got {options!r}")
        return cls(dataset=name, options=options, weight=float(weight))

    def check(self, *, unsafe: bool) -> None:
        """Refuse what the package does not know, and what it does not do well."""
        name, generators = self.dataset, library().factory.DATASETS
        known = [other for other in generators if other != "composite"]
        if name not in known:
            near = difflib.get_close_matches(name, known, n=5, cutoff=0.4)
            there = f"near it are {', '.join(near)}" if near else f"there are {len(known)}, such as chain_sum and gcd"
            several = "; several are a list, task.mix" if name == "composite" else ""
            raise ConfigError(f"no generator {name!r} in reasoning-gym; {there}{several}")
        if name in UNREPEATABLE:
            raise ConfigError(
                f"a run needs the same problem from the same seed in every process, and the generator {name!r} makes "
                "another one: take another generator"
            )
        if name in UNSAFE and not unsafe:
            raise ConfigError(
                f"the generator {name!r} is refused: {UNSAFE[name]}; take another one, or set task.unsafe = true if "
                "you accept that"
            )
        options = [f.name for f in dataclasses.fields(generators[name][1]) if f.name not in _OURS]
        if unknown := sorted(self.options.keys() - set(options)):
            raise ConfigError(f"the generator {name!r} has no option {unknown[0]!r}; it has {', '.join(options)}")
        try:
            make(Key(name, 0, json.dumps(self.options, sort_keys=True)))
        except Exception as error:  # an AssertionError for most settings, and whatever else its code raises
            raise ConfigError(
                f"the generator {name!r} refuses {dict(self.options)}: {type(error).__name__}: {error}; its options "
                f"are {', '.join(options)}"
            ) from error
