"""A process that is killed at any moment of `VectorWriter.add` leaves whole rows, and lanes to its successor.

Each kill at a store or copy, in turn, is the scenario add_vector of test_crash_points.py; here a sampler draws beside.
"""

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from mapped import Mapped
from seams import trusting

from marlcore import Field, ReplayBuffer, TransitionSpec
from marlcore.testing.rows import filled

LANES, ROWS, WORDS, BATCH = 8, 16, 1024, 64
KILLS = 60
SPEC = TransitionSpec(Field((WORDS,), "uint64"), Field((), "int64"))


def observations(lane: np.ndarray, ticket: np.ndarray, birth: np.ndarray) -> np.ndarray:
    return filled(WORDS, lane, ticket, birth)


def torn_rows(batch) -> int:
    """Rows that are not as a writer made them, or whose next row is not the same writer's."""
    ticket, lane = np.divmod(batch.index, LANES)
    torn = (batch.obs != observations(lane, ticket, batch.policy_version)).any(1)
    torn |= (batch.next_obs != observations(lane, ticket + 1, batch.policy_version)).any(1)
    return int((torn | (batch.action != ticket)).sum())


def write(handle, birth: int) -> None:
    """What the killed process does: rows for all lanes or some, named by lane, ticket and birth."""
    with ReplayBuffer.attach(handle) as replay, replay.vector_writer() as vector:
        mapped, rng = Mapped(replay), np.random.default_rng(birth)
        vector.policy_version = birth
        tickets = np.array([mapped.committed(lane) for lane in range(LANES)])
        while True:
            lanes = rng.permutation(LANES)[: rng.integers(1, LANES + 1)]
            given = tickets[lanes]
            got = vector.add(
                observations(lanes, given, np.full(len(lanes), birth)), given, np.zeros(len(lanes)), lanes=lanes
            )
            assert (got == given).all()
            tickets[lanes] += 1


def lives(replay: ReplayBuffer) -> Iterator[int]:
    """Starts a writer again and again, yields while it lives, and kills it."""
    for birth in range(KILLS):
        before = Mapped(replay).committed()
        child = os.fork()
        if child == 0:
            try:
                write(replay.handle, birth)
            except BaseException as error:
                sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        doom = None
        while doom is None or time.monotonic() < doom:
            yield birth
            if doom is None and Mapped(replay).committed() > before + 2 * ROWS:
                doom = time.monotonic() + 0.02 * random.random()
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def draw_beside(replay: ReplayBuffer, sampler) -> Counter[str]:
    """What a sampler finds while writers are killed and replaced."""
    found: Counter[str] = Counter()
    for birth in lives(replay):
        if birth or Mapped(replay).committed() > ROWS:
            found["torn"] += torn_rows(sampler.sample(timeout=600.0))
            found["rows"] += BATCH
    for lane in range(LANES):
        committed, reserved = Mapped(replay).counters(lane).tolist()
        assert 0 <= reserved - committed <= 1
        found["inside"] += reserved > committed
    return found


@pytest.mark.long
def test_a_killed_vector_writer_leaves_whole_rows():
    with ReplayBuffer.create(SPEC, LANES * ROWS, LANES, name="vectorkills") as replay:
        found = draw_beside(replay, replay.sampler(BATCH, seed=0))
        assert found["torn"] == 0
        assert found["rows"] > 100 * BATCH
        with replay.vector_writer() as vector:
            tickets = np.array([Mapped(replay).committed(lane) for lane in range(LANES)])
            got = vector.add(observations(np.arange(LANES), tickets, np.zeros(LANES)), tickets, np.zeros(LANES))
            assert (got == tickets).all()


@pytest.mark.long
def test_a_sampler_that_does_not_validate_sees_torn_rows_of_a_vector():
    """The positive control: the test above would notice."""
    with ReplayBuffer.create(SPEC, LANES * ROWS, LANES, name="vectorkills") as replay:
        with trusting():
            sampler = replay.sampler(BATCH, seed=0)
        assert draw_beside(replay, sampler)["torn"] > 0
