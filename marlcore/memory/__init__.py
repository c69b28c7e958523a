"""Shared memory: segments, the lanes of rows in them, and sleeping until another process writes.

A segment is a file in /dev/shm that lives as long as a process holds it. Its lanes are rings of rows, each with one
writer and any number of readers; a reader validates each row after copying it. Only this package calls the compiled
core. It knows nothing of transitions, weights or learning, and blocks only callers that asked to wait.
"""

from .file_systems import check_keeps
from .files import File, same_file, sync_directory, too_many_files
from .flusher import Flusher, Flushing, Kept
from .guard import Inside, at_first_use, child_number, close_when_alone, invalidate_after_fork, let_in, one_thread
from .lanes import (
    ROOM_OFFSET,
    LaneGeometry,
    add_lock,
    claim,
    claim_clearing,
    claim_reader,
    name_lock,
    slot_lock,
    writer_lock,
)
from .native import (
    BOUNDARY,
    LINE,
    TERMINATED,
    TICKETS,
    TRUNCATED,
    Event,
    NativeLanes,
    Words,
    error_of,
    ffi,
    is_locked,
    lib,
    try_lock,
)
from .native_writers import AFTER, FIRST, LANE, ROWS, SEAM, SKIP, TAKE, NativeRows, NativeVector, NativeWriter
from .new_file import Put, remove_asides, replace_file
from .recovery import Recovered, take_flushing
from .segment import Segment, SegmentHandle
from .shared_object import Shared, described_workers
from .space import SHM_DIR
from .survey import PREFIX, SEGMENT_LOCK, survey_segments, sweep
from .waiting import (
    WAIT_SLICE_S,
    Check,
    check_interruption,
    interrupt_waits_with,
    interrupting_own_waits,
    sleep_until,
)
from .watermark import Marks
