"""WHO WAITS FOR WHOM: buffer, packing, trainer, publisher, controller."""
