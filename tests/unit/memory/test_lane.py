"""Lanes: the places of their bytes, one writer each, proof of death before a takeover, and quarantine."""

import os
import signal

import numpy as np
import pytest
from mapped import Mapped
from refused import check_refused

from marlcore import Field, LaneBusy, ReplayBuffer, SegmentCorrupt, TransitionSpec
from marlcore.memory import LINE, LaneGeometry, Segment, claim
from marlcore.memory.native import MAX_COLUMNS

GEOMETRY = LaneGeometry(lanes=3, capacity=5, columns=(24, 567, 7))

CLAIM = """
    import sys
    from marlcore.memory import LaneGeometry, Segment, claim
    from meanwhile import leave_a_child
    segment = Segment.attach(sys.argv[1])
    held = claim(segment, LaneGeometry(3, 5, (24, 567, 7)).bind(segment.body), 1)
    leave_a_child()
"""


@pytest.fixture
def segment():
    made = Segment.create("lanes", {}, GEOMETRY.nbytes)
    yield made
    made.close()


@pytest.fixture
def lanes(segment):
    return GEOMETRY.bind(segment.body)


def counters(segment, lane):
    at = GEOMETRY.counters_offset(lane)
    return segment.body[at : at + 16].view(np.uint64)


def test_lines_and_columns_of_all_lanes_lie_apart_and_aligned():
    taken = np.zeros(GEOMETRY.nbytes, int)
    taken[: 2 * LINE] += 1
    for lane in range(3):
        at = GEOMETRY.counters_offset(lane)
        assert at % LINE == 0
        taken[at : at + LINE] += 1
        for column, size in enumerate(GEOMETRY.columns):
            assert GEOMETRY.stride(column) % 8 == 0
            assert 0 <= GEOMETRY.stride(column) - size < 8
            first = GEOMETRY.column_offset(column) + lane * GEOMETRY.capacity * GEOMETRY.stride(column)
            assert first % 8 == 0
            taken[first : first + GEOMETRY.capacity * GEOMETRY.stride(column)] += 1
    assert taken.max() == 1
    assert all(GEOMETRY.column_offset(column) % LINE == 0 for column in range(3))


def test_a_lane_has_one_writer_in_a_process(segment, lanes):
    first = claim(segment, lanes, 1)
    check_refused(lambda: claim(segment, lanes, 1), LaneBusy, "lane 1 has a living writer")
    claim(segment, lanes, 0).close()
    first.close()
    first.close()
    claim(segment, lanes, 1)  # forgotten, and so given back
    claim(segment, lanes, 1).close()


def test_a_stopped_writer_keeps_its_lane_and_a_killed_one_not(segment, lanes, program):
    """A stopped writer may wake up, so a heartbeat must not call it dead. Its child does not keep the lane."""
    holder = program(CLAIM, args=[segment.path])
    child = int(holder.line())
    os.kill(holder.pid, signal.SIGSTOP)
    check_refused(lambda: claim(segment, lanes, 1), LaneBusy, "lane 1 has a living writer")
    holder.kill()
    os.kill(child, 0)  # it lives
    claim(segment, lanes, 1).close()
    os.kill(child, 9)


CONTRADICTORY = [(1, 0), (0, 6), (100, 106), (2**62, 2**62), (2**64 - 1, 2**64 - 1), (0, 2**64 - 1), (2**63, 5)]
LEFT_BY_THE_KILLED = [(0, 0), (0, 5), (3, 4), (2**61, 2**61 + 5)]


@pytest.mark.long
@pytest.mark.parametrize("words", CONTRADICTORY + LEFT_BY_THE_KILLED)
def test_only_contradictory_counters_quarantine_a_lane(segment, lanes, words):
    counters(segment, 1)[:] = words
    if words in CONTRADICTORY:
        check_refused(lambda: claim(segment, lanes, 1), SegmentCorrupt, "quarantined")
        counters(segment, 1)[:] = 0
    claim(segment, lanes, 1).close()  # the refused claim did not keep the lock


def test_counters_damaged_below_a_living_writer_stop_it():
    spec = TransitionSpec(Field(), Field())
    with ReplayBuffer.create(spec, 8) as replay, replay.writer() as writer:
        writer.add(0.0, 0.0, 0.0)
        words = Mapped(replay).counters()
        words[:] = 2**62, 2**62
        for call in (lambda: writer.add(0.0, 0.0, 0.0), lambda: replay.sampler(1).sample(), lambda: len(replay)):
            check_refused(call, SegmentCorrupt, "")


def test_as_many_large_fields_as_columns_fit_and_no_more():
    large = Field((300,), "uint8")
    most = MAX_COLUMNS - 1
    spec = TransitionSpec({f"f{i}": large for i in range(most)}, Field())
    with ReplayBuffer.create(spec, 4) as replay, replay.writer() as writer:
        obs = {f"f{i}": np.full(300, i, np.uint8) for i in range(most)}
        writer.add(obs, 0.0, 0.0, terminated=True)
        batch = replay.sampler(1).sample()
        assert all((batch.obs[f"f{i}"] == i).all() for i in range(most))
        del batch
    wide = TransitionSpec({f"f{i}": large for i in range(most + 1)}, Field())
    says = "columns: expected at most 16 large fields, got 17"
    check_refused(lambda: ReplayBuffer.create(wide, 4), ValueError, says)
