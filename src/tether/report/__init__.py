"""Curves of a run directory as one self-contained HTML file. No arithmetic, no torch."""

from tether.report.page import write_report

__all__ = ["write_report"]
