"""What to tell a person whose settings leave one side of a run waiting for the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tether.pipeline.timeline import ENGINE_IDLE

WARM_UP: Final = 10
"""Batches at the beginning that are not looked at: everybody waits while a pipeline fills."""
STARVED: Final = 0.4
"""Share of the time that the trainer may wait for data, or for generation to settle."""
HELD_BACK: Final = 0.5
"""Share of the time that engines may be idle while the bound holds back what they would sample."""
PUBLISHING: Final = 0.2
"""Share of the time that the trainer may wait for publications to be acknowledged."""
SPOILED: Final = 0.1
"""Share of the rollouts that may be dropped, and restarts a rollout."""
BUSY: Final = 0.1
"""Who waits for less than this is the slower side, which nothing that the other is given makes faster."""


def shares_of(waits: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Each wait as a share of the seconds that passed; ``engine_idle`` is the mean over the engines.

    >>> shares_of({"data_s": 2.0, "engine_idle/engine-0_s": 3.0, "engine_idle/engine-1_s": 1.0}, 4.0)
    {'data': 0.5, 'engine_idle': 0.5}
    """
    idle = [waited / seconds for name, waited in waits.items() if name.startswith(ENGINE_IDLE)]
    shares = {name.removesuffix("_s"): s / seconds for name, s in waits.items() if not name.startswith(ENGINE_IDLE)}
    return {**shares, ENGINE_IDLE: sum(idle) / len(idle)} if idle else shares


def wasted(shares: Mapping[str, float], regime: str, in_flight: str) -> dict[str, str]:
    """What wastes a side, in words, by what is waited for; nothing in ``sync``, where waiting is the regime.

    >>> for words in wasted({"data": 0.63}, "fully-async", "keep").values():
    ...     print(words)
    the trainer waited 63 % of the time for data: raise pipeline.max_staleness or add an engine
    """
    if regime == "sync":
        return {}
    found = {}
    if (share := shares.get("data", 0.0)) > STARVED:
        found["data"] = f"the trainer waited {_percent(share)} of the time for data: {_more_data(shares, regime)}"
    if (share := shares.get("settle", 0.0)) > STARVED:
        found["settle"] = (
            f"the trainer waited {_percent(share)} of the time for generation to settle before a publication: add an "
            "engine, or set pipeline.regime=fully-async, which publishes at any moment"
        )
    if (share := min(shares.get("slot", 0.0), shares.get(ENGINE_IDLE, 0.0))) > HELD_BACK:
        found["slot"] = f"engines waited {_percent(share)} of the time for a free slot: {_fewer_waits(shares, regime)}"
    if (share := shares.get("publication", 0.0)) > PUBLISHING:
        other = regime == "fully-async" and in_flight == "finish"
        way = (
            "pipeline.in_flight=finish waits for all under way; use keep or recompute"
            if other
            else "raise pipeline.lag"
        )
        found["publication"] = f"the trainer waited {_percent(share)} of the time for publications to be taken: {way}"
    return found


def spoiled(balance: Mapping[str, int], restarts: float) -> list[str]:
    """What was sampled in vain, in words: rollouts that were dropped, and generations that began anew, a rollout.

    >>> for words in spoiled({"trained": 40, "evicted:staleness": 60}, 0.0):
    ...     print(words.partition(":")[0])
    60 % of the rollouts were dropped (evicted
    """
    found = []
    dropped = {fate: count for fate, count in balance.items() if fate.startswith("evicted:")}
    if (share := sum(dropped.values()) / max(1, sum(balance.values()))) > SPOILED:
        fates = ", ".join(f"{fate} {count:,}" for fate, count in dropped.items())
        found.append(
            f"{_percent(share)} of the rollouts were dropped ({fates}): the bound makes selection.drop_staleness and "
            "drop_queue needless, and they starve long answers; leave them out"
        )
    if restarts > SPOILED:
        found.append(
            f"generations began anew {restarts:.1f} times a rollout, and what they had sampled was thrown away: with "
            "pipeline.in_flight = keep or recompute they go on"
        )
    return found


def _more_data(shares: Mapping[str, float], regime: str) -> str:
    """How the trainer gets its data sooner: engines that never rest cannot use more slots."""
    raised = "raise pipeline.max_staleness" if regime == "fully-async" else "set pipeline.regime=fully-async"
    if ENGINE_IDLE not in shares:
        return f"{raised} or add an engine"
    idle = shares[ENGINE_IDLE]
    if idle < BUSY:
        return f"add an engine (they are idle for {_percent(idle)} of it), or lower engine.max_tokens"
    return f"{raised} (engines are idle for {_percent(idle)} of it)"


def _fewer_waits(shares: Mapping[str, float], regime: str) -> str:
    """How engines wait less: more slots help only while the trainer waits, too."""
    if shares.get("data", 0.0) + shares.get("settle", 0.0) < BUSY:
        return "the trainer is the slower side, and a larger bound would only age the data; use fewer engines"
    raised = "raise pipeline.max_staleness" if regime == "fully-async" else "set pipeline.regime=fully-async"
    return f"the bound holds them back while the trainer waits, too; {raised}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
