"""Several writers share a lane: no row is lost or torn, and a killed writer blocks no other."""

import errno
import os
from types import SimpleNamespace

import numpy as np
import pytest
from filled import filled
from mapped import Mapped
from seams import patch

from marlcore import Field, LaneBusy, ReplayBuffer, TransitionSpec
from marlcore.memory import add_lock

WORDS = 40  # of an observation, which lies in a column of its own
SPEC = TransitionSpec(Field((WORDS,), "uint64"), Field((), "int64"), next_obs=True)
SMALL = TransitionSpec(Field(), Field((), "int64"), next_obs=True)

# Row k of writer w: an observation that the key of both names, the next one by one more; action and reward follow.
WRITE = """
    import os, sys
    import numpy as np
    from marlcore import ReplayBuffer
    from marlcore.testing.rows import filled
    replay, me = ReplayBuffer.attach(sys.argv[1]), int(sys.argv[2])
    writer = replay.writer(shared=True)

    def rows(k, n):
        key = np.arange(k, k + n) + (me << 40)
        return dict(obs=filled(40, key), action=key, reward=key % (1 << 40) % 1000.0, next_obs=filled(40, key + 1))

    def add(k):
        n = 1 + k % 3  # one row, or two or three at once
        row = rows(k, n)
        if n == 1:
            row = {name: value[0] for name, value in row.items()}
            return n, writer.add(**row)
        return n, writer.add_batch(**row)
"""
WRITE_COUNTED = """
    print("ready", flush=True)
    sys.stdin.readline()
    tickets, k = [], 0
    while k < int(sys.argv[3]):
        n, ticket = add(k)
        tickets += range(ticket, ticket + n)
        k += n
    print(*tickets, flush=True)
"""


def make(spec=SPEC, capacity=64):
    return ReplayBuffer.create(spec, capacity)


def add(writer, value):
    return writer.add(value, value, value, next_obs=value)


def faults(batch) -> int:
    """Counts a batch's rows that no writer wrote so."""
    key = batch.action
    good = (batch.obs == filled(WORDS, key)).all(1) & (batch.next_obs == filled(WORDS, key + 1)).all(1)
    good &= batch.reward == key % (1 << 40) % 1000
    return int((~good).sum())


def test_writers_of_a_shared_lane_append_by_turns():
    """Each row begins an episode."""
    values = np.arange(3.0, dtype=np.float32)
    with make(SMALL) as replay, replay.writer(shared=True) as one, replay.writer(shared=True) as two:
        assert [add(one, 1), add(two, 2), add(two, 3), add(one, 4)] == [0, 1, 2, 3]
        assert two.add_batch(values, np.arange(3), values, next_obs=values) == 4
        assert add(one, 5) == 7
        assert len(replay) == 8
        assert not Mapped(replay).column(0)[:8, 4:6].any()


def test_a_lane_is_shared_by_all_its_writers_or_has_one():
    with make(SMALL) as replay:
        with replay.writer() as alone:
            with pytest.raises(LaneBusy, match="lane 0 has a living writer of its own"):
                replay.writer(shared=True)
            add(alone, 1)
        with replay.writer(shared=True), replay.writer(shared=True), pytest.raises(LaneBusy, match="a living writer"):
            replay.writer()
        replay.writer().close()


@pytest.mark.long
def test_a_killed_writers_child_does_not_keep_a_shared_lane(program):
    with make() as replay, replay.writer(shared=True) as writer:
        imports = "from meanwhile import leave_a_child; from marlcore.memory.native import try_lock"
        inside = "assert try_lock(writer._claim.fd, 1 + replay.lanes, True); leave_a_child()"
        holder = program(WRITE, imports, inside, args=[replay.handle.path, 1])
        child = int(holder.line())
        assert Mapped(replay).segment.is_locked(add_lock(1, 0))
        holder.kill()
        os.kill(child, 0)  # it lives
        row = np.zeros(WORDS, np.uint64)
        assert writer.add(row, 0, 0, next_obs=row) == 0
        os.kill(child, 9)


@pytest.mark.long
def test_writers_at_once_lose_no_row_and_tear_none(program):
    with make(capacity=65536) as replay:
        writers = [program(WRITE, WRITE_COUNTED, args=[replay.handle.path, me, 6000]) for me in (1, 2)]
        for writer in writers:
            assert writer.line() == "ready"
        for writer in writers:
            writer.tell()
        tickets = sorted(int(ticket) for writer in writers for ticket in writer.finish().split())
        sampler = replay.sampler(256, seed=0)
        assert sum(faults(sampler.sample()) for _ in range(200)) == 0
        assert tickets == list(range(Mapped(replay).committed()))
        assert len(tickets) >= 12_000


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(("code", "gate_s"), [(errno.EINTR, 0.0), (errno.EAGAIN, 4.0)], ids=["signals", "gate"])
def test_room_and_a_turn_are_waited_for_within_one_timeout(monkeypatch, code, gate_s, batch):
    """Signals do not extend the timeout; if the gate takes 4 of 5 seconds, 1 second remains for the turn."""
    clock, attempts = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now), []

    def gate(transitions, boundaries, timeout, check_open):
        clock.now += gate_s
        return True

    def busy(*args):
        attempts.append(args)
        assert len(attempts) < 1000
        clock.now += 0.125
        return -code

    with make(SMALL) as replay, replay.writer(shared=True, timeout=1.0 + gate_s) as writer:
        patch(monkeypatch, "transitions", time=clock)
        monkeypatch.setattr("marlcore.transitions.staging.BatchStaging.append", busy)
        monkeypatch.setattr(writer, "_add_row", busy)
        monkeypatch.setattr(writer, "_gate", gate if gate_s else None)
        says = r"lane 0: this writer waited \S+ seconds while another one was inside an add"
        with pytest.raises(TimeoutError, match=says):
            if batch:
                writer.add_batch(np.zeros(1), np.zeros(1, np.int64), np.zeros(1), next_obs=np.zeros(1))
            add(writer, 1)
        assert len(attempts) in (8, 9)
