"""A probe in words and columns, the same for the console and for its page."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from math import log

from tether.config.probe import Probed
from tether.pipeline.mismatch import Comparison
from tether.report.probe import ProbePage, Way, survival

WITHOUT, WITH = "without replay", "with replay"
MEASURES = (
    ("abs_mean", "mean |d|"),
    ("mean", "mean d"),
    ("p95", "p95 |d|"),
    ("p99", "p99 |d|"),
    ("max", "max |d|"),
    ("tail", "share of ratios outside 0.9 to 1.1"),
    ("k3", "k3"),
)
PARTS = (
    ("here", "rerouted at the token"),
    ("earlier", "rerouted before it only"),
    ("nowhere", "routed alike up to it"),
)
LEVELS = (1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Nats: the lines of the text plot."""
BAR = 20
"""Characters of its longest bar."""

Table = list[tuple[str, ...]]


def table_of(probed: Probed) -> Table:
    """Head and rows: a name, and its value without and, where there is one, with a replay."""

    def row(name: str, values: Iterable[str]) -> tuple[str, ...]:
        return (name, *values)

    ways = [way for _, way in _ways(probed)]
    rows: Table = [
        row("", [name for name, _ in _ways(probed)]),
        row("tokens", [f"{way.all.tokens:,}" for way in ways]),
        *(row(label, [f"{getattr(way.all, name):.4g}" for way in ways]) for name, label in MEASURES),
        row("ratio of a response, geometric mean", [f"{way.ratio[0]:.4g} to {way.ratio[1]:.4g}" for way in ways]),
        row("ratio of a response, product", [f"{way.product[0]:.4g} to {way.product[1]:.4g}" for way in ways]),
    ]
    for part, name in PARTS:
        apart = [distance for way in ways if (distance := way.by_route.get(part)) is not None]
        if apart:
            rows.append(row(f"{name} ({apart[0].tokens:,}): mean |d|", [f"{d.abs_mean:.4g}" for d in apart]))
            rows.append(row(f"{name} ({apart[0].tokens:,}): max |d|", [f"{d.max:.4g}" for d in apart]))
    for split in ("by_position", "by_probability"):
        for name, distance in getattr(probed.without, split).items():
            apart = [getattr(way, split)[name] for way in ways]
            rows.append(row(f"{name} ({distance.tokens:,}): mean |d|", [f"{d.abs_mean:.4g}" for d in apart]))
    for thresholds in zip(*(way.estr for way in ways), strict=True):
        values = ["none" if t.value is None else f"{t.value:g}" for t in thresholds]
        rows.append(row(f"estr threshold that masks {thresholds[0].share:.0%}", values))
    return rows


def notes_of(probed: Probed) -> list[str]:
    """What must be known to read the table."""
    about, routes = probed.about, probed.rerouting
    notes = [
        f"d = logp of the trainer ({about['trainer_dtype']}) - logp of the engine ({about['engine_dtype']}), in nats, "
        f"of sampled tokens. Both have the weights that were published, in {about['engine_dtype']}, to the last bit: "
        "what differs is the arithmetic.",
    ]
    if probed.lost is not None:
        notes.append(
            f"The engine samples among some ids only: over the whole vocabulary a token's log-prob is "
            f"{probed.lost:.4g} nats lower in the mean, which no arithmetic explains. Support replay takes that "
            "away, and nothing else."
        )
    elif any(about["truncation"][name] != off for name, off in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0))):
        notes.append(
            "The engine samples among some ids only and does not say which: d has in it what was cut away, and no "
            "replay can take it out."
        )
    if routes is None:
        return [*notes, f"No replay of routes: {probed.no_replay_because}."]
    return [
        *notes,
        f"The trainer's own experts differ from the engine's in {routes.pair_share:.2%} of (token, layer) pairs, at "
        f"{routes.token_share:.1%} of tokens, and only before the token at another {routes.earlier_share:.1%}.",
        "A replay undoes what other experts did. What is left are number formats: where they weigh more, the largest "
        "|d| of all tokens stays.",
    ]


