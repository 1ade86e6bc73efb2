"""Where the parts run: inline, in one process under virtual time."""
