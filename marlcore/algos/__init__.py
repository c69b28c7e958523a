"""Algorithms by name. An algorithm is a set of hyperparameters that makes, runs and trains a network.

The first use of a name imports its module, and torch.
"""

from ..lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
