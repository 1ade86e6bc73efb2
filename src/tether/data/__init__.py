"""Rows of data files as problems with their references: read, recognised, each problem once. No model, no torch."""
