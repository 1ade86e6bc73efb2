"""The scorers of reasoning-gym, each asked about a problem that is made again from its key."""

from __future__ import annotations

import functools
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, Final, Literal

from tether.errors import ConfigError, DataError
from tether.records import Answer, Grade, Prompt
from tether.registry import REWARDS
from tether.rewards.composition import RIGHT
from tether.verifier.extraction import boxes

_WRAPPERS = re.compile(
    r"(?:\$\$?(?P<a>[^$]*)\$\$?|\\\((?P<b>.*)\\\)|\\\[(?P<c>.*)\\\]|\*\*(?P<d>[^*]*)\*\*|`(?P<e>[^`]*)`"
    r"|\\(?:text|textbf|textit|texttt|mathrm|mathbf|mathit|boxed)\s*\{(?P<f>[^{}]*)\})\.?",
    re.DOTALL,
)
_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,40})(?:\.[0-9]{0,40})?")
_MOST_WRAPPED = 5
_KEPT = 512


@dataclass(frozen=True, slots=True)
class Key:
    """Which problem of which generator: enough to make it again, in any process.

    >>> key = Key("chain_sum", 17, '{"min_terms": 3}')
    >>> str(key)
    'chain_sum/17/{"min_terms": 3}'
    >>> Key.read(str(key)) == key
    True
    """

    dataset: str
    """Name of the generator."""
    seed: int
    options: str = "{}"
    """Of the generator, as JSON with sorted keys."""

    def __str__(self) -> str:
        return f"{self.dataset}/{self.seed}/{self.options}"

    @classmethod
    def read(cls, text: str) -> Key:
        """The key that a text names."""
        dataset, _, rest = text.partition("/")
        seed, _, options = rest.partition("/")
        if not (dataset and seed.isdecimal() and options):
            raise DataError(
                f"the reward 'gym' judges problems of the task 'gym', by their keys; got the key {text!r}: take "
                "another reward"
            )
        return cls(dataset, int(seed), options)


@dataclass(frozen=True, slots=True)
class Made:
    """A problem with who made it."""

    generator: Any
    entry: Mapping[str, Any]

    @property
    def question(self) -> str:
        """What is asked."""
        return str(self.entry["question"])

    @property
    def reference(self) -> str:
        """The generator's own answer; empty where it has none, as where many answers are right."""
        own = self.entry["answer"]
        return "" if own is None else str(own)

    def score(self, text: str) -> float:
        """What the generator's scorer gives an answer; nothing is printed."""
        with redirect_stdout(io.StringIO()):
            return float(self.generator.score_answer(text, self.entry))


@REWARDS.register("gym")
@dataclass(frozen=True, slots=True, kw_only=True)
class Gym:
    r"""``score_answer(answer, entry)`` of the reasoning-gym generator that made the problem; 1 is right.

    The answer is what the response marks: see ``answer``. A response that marks none gives 0. Where the scorer gives
    less than 1 to what it says literally, it is asked again without wrappers of LaTeX and Markdown, with the case of
    a reference that is one word, and with the digits of a reference that is a number of the same value; the stage says
    which reading decided. A scorer that raises fails the rollout.

    >>> text = "State the final answer to the following arithmetic problem: 23 + 60 + 71 ="
    >>> known = 'gym/chain_sum/4/{"max_digits": 2, "min_digits": 1}'
    >>> prompt = Prompt(id="p", text=text, token_ids=(1,), reference="154", problem=known)
    >>> [Gym()(prompt, Answer(text)).value for text in ("<answer>154</answer>", r"It is \boxed{154.0}", "29")]
    [1.0, 1.0, 0.0]
    """

    needs_end: ClassVar[bool] = True
    """A completion that was cut is wrong, whatever it says so far."""

    answer: Literal["any", "tags", "boxed", "last-line", "all"] = "any"
    r"""What is judged: the last ``<answer>`` ... ``</answer>``; the last ``\boxed{}``; the last line; all of it; or
    ``any``: the first of the first three that is there."""
    partial: bool = True
    """Whether a score between 0 and 1 counts as it is; else it counts as 0."""
    lenient: bool = True
    """Whether it is read in other ways where its words are not right as they stand."""

    def __call__(self, prompt: Prompt, answer: Answer) -> Grade:
        """The best score of its readings, with what was judged."""
        found, where = marked(answer.text, self.answer)
        if found is None:
            return Grade(value=0.0, status="no_answer", stage=where)
        made = make(Key.read(prompt.problem.partition("/")[2]))
        if made.question not in prompt.text:
            raise DataError(
                f"reasoning-gym must make the same problem from {prompt.problem!r} again, and made {made.question!r}; "
                "take the same version of it in every process"
            )
        best, stage = 0.0, "as is"
        for way, text in readings(found, made.reference) if self.lenient else [("as is", found)]:
            score = made.score(text)
            if score > best or score != score:  # a NaN is told, not hidden
                best, stage = score, way
            if best >= RIGHT:
                break
        if best < RIGHT and not self.partial:
            best = 0.0
        status = "correct" if best >= RIGHT else "wrong"
        return Grade(value=best, status=status, extracted=found, stage=f"{where}, {stage}")


