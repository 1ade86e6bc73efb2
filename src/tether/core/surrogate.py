"""The clip, weighted REINFORCE, and the one radius to which SAT's contraction amounts."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tether.core.rule import Kernel, Mark, PolicyTokens, Surrogate
from tether.core.tokens import TokenBatch

MOST_RADIUS = 1e9
"""Largest radius above 1, and largest dual clip: as good as none, since ratios end at e^20 = 4.85e8."""
PLACES, ROUNDS = 257, 7
"""Of the search for the effective radius: the interval shrinks 256-fold seven times, past float64's 53 bits."""
Bound = float | Tensor
"""An end of the ratio's interval: one for all tokens, or one a token ``[T]``."""


def clipped(
    log_ratio: Float[Tensor, "T"],
    advantage: Float[Tensor, "T"],
    bounds: tuple[Bound, Bound],
    dual_clip: float | None = None,
) -> Surrogate:
    """``min(r A, clip(r, lower, upper) A)`` with ``r = exp(log_ratio)``; PPO's pessimistic clip (arXiv:1707.06347).

    Gradient ``A r`` where ``r A <= clip(r) A`` (the end itself included), 0 elsewhere. A token that moves back towards
    1 is never cut, unless ``dual_clip = c > 1`` (arXiv:1912.09729) floors the objective at ``c A`` for ``A < 0``.

    >>> out = clipped(torch.tensor([1.5, 0.5]).log(), torch.tensor([1.0, 1.0]), (0.8, 1.2))
    >>> [round(x, 4) for x in out.objective.tolist()], out.active.tolist()
    ([1.2, 0.5], [False, True])
    """
    return floored(capped(log_ratio.exp() * advantage, ceiling(advantage, bounds)), advantage, dual_clip)


def ceiling(advantage: Float[Tensor, "T"], bounds: tuple[Bound, Bound]) -> Float[Tensor, "T"]:
    """The most that the clip leaves of ``r A``: ``upper A`` where ``A > 0``, ``lower A`` where ``A < 0``; no gradient.

    The other end of the interval is never reached: there ``r A`` is the smaller of the two. So ``min(r A, ceiling)`` is
    ``min(r A, clip(r) A)`` for every r.

    >>> ceiling(torch.tensor([1.0, -1.0]), (0.8, 1.2))
    tensor([ 1.2000, -0.8000])
    """
    lower, upper = (b.detach() if isinstance(b, Tensor) else b for b in bounds)
    return torch.maximum(lower * advantage, upper * advantage)


def capped(gain: Float[Tensor, "T"], most: Float[Tensor, "T"]) -> Surrogate:
    """``min(gain, most)`` with ``gain = r A``; its gradient where it is at most ``most``, else 0.

    >>> capped(torch.tensor([1.5, -0.5]), torch.tensor([1.2, -0.2])).objective
    tensor([ 1.2000, -0.5000])
    """
    active = gain.detach() <= most
    return Surrogate(objective=torch.where(active, gain, most), active=active)


def floored(surrogate: Surrogate, advantage: Float[Tensor, "T"], dual_clip: float | None) -> Surrogate:
    """The dual clip: where ``A < 0`` the objective is at least ``dual_clip A``, and has no gradient below it.

    >>> floored(capped(torch.tensor([-5.0]), torch.tensor([-0.8])), torch.tensor([-1.0]), 3.0).objective
    tensor([-3.])
    """
    if dual_clip is None:
        return surrogate
    floor = dual_clip * advantage
    below = (advantage < 0) & (surrogate.objective.detach() < floor)
    objective = torch.where(below, floor, surrogate.objective)
    return surrogate._replace(objective=objective, active=surrogate.active & ~below)


def reinforced(weight: Float[Tensor, "T"], policy: PolicyTokens, advantage: Float[Tensor, "T"]) -> Surrogate:
    """``sg[weight] A log pi``: REINFORCE with a weight that has no gradient; a weight of 0 drops its token.

    >>> logp = torch.tensor([-0.5, -0.5], requires_grad=True)
    >>> out = reinforced(torch.tensor([1.5, 0.0]), PolicyTokens(logp), torch.ones(2))
    >>> out.objective.tolist(), out.active.tolist()
    ([-0.75, -0.0], [True, False])
    """
    weight = weight.detach()
    return Surrogate(objective=weight * advantage * policy.logp, active=weight > 0)


class Contraction(NamedTuple):
    """By how much, and where, a radius shrinks."""

    u: Float[Tensor, "T"]
    """How far each token has moved, >= 0."""
    q: Float[Tensor, "*Q"]
    """The scale it is measured against, one for all or one a token; 0 gates nothing."""
    kernel: Kernel
    meets: Bool[Tensor, "T"] | None = None
    """Where the end that contracts is the one that the advantage meets; ``None``: u is of the clipped ratio itself, so
    that the other end is out of reach and need not be told apart."""


