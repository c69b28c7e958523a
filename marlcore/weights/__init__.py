"""Weights: one process publishes a model, any number of processes pull it, and nobody waits.

A model is laid flat into one row of bytes, and a publication is one copy into a lane of a few rows. This room never
shows a reader two publications mixed.
"""

from .store import ParameterStore

__all__ = ["ParameterStore"]
