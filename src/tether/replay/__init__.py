"""What the trainer's forward pass takes over from the engine's, one thing a file."""
