"""The same arrays through tether's losses and through those of verl and TRL."""
