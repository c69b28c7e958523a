"""Transitions as rows of lanes: the place of each field, writing rows, and reading batches.

A writer stages a transition and appends it in one call. A reader copies rows into a batch's memory, then checks that
no writer overwrote them. The replay and the trajectory queue build on this package and choose the rows to read.
"""

from .batch import Batch, BatchMemory, TorchBatch, memory_of
from .counting import count_transitions
from .durable import DURABLE, Durability, Durable, hollow
from .in_order import InOrder
from .lanes import TransitionLanes, spec_difference
from .layout import HEAD_BYTES, LaneView, Place, RecordLayout
from .raw_rows import RowsReader, RowsWriter, share_of
from .setters import setter
from .vector_writer import HeldRows, VectorWriter
from .window import LAP_LIMIT_S, Layout, ReadPlan, Window, address_of
from .writer import Writer
from .writer_base import Gate
