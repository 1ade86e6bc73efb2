"""Can this machine run tether? One question a file, each with an answer and the way out.

Nothing here stops on a machine that is odd: what cannot be read is said to be unknown.
"""
