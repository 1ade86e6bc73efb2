"""Surrogates, one a file: each says which tokens keep a gradient. Files here do not import each other."""
