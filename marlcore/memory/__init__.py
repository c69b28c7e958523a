"""Shared memory: segments, the lanes of rows in them, and sleeping until another process writes.

A segment is a file in /dev/shm that lives as long as a process holds it. Its lanes are rings of rows, each with one
writer and any number of readers; a reader validates each row after copying it. Only this room calls the compiled core.
It knows nothing of transitions, weights or learning, and it blocks only callers that asked to wait.
"""

from .atomic import replace_file as replace_file
from .files import File as File
from .files import too_many_files as too_many_files
from .fork import invalidate_after_fork as invalidate_after_fork
from .guard import one_thread as one_thread
from .guard import refuse_second as refuse_second
from .lanes import ROOM_OFFSET as ROOM_OFFSET
from .lanes import LaneClaim as LaneClaim
from .lanes import LaneGeometry as LaneGeometry
from .lanes import claim as claim
from .lanes import claim_all as claim_all
from .lanes import claim_reader as claim_reader
from .locks import SEGMENT_LOCK as SEGMENT_LOCK
from .locks import add_lock as add_lock
from .locks import slot_lock as slot_lock
from .locks import writer_lock as writer_lock
from .native import BOUNDARY as BOUNDARY
from .native import LINE as LINE
from .native import TERMINATED as TERMINATED
from .native import TRUNCATED as TRUNCATED
from .native import Event as Event
from .native import NativeLanes as NativeLanes
from .native import Words as Words
from .native import is_locked as is_locked
from .native import try_lock as try_lock
from .native_writers import NativeVector as NativeVector
from .native_writers import NativeWriter as NativeWriter
from .new_file import Put as Put
from .segment import Segment as Segment
from .segment import SegmentHandle as SegmentHandle
from .shared_object import Shared as Shared
from .shared_object import described_workers as described_workers
from .space import SHM_DIR as SHM_DIR
from .survey import PREFIX as PREFIX
from .survey import SegmentFile as SegmentFile
from .survey import survey_names as survey_names
from .survey import survey_segments as survey_segments
from .waiting import WAIT_SLICE_S as WAIT_SLICE_S
from .waiting import Check as Check
from .waiting import check_interruption as check_interruption
from .waiting import interrupt_waits_with as interrupt_waits_with
from .waiting import sleep_until as sleep_until
