"""Trajectory queues: each transition is read once and in order, for on-policy learners.

When a lane is full, its writer waits for the reader, overwrites unread rows or drops new ones. The reader's cursor lies
in shared memory: a successor continues where the reader stopped or, in a durable queue, at the last commit.
"""

from .queue import TrajectoryQueue
from .reader import TrajectoryReader, lane_rows_for
