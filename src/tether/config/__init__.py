"""Recipes: strings become objects here and nowhere else."""
