"""Whole training runs: how fast they are, and what they learn."""