def library() -> Any:
    """The package, imported when it is first needed."""
    try:
        import reasoning_gym  # it takes a second, and most runs do without
    except ImportError as error:
        raise ConfigError(
            f"the task 'gym' needs the package reasoning-gym ({error}): pip install 'tether-rl[gym]'"
        ) from error
    return reasoning_gym


@functools.lru_cache(maxsize=_KEPT)
def make(key: Key) -> Made:
    """The problem of a key: the same for the same key, in every process."""
    with redirect_stdout(io.StringIO()):
        generator = library().create_dataset(key.dataset, seed=key.seed, size=1, **json.loads(key.options))
        return Made(generator, generator[0])


def marked(response: str, how: str) -> tuple[str | None, str]:
    r"""What a response marks as its answer, and by what; ``None`` where it marks nothing.

    >>> marked("so <answer> 7 </answer>", "any"), marked(r"so \boxed{\frac{1}{2}}.", "any"), marked("so\n7\n", "any")
    (('7', 'tags'), ('\\frac{1}{2}', 'boxed'), ('7', 'last-line'))
    >>> marked("so 7", "tags")
    (None, 'tags')
    """
    for way in ("tags", "boxed", "last-line") if how == "any" else (how,):
        if found := _FINDERS[way](response):
            return found, way
    return None, how


def readings(found: str, reference: str) -> Iterator[tuple[str, str]]:
    r"""Ways to read an answer, the literal one first, each with its name.

    >>> list(readings(r"\text{Blue}", "blue"))
    [('as is', '\\text{Blue}'), ('unwrapped', 'Blue'), ('case', 'blue')]
    >>> list(readings("$1,050.0$", "1050"))[-1]
    ('number', '1050')
    """
    yield "as is", found
    bare = found
    for _ in range(_MOST_WRAPPED):
        wrapped = _WRAPPERS.fullmatch(bare)
        if wrapped is None:
            break
        bare = next(part for part in wrapped.groups() if part is not None).strip()
    if bare != found:
        yield "unwrapped", bare
    if bare != reference and reference.isalpha() and bare.removesuffix(".").casefold() == reference.casefold():
        yield "case", reference
    value, right = _value(bare), _value(reference)
    if bare != reference and value is not None and value == right:
        yield "number", reference


def _value(text: str) -> Decimal | None:
    return Decimal(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


def _tagged(response: str) -> str:
    end = response.rfind("</answer>")
    start = response.rfind("<answer>", 0, max(end, 0))
    return "" if end < 0 or start < 0 else response[start + len("<answer>") : end].strip()


def _boxed(response: str) -> str:
    found = boxes(response)
    return "" if not found or found[-1].inside is None else response[found[-1].inside].strip()


def _last_line(response: str) -> str:
    lines = response.strip().splitlines()
    return lines[-1].strip() if lines else ""


_FINDERS: Final[Mapping[str, Callable[[str], str]]] = {
    "tags": _tagged,
    "boxed": _boxed,
    "last-line": _last_line,
    "all": str.strip,
}
