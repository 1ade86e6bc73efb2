"""Factors of the learning rate of a single update, one a file; each is measured over the whole step."""
