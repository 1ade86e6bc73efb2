"""THE RUN DIRECTORY, the contract between training and understanding. Standard library and numpy only; no torch.

``schema`` says what a line looks like, ``writer`` writes it whole or not at all, ``ledger`` gives every rollout
exactly one fate, ``reader`` opens a run on any machine.
"""

from tether.journal.ledger import Ledger, LedgerLine
from tether.journal.merging import merge
from tether.journal.reader import RunView
from tether.journal.schema import SCHEMA, Sample
from tether.journal.spans import Span
from tether.journal.writer import RunWriter

__all__ = ["SCHEMA", "Ledger", "LedgerLine", "RunView", "RunWriter", "Sample", "Span", "merge"]
