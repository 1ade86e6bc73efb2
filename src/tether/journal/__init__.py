"""THE RUN DIRECTORY, the contract between training and understanding. Standard library and numpy only; no torch."""
