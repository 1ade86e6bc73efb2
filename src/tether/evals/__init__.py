"""Evaluation: the runner and the estimators with their intervals."""
