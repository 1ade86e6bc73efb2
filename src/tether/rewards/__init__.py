"""Judges of answers, one a file. No model text is ever evaluated as code."""
