"""The loops of acting, learning and evaluating, and their parts: collectors of transitions, players, whole episodes.

Loops get everything that they use as arguments: they start no process, open no file, and create no shared memory. Each
name imports its module on first use, because actors of compiled policies need no torch.
"""

from ..lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
