"""Weights: one process publishes a model, any number of processes pull it, and neither side waits.

A model is flattened into one row of bytes; publishing copies that row into a lane of a few rows. A reader never gets a
mixture of two versions.
"""

from .members import members_kept
from .publisher import MirrorWriter, Publisher
from .rows import SLOTS, Mode
from .store import ParameterStore
from .subscriber import Subscriber
