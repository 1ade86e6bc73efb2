"""Engines that sample completions, one a file; heavy imports stay inside."""
