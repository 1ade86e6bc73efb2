"""The questions on which graders of mathematics disagree, each as a named option with a default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    r"""What counts as the same answer where mathematics alone does not say.

    A verdict names the option that decided it, in ``Verdict.policy``. Defaults lean to rejecting: a wrong answer that
    is paid for is learned.

    >>> Policies().order, Policies(order="kept").order
    ('any', 'kept')
    """

    percent: Literal["unit", "value"] = "unit"
    r"""``unit``: ``50\%`` is 50 with a sign that may be left out; ``value``: ``50\%`` is 0.5 and nothing else."""
    units: Literal["optional", "required"] = "optional"
    r"""``optional``: ``5\text{ cm}``, ``\$5`` and ``90^\circ`` equal 5, 5 and 90; two different units never agree."""
    order: Literal["any", "kept"] = "any"
    """Of a bare list: ``1,2`` and ``2,1``. Tuples are always ordered, sets never."""
    set_braces: Literal["optional", "required"] = "optional"
    r"""Whether a bare list ``1,2`` is the set ``\{1,2\}``."""
    parentheses: Literal["required", "optional"] = "required"
    """Whether a bare list ``1,2`` may stand for the tuple ``(1,2)``, in its order."""
    rounding: Literal["exact", "reference"] = "exact"
    """``reference``: a value that rounds to a decimal reference, at its digits, is right: 100/3 for 33.3."""
    choice_letters: Literal["loose", "exact"] = "loose"
    """``loose``: a reference that is one letter A to J is met by ``(B)``, ``B.``, ``b`` and ``(B) 42``."""
    thousands: Literal["strict", "loose"] = "strict"
    """``strict``: ``12,345`` is one number and ``12, 345`` a list; ``loose``: the latter may be either."""
    ratio: Literal["reduced", "exact"] = "reduced"
    """``reduced``: ``6:4`` is ``3:2`` and 3/2; ``exact``: part by part. Times (``12:00``) are never ratios."""
    base_suffix: Literal["optional", "required"] = "optional"
    """``optional``: for the reference ``11_8`` the digits 11 do; ``required``: a bare number is in base ten."""
    intervals: Literal["same", "distinct"] = "same"
    r"""Whether ``[0,1]`` and ``0 \le x \le 1`` say the same."""
    vectors: Literal["same", "distinct"] = "same"
    """Whether a matrix of one column or one row is the tuple of its entries."""
    text: Literal["exact", "case", "plural"] = "plural"
    """How words are compared: as they are, without case, or also without a final ``s``."""
    positive_variables: bool = False
    r"""Whether letters stand for positive numbers only, so that ``\sqrt{x^2}`` is x."""
    adjacent_boxes: Literal["last", "list"] = "last"
    r"""``\boxed{1}\boxed{2}``: its last box, or the list ``1,2``. Boxes with prose between them: always the last."""
    logarithm: Literal["either", "ten", "natural"] = "either"
    r"""What the base of a bare ``\log`` is: 10, e, or whichever of them makes the two agree."""
    names: Literal["optional", "required"] = "optional"
    """``optional``: ``x=5`` and ``f(x)=5`` equal 5, in both directions."""
