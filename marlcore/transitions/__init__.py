"""Transitions as rows of lanes: where each field lies, how rows are written, and how batches are read.

A writer stages a transition and appends it in one call; readers copy rows into a batch's memory and check afterwards
that no writer overwrote them. The replay and the trajectory queue are built on this room. It never chooses what is
read: that is theirs.
"""

from .batch import Batch, BatchMemory, TorchBatch
from .lanes import TransitionLanes, spec_difference
from .layout import HEAD_BYTES, REWARD_OFFSET, Place, RecordLayout
from .staging import setter
from .window import Drawing, Lanes, Strategy, Window, address_of, check_count
from .writer import Writer

__all__ = [
    "HEAD_BYTES",
    "REWARD_OFFSET",
    "Batch",
    "BatchMemory",
    "Drawing",
    "Lanes",
    "Place",
    "RecordLayout",
    "Strategy",
    "TorchBatch",
    "TransitionLanes",
    "Window",
    "Writer",
    "address_of",
    "check_count",
    "setter",
    "spec_difference",
]
