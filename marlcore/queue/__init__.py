"""Trajectory queues: transitions read once, in order, for on-policy learners.

Writers wait for the reader when their lane is full, or drop what it has not read; the reader's cursor lies in shared
memory, so that a successor goes on where it stopped. This room never returns a row twice.
"""

from .queue import TrajectoryQueue
from .reader import TrajectoryReader

__all__ = ["TrajectoryQueue", "TrajectoryReader"]
