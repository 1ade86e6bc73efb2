"""What a distance is measured against, one a file: the q of SAT. Files here do not import each other."""
