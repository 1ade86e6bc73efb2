"""Detached weights and masks, one a file. Files here do not import each other."""
