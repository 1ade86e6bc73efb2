"""What changes the trainer's forward pass so that it repeats a choice of the engine, one a file."""
