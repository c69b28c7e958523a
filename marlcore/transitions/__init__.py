"""Transitions as rows of lanes: the place of each field, writing rows, and reading batches.

A writer stages a transition and appends it in one call. A reader copies rows into a batch's memory, then checks that
no writer overwrote them meanwhile. The replay and the trajectory queue build on this room and choose the rows to read.
"""

from .batch import Batch as Batch
from .batch import BatchMemory as BatchMemory
from .batch import TorchBatch as TorchBatch
from .gate import Gate as Gate
from .lanes import TransitionLanes as TransitionLanes
from .lanes import spec_difference as spec_difference
from .layout import HEAD_BYTES as HEAD_BYTES
from .layout import REWARD_OFFSET as REWARD_OFFSET
from .layout import Place as Place
from .layout import RecordLayout as RecordLayout
from .staging import MEMORYVIEW_ITEMS as MEMORYVIEW_ITEMS
from .staging import setter as setter
from .vector_writer import VectorWriter as VectorWriter
from .window import LAP_LIMIT_S as LAP_LIMIT_S
from .window import Drawing as Drawing
from .window import LaneView as LaneView
from .window import Strategy as Strategy
from .window import Window as Window
from .window import address_of as address_of
from .writer import Writer as Writer
