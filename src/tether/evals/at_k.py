"""What k samples a problem tell: avg@k, pass@k, maj@k, each with a 95 % interval over problems.

Names differ in the field; here: one of 4 samples right gives avg@4 = 0.25 (the mean; others: mean@k, or pass@1 from k
samples), pass@4 = 1 (any right). Each is a number per problem first, then the mean over problems
(`tether.evals.bootstrap.mean_score`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from tether.evals.bootstrap import Floats, mean_score
from tether.evals.estimators import Interval

Flags = NDArray[np.bool_]


def average_at(correct: Flags, valid: Flags | None = None, *, seed: int = 0) -> Interval:
    """avg@k: mean over problems of the share of right samples, ``[n, k]``; all k are used.

    Samples that failed (not ``valid``) are left out, and so is a problem that has none left; to count them as wrong
    leave out ``valid``.

    >>> average_at(np.array([[True, False, False, False]])).value
    0.25
    """
    return mean_score(average_of_each(correct, valid), seed=seed)


def average_of_each(correct: Flags, valid: Flags | None = None) -> Floats:
    """Share of right samples of each problem, ``[n, k] -> [n]``; NaN where none is valid."""
    right, known = _counts(correct, valid)
    shares: Floats = np.divide(right, known, out=np.full(len(right), np.nan), where=known > 0)
    return shares


def pass_at(correct: Flags, k: int, valid: Flags | None = None, *, seed: int = 0) -> Interval:
    """pass@k: the chance that k of a problem's m samples, drawn without replacement, hold a right one; ``[n, m]``.

    ``1 - C(m - c, k) / C(m, k)`` with c right of m (arXiv:2107.03374, section 2.1): unbiased, and no luck is in it as
    it would be in drawing (with replacement it is also too low). A problem must have k valid samples.

    >>> pass_at(np.array([[True, False, False, False]]), 4).value
    1.0
    >>> round(pass_at(np.array([[True] * 2 + [False] * 6]), 4).value, 3)
    0.786
    """
    return mean_score(pass_of_each(correct, k, valid), seed=seed)


def pass_of_each(correct: Flags, k: int, valid: Flags | None = None) -> Floats:
    """pass@k of each problem, ``[n, m] -> [n]``: ``1 - prod (m - c - i) / (m - i)`` over ``i < k``, all in 0 .. 1."""
    right, known = _counts(correct, valid)
    if k < 1 or (len(known) and k > known.min()):
        fewest = f"; problem {int(known.argmin())} has {int(known.min())}" if len(known) else ""
        raise ValueError(f"pass@k needs 1 <= k <= valid samples of each problem; got k = {k}{fewest}: ask a smaller k")
    none = np.ones(len(right))
    for i in range(k):
        none *= np.maximum(known - right - i, 0) / (known - i)
    return 1.0 - none


def majority_at(
    answers: Sequence[Sequence[str | None]],
    right: Sequence[Sequence[bool]],
    k: int | None = None,
    *,
    key: Callable[[str], Hashable] = str.strip,
    seed: int = 0,
) -> Interval:
    """maj@k: share of problems whose most frequent answer, of the first k samples, is right; ``[n][k]``.

    Answers vote together if their ``key`` is equal: by default their text; a key that reads numbers makes ``1/2`` and
    ``0.5`` one. ``None`` (nothing extracted, a failed sample) does not vote. A tie goes to the answer seen first; a
    problem of which nothing voted is wrong.

    >>> flags = [[False, False, True, True], [False, True, False, False]]
    >>> majority_at([["4", None, "5", "5"], ["1", "2", None, None]], flags).value
    0.5
    """
    return mean_score(majority_of_each(answers, right, k, key=key), seed=seed)


def majority_of_each(
    answers: Sequence[Sequence[str | None]],
    right: Sequence[Sequence[bool]],
    k: int | None = None,
    *,
    key: Callable[[str], Hashable] = str.strip,
) -> Floats:
    """1 where the vote of a problem is right, else 0: ``[n][k] -> [n]``."""
    fewest = min((len(row) for row in answers), default=0)
    if k is not None and not 1 <= k <= fewest:
        raise ValueError(f"maj@k needs 1 <= k <= samples of each problem; got k = {k}, and a problem has {fewest}")
    return np.array([_is_vote_right(a[:k], r[:k], key) for a, r in zip(answers, right, strict=True)], np.float64)


def _is_vote_right(answers: Sequence[str | None], right: Sequence[bool], key: Callable[[str], Hashable]) -> bool:
    """Whether the winner is right: what its first sample was judged. A counter keeps the order answers were seen in."""
    voted = [(key(answer), bool(flag)) for answer, flag in zip(answers, right, strict=True) if answer is not None]
    if not voted:
        return False
    ((winner, _),) = Counter(name for name, _ in voted).most_common(1)
    return next(flag for name, flag in voted if name == winner)


def _counts(correct: Flags, valid: Flags | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Right and known samples of each problem, ``[n]`` each."""
    correct = np.asarray(correct, np.bool_)
    valid = np.ones_like(correct) if valid is None else np.asarray(valid, np.bool_)
    if correct.ndim != 2 or valid.shape != correct.shape or not correct.size:
        raise ValueError(f"samples are [n, k] with n, k >= 1, and valid alike; got {correct.shape} and {valid.shape}")
    return (correct & valid).sum(1), valid.sum(1)
