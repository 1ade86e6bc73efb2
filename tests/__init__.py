"""Tests mirror src; laws, golden numbers, architecture and whole runs stand beside."""