def told_of(probed: Probed) -> list[str]:
    """What is wrong, what each setting that was tried leaves, and which to take."""
    lines = [f"WRONG: {fault}." for fault in probed.faults]
    return [*lines, *(trial.told() for trial in probed.trials), *([probed.verdict] if probed.verdict else [])]


def subtitle_of(probed: Probed) -> str:
    """What was sampled."""
    a = probed.about
    return (
        f"engine {probed.label}, task {a['task']}, {a['prompts']} prompts x {a['completions']} completions of at most "
        f"{a['max_tokens']} tokens, temperature {a['temperature']:g}, seed {a['seed']}, device {a['device']}"
    )


def thresholds_of(probed: Probed) -> list[tuple[str, str]]:
    """For each way to run, the line to paste: the threshold that masks the least share."""
    lines = []
    for name, way in _ways(probed):
        if not way.estr:
            lines.append((f"{name}, no threshold", "the engine does not report entropies, which estr needs"))
            continue
        first = way.estr[0]
        if first.value is None:
            told = f"the two sides agree in more than {1 - first.share:.0%} of the tokens, or in all but for rounding"
            lines.append((f"{name}, no threshold", told))
            continue
        replays = ",".join(f'{{name="{replay}"}}' for replay in probed.replays) if name == WITH else ""
        replay = f" --set 'algorithm.replay=[{replays}]'"
        model = f" --set {shlex.quote('model.path=' + probed.about['model_path'])}"
        paste = f"--set algorithm.preset=estr --set algorithm.corrections.0.threshold={first.value:g}{replay}{model}"
        lines.append((f"{name}, masks {first.masked:.2%} of these tokens", paste))
    return lines


def page_of(probed: Probed) -> ProbePage:
    """Everything of one engine for the page."""
    found = ((WITHOUT, probed.d), (WITH, probed.d_replayed))
    here = None if probed.rerouting is None else probed.rerouting.here
    return ProbePage(
        title=f"{probed.about['model']}: engine {probed.label} against the trainer",
        subtitle=subtitle_of(probed),
        table=table_of(probed),
        notes=[*notes_of(probed), *told_of(probed)],
        thresholds=thresholds_of(probed),
        ways=[
            Way(label=name, abs_d=abs(d), logp_behavior=probed.logp_behavior, rerouted=here)
            for name, d in found
            if d is not None
        ],
    )


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]).rstrip()
        for row in table
    ]


def text_plot(probed: Probed) -> list[str]:
    """Share of tokens at least so far apart, in plain characters; both axes logarithmic.

    A bar is full at all tokens and empty at one token.
    """
    curves = [survival(abs(d)) for d in (probed.d, probed.d_replayed) if d is not None]
    most, count = max((x[-1] for x, _ in curves if len(x)), default=0.0), len(probed.d)
    lines: Table = [("|d| >=", *(name for name, _ in _ways(probed)))]
    for level in LEVELS:
        if level <= most:
            shares = [float(share[x >= level][0]) if (x >= level).any() else 0.0 for x, share in curves]
            lines.append((f"{level:g}", *(_bar(share, count) for share in shares)))
    return aligned(lines)


def _bar(share: float, count: int) -> str:
    """A bar with its share.

    >>> _bar(1.0, 1000), _bar(0.0, 1000)
    ('#################### 100.00 %', '                       0.00 %')
    """
    length = 0 if share == 0 else round(BAR * (1 + log(share) / log(count))) if count > 1 else BAR
    return f"{'#' * length:<{BAR}} {share * 100:6.2f} %"


def _ways(probed: Probed) -> list[tuple[str, Comparison]]:
    ways = ((WITHOUT, probed.without), (WITH, probed.replayed))
    return [(name, way) for name, way in ways if way is not None]
