"""How token losses become one number, with PPO's clip as the loss."""

from __future__ import annotations

from typing import Any

from parity.batches import LONGEST, Batch, with_empty_response
from parity.case import Case, Difference
from parity.methods.clip import PPO
from parity.sides import Side, Table, Tether, table
from parity.trl_side import TRL
from parity.verl_side import OFF, Verl

HORIZON = {"name": "seq-mean-token-sum-norm", "horizon": LONGEST}


def _verl(mode: str, **more: Any) -> Verl:
    return Verl("vanilla", {"loss_agg_mode": mode, **more, "clip_ratio_c": OFF})


def _ours(aggregation: str | Table) -> dict[str, Any]:
    return table(rule=PPO, aggregation=aggregation)


def _trained_on(batch: Batch) -> float:
    """Share of the responses that have a token trained on."""
    return batch.denominator.num_sequences / len(batch.logp)


def _empty(ours: dict[str, Any], theirs: Side, cause: str) -> Case:
    return Case(
        method=f"{ours['aggregation']['name']}, two empty responses",
        batch=with_empty_response,
        ours=Tether(ours),
        theirs=theirs,
        difference=Difference(cause, Tether(ours, scale=_trained_on)),
    )


BY_ALL = "TRL divides by all responses, tether by those that have a token trained on."
BY_SETTING = (
    "verl's trainer divides by its mini-batch size, tether by the responses that have a token trained on; so does "
    "verl's agg_loss where nobody tells it the size."
)
SAME = (
    *(
        Case(method=f"PPO, {mode}", ours=Tether(_ours(mode)), theirs=_verl(mode))
        for mode in ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean")
    ),
    Case(
        method="PPO, seq-mean-token-sum-norm",
        ours=Tether(_ours(HORIZON)),
        theirs=_verl("seq-mean-token-sum-norm", loss_scale_factor=LONGEST),
    ),
    Case(
        method="PPO, seq-mean-token-mean",
        ours=Tether(_ours("seq-mean-token-mean")),
        theirs=TRL({"loss_type": "grpo"}),
    ),
    Case(
        method="PPO, seq-mean-token-sum-norm",
        ours=Tether(_ours(HORIZON)),
        theirs=TRL({"loss_type": "dr_grpo", "max_completion_length": LONGEST}),
    ),
)
EMPTY = (
    *(
        Case(
            method="token-mean, two empty responses",
            batch=with_empty_response,
            ours=Tether(_ours("token-mean")),
            theirs=theirs,
        )
        for theirs in (_verl("token-mean"), TRL({"loss_type": "dapo"}))
    ),
    *(_empty(_ours(mode), _verl(mode), BY_SETTING) for mode in ("seq-mean-token-sum", "seq-mean-token-mean")),
    _empty(_ours(HORIZON), _verl("seq-mean-token-sum-norm", loss_scale_factor=LONGEST), BY_SETTING),
    _empty(_ours("seq-mean-token-mean"), TRL({"loss_type": "grpo"}), BY_ALL),
    _empty(_ours(HORIZON), TRL({"loss_type": "dr_grpo", "max_completion_length": LONGEST}), BY_ALL),
)
CASES = (*SAME, *EMPTY)
