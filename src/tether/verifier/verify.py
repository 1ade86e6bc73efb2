"""Grading one answer in this process, without limits: what a worker runs, and what tests and notebooks may call."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from tether.errors import ConfigError
from tether.verifier.verdict import Mode, Verdict

if TYPE_CHECKING:
    from tether.verifier.policies import Policies


def verify(answer: str, reference: str, mode: Mode = "robust", policies: Policies | None = None) -> Verdict:
    r"""Whether ``answer``, a whole response, is right; ``reference`` is what it should end in.

    The two have their places: a relation in the reference may be met by its solution, and not the other way round.
    There is no limit of time or memory here; ``tether.verifier.pool.Verifier`` has both.

    >>> verify(r"so it is \boxed{025}", "25", "strict-int").status
    'correct'

    Args:
        answer: the response of a model.
        reference: the right answer, alone or in the text of a solution.
        mode: how answers are found and compared.
        policies: for mode ``robust``, what counts as the same; ``None``: the defaults.
    """
    check_texts(answer, reference)
    check_mode(mode, policies)
    if mode == "strict-int":
        from tether.verifier.strict_int import judge_strict_int

        return judge_strict_int(answer, reference)
    if mode == "upstream":
        from tether.verifier.upstream import judge_upstream

        return judge_upstream(answer, reference)
    from tether.verifier.policies import Policies
    from tether.verifier.robust import judge_robust

    return judge_robust(answer, reference, policies or Policies())


def check_texts(answer: object, reference: object) -> None:
    """Raise ``TypeError`` naming the argument that is not text: a number compared with text would always be wrong.

    >>> check_texts("0.3", 1 / 3)
    Traceback (most recent call last):
    TypeError: reference must be text; got float 0.3333333333333333; write it as it would stand in an answer, '1/3'
    """
    for name, value in (("answer", answer), ("reference", reference)):
        if not isinstance(value, str):
            raise TypeError(
                f"{name} must be text; got {type(value).__name__} {value!r:.100}; "
                "write it as it would stand in an answer, '1/3'"
            )


def check_mode(mode: str, policies: object) -> None:
    """Raise ``ConfigError`` for a mode that there is not, and for policies that nobody would read."""
    if mode not in get_args(Mode):
        raise ConfigError(f"no verifier mode {mode!r}; there are {', '.join(get_args(Mode))}")
    if policies is not None and mode != "robust":
        raise ConfigError(f"policies belong to mode 'robust', and the mode is {mode!r}; leave them out, or change it")
