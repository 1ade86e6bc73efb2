"""Whether every rollout that was admitted came to exactly one end, asked when a run is over."""

from __future__ import annotations

from tether.errors import LedgerError
from tether.journal.ledger import Ledger


def check_balance(ledger: Ledger, admitted: int) -> None:
    """Raise ``LedgerError`` unless each of the rollouts ``admitted`` has a fate; ``admitted`` is counted elsewhere.

    >>> ledger = Ledger(lambda line: None)
    >>> ledger.admit("g0/0", "p", "g0")
    >>> _ = ledger.close("g0/0", "trained")
    >>> check_balance(ledger, 1)
    >>> check_balance(ledger, 2)
    Traceback (most recent call last):
    tether.errors.LedgerError: every rollout has exactly one fate; 2 were admitted, and the ledger closed 1 \
(trained 1): rollouts were lost, which is a fault of the pipeline. The run directory is kept: tether ledger RUN says \
more
    """
    if opened := ledger.open_lines:
        some = ", ".join(line.id for line in opened[:3])
        raise LedgerError(
            f"every rollout has exactly one fate; {len(opened)} have none when the run is over ({some}"
            f"{', ...' if len(opened) > 3 else ''}), which is a fault of the pipeline. The run directory is kept: "
            "tether ledger RUN says more"
        )
    balance = ledger.balance()
    if (closed := sum(balance.values())) != admitted:
        fates = ", ".join(f"{fate} {count}" for fate, count in balance.items())
        what = "lost" if closed < admitted else "counted twice"
        raise LedgerError(
            f"every rollout has exactly one fate; {admitted} were admitted, and the ledger closed {closed} ({fates}): "
            f"rollouts were {what}, which is a fault of the pipeline. The run directory is kept: tether ledger RUN "
            "says more"
        )
