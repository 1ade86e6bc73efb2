"""What was answered to each problem, as a table."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tether.evals.evaluation import Evaluation

MOST_ANSWERS = 3
"""Different answers shown of a problem, the most frequent."""
WIDEST = 24
"""Characters of an answer."""


def print_table(evaluation: Evaluation) -> None:
    """A row a problem: right samples, reference, answers by how often they came, statuses, lengths."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("problem", "right", "reference", "answers", "status", "tokens", "cut"):
        table.add_column(name, justify="right" if name in ("right", "tokens", "cut") else "left", overflow="fold")
    for row, key in enumerate(evaluation.keys):
        judged = evaluation.judged[row]
        cells = (
            key,
            f"{int(evaluation.correct[row][judged].sum())}/{int(judged.sum())}",
            evaluation.references[row][:WIDEST],
            _counted(evaluation.extracted[row]),
            _counted(evaluation.status[row]),
            f"{evaluation.length[row].mean():.0f}",
            str(int(evaluation.truncated[row].sum())),
        )
        table.add_row(*map(Text, cells))
    Console(soft_wrap=True).print(table)


def _counted(answers: tuple[str | None, ...]) -> str:
    """The most frequent, with how often each came.

    >>> _counted(("204", "17", "204", None))
    '204 x2, 17, none'
    """
    counts = Counter("none" if answer is None else answer for answer in answers).most_common()
    shown = [answer[:WIDEST] + (f" x{times}" if times > 1 else "") for answer, times in counts[:MOST_ANSWERS]]
    return ", ".join([*shown, *(["..."] if len(counts) > MOST_ANSWERS else [])])
