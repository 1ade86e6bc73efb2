"""Recipes shipped with the package, as TOML."""
