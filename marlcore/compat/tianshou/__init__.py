"""Tianshou's replay buffers with their rows in marlcore's lanes: a lane for each environment.

    from marlcore.compat.tianshou import PrioritizedVectorReplayBuffer, VectorReplayBuffer

replaces the same names of `tianshou.data`. The classes derive from Tianshou's, so indices, priorities, stacks and
n-step returns are Tianshou's own; `add` writes a row to each lane in one call, and one kernel copies a batch.
"""

from .buffers import PrioritizedReplayBuffer, PrioritizedVectorReplayBuffer, ReplayBuffer, VectorReplayBuffer
