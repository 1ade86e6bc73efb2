"""Several engines, or one in several formats, in one table."""

from __future__ import annotations

from collections.abc import Sequence

from tether.cli.probe_table import MEASURES, Table, told_of
from tether.config.probe import Probed
from tether.report.probe import ProbePage, Way


def comparison_of(found: Sequence[Probed]) -> Table:
    """Head and rows: a name, and its value for each engine; without a replay unless it says otherwise."""
    rows: Table = [
        ("", *(probed.label for probed in found)),
        ("tokens", *(f"{probed.without.all.tokens:,}" for probed in found)),
        *((label, *(f"{getattr(p.without.all, name):.4g}" for p in found)) for name, label in MEASURES),
    ]
    if any(probed.replayed is not None for probed in found):
        left = [None if probed.replayed is None else probed.replayed.all.abs_mean for probed in found]
        rows.append(("mean |d| with replay", *("-" if value is None else f"{value:.4g}" for value in left)))
    if any(probed.rerouting is not None for probed in found):
        shares = [None if probed.rerouting is None else probed.rerouting.token_share for probed in found]
        rows.append(("tokens rerouted", *("-" if share is None else f"{share:.2%}" for share in shares)))
    for split in ("by_position", "by_probability"):
        parts = [getattr(probed.without, split) for probed in found]
        for name in dict.fromkeys(name for part in parts for name in part):
            cells = [part.get(name) for part in parts]
            rows.append((f"{name}: mean |d|", *("-" if d is None else f"{d.abs_mean:.4g}" for d in cells)))
    settings = dict.fromkeys(trial.setting for probed in found for trial in probed.trials)
    for setting in settings:
        left = [
            next((t.leaves for t in probed.trials if t.setting == setting and t.distance is not None), None)
            for probed in found
        ]
        rows.append((f"{setting} leaves", *("-" if share is None else f"{share * 100:.3g} %" for share in left)))
    return rows


def several_notes(found: Sequence[Probed]) -> list[str]:
    """What must be known to read the table, and what each engine's trials say."""
    about = found[0].about
    notes = [
        f"d = logp of the trainer ({about['trainer_dtype']}) - logp of the engine, in nats, of tokens that this engine "
        "sampled; the trainer has the weights that were published to it, to the last bit, and replays nothing."
    ]
    notes += [f"{probed.label}: {line}" for probed in found for line in told_of(probed)]
    return notes


def several_page(found: Sequence[Probed], subtitle: str) -> ProbePage:
    """Everything of several engines for the page."""
    return ProbePage(
        title=f"{found[0].about['model']}: {len(found)} engines against the trainer",
        subtitle=subtitle,
        table=comparison_of(found),
        notes=several_notes(found),
        thresholds=[],
        ways=[Way(label=probed.label, abs_d=abs(probed.d), logp_behavior=probed.logp_behavior) for probed in found],
    )