def contracted(
    log_ratio: Float[Tensor, "T"], tokens: TokenBatch, bounds: tuple[float, float], by: Contraction
) -> Surrogate:
    """``clipped`` with the end that a token has moved towards pulled in where ``u > q > 0`` (SAT, arXiv:2607.18722).

    The ceiling goes from ``A``, which is ratio 1, to PPO's as the kernel goes from 0 to 1; tokens that are not gated
    have PPO's to the last bit.
    """
    gain = log_ratio.exp() * tokens.advantage
    plain = ceiling(tokens.advantage, bounds)
    q = torch.where(by.q > 0, by.q, math.inf)
    gate = by.u > q
    psi = by.kernel(by.u, q)
    met = gate if by.meets is None else gate & by.meets
    contraction = torch.maximum(psi, (~met).to(psi.dtype))  # a select by a random mask takes twice as long
    out = capped(gain, torch.lerp(tokens.advantage, plain, contraction.to(plain.dtype)))
    marks = {
        "sat/gate_fraction": Mark(gate, tokens.trainable),
        "sat/newly_cut_fraction": Mark((gain.detach() <= plain) & ~out.active, tokens.trainable),
        "sat/mean_contraction": Mark(psi, gate),
    }
    return out._replace(marks=marks)


def check_radii(rule: str, low: float, high: float, dual_clip: float | None) -> None:
    """Refuse radii that are no interval around 1, and a dual clip that would cut at ratio 1."""
    if not (0 <= low <= 1):
        raise ValueError(f"epsilon_low of {rule} must lie in [0, 1]; got {low}")
    if not (0 <= high < math.inf):
        raise ValueError(f"epsilon_high of {rule} must be finite and >= 0; got {high}")
    if high > MOST_RADIUS:
        raise ValueError(f"epsilon_high of {rule} must be at most {MOST_RADIUS:g} (0.2 is usual); got {high}")
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip of {rule} must be greater than 1 (3 is usual); got {dual_clip}")
    if dual_clip is not None and dual_clip > MOST_RADIUS:
        raise ValueError(f"dual_clip of {rule} must be at most {MOST_RADIUS:g} (3 is usual); got {dual_clip}")


def effective_radius(q: float, epsilon: tuple[float, float], kernel: Kernel) -> tuple[float, float]:
    """The two PPO radii ``(low, high)`` that have exactly SAT's gradient with this q, on the ratio that SAT reads.

    If the gate and the clip read the same log-ratio, whether a token is kept depends on its ``d`` alone: it is kept
    up to ``u* = max(q, root of e^u - 1 = eps psi(u; q))``, and never beyond PPO's own limit ``log(1 + eps)``
    (below 1: ``1 - e^-u``). The radius is ``e^u* - 1`` (``1 - e^-u*``). With q = 0 the gate is off: PPO's radii.

    >>> from tether.core.kernels import Hill
    >>> [round(x, 6) for x in effective_radius(0.02, (0.2, 0.2), Hill())]
    [0.039508, 0.040493]
    """
    low, high = effective_radii(torch.tensor(q, dtype=torch.float64), epsilon, kernel)
    return float(low), float(high)


def effective_radii(
    q: Float[Tensor, ""], epsilon: tuple[float, float], kernel: Kernel
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """``effective_radius`` without waiting for the device: two numbers in float64, where q is.

    >>> from tether.core.kernels import Step
    >>> low, high = effective_radii(torch.tensor(0.02), (0.2, 0.2), Step())
    >>> round(low.item(), 6), round(high.item(), 6)
    (0.019801, 0.020201)
    """
    low, high = epsilon
    q = torch.where(q > 0, q.detach().double(), math.inf)
    down = torch.maximum(q, _root(q, low, kernel, upper=False))
    up = torch.maximum(q, _root(q, high, kernel, upper=True))
    return (-torch.expm1(-down)).clamp(max=low), torch.expm1(up).clamp(max=high)


def _root(q: Float[Tensor, ""], epsilon: float, kernel: Kernel, *, upper: bool) -> Float[Tensor, ""]:
    """Where ``|e^(+-u) - 1| = epsilon psi(u; q)``: the left rises from 0, the right falls from epsilon.

    Each round asks at many places at once and keeps the interval between the last below and the first above.
    """
    low = torch.zeros_like(q)
    high = low + (math.log1p(epsilon) if upper else (-math.log1p(-epsilon) if epsilon < 1 else 50.0))
    shares = torch.linspace(0.0, 1.0, PLACES, dtype=q.dtype, device=q.device)
    for _ in range(ROUNDS):
        u = low + (high - low) * shares
        moved = torch.expm1(u) if upper else -torch.expm1(-u)
        last_below = (moved[1:-1] < epsilon * kernel(u[1:-1], q)).sum()
        low, high = u.take(last_below), u.take(last_below + 1)  # u[last_below] waits for the device
    return 0.5 * (low + high)
