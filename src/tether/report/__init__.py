"""Curves of a run directory as one self-contained HTML file. No arithmetic, no torch."""
