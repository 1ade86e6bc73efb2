"""Prompts with their references, one task a file: procedural, seeded, splits disjoint."""
