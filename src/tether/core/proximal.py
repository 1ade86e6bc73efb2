"""What a proximal policy is: the policy that the ratio is clipped against."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from tether.core.tokens import TokenBatch

StandsFor = Literal["behavior", "anchor", "old", "proxy"]
"""Which policy a proximal is; ``old`` also if it is an estimate of it, ``proxy``: none of them."""


@runtime_checkable
class Proximal(Protocol):
    """What the ratio is clipped against. Frozen; options are fields; no state."""

    @property
    def stands_for(self) -> StandsFor:
        """The policy it is, for the check of composition."""
        ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """Optional fields of ``TokenBatch`` without which it cannot work."""
        ...

    def __call__(self, tokens: TokenBatch, logp: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
        """``logp_proximal`` of every token, detached; ``logp`` is the current policy's, detached."""
        ...


def provided(x: Tensor | None, name: str) -> Tensor:
    """An optional field that a recipe which needs it was checked to have."""
    assert x is not None, f"a recipe that needs {name} is refused where nobody provides it"
    return x
