"""How a version travels from the trainer to the engines: whole or absent."""
