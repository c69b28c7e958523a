"""The writer of several lanes leaves the bytes that one writer a lane would leave, or changes nothing."""

import gc
import os
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mapped import Mapped
from model import SPECS, column, random_row

from marlcore import Field, LaneBusy, RateLimiter, ReplayBuffer, SegmentCorrupt, TransitionSpec
from marlcore.observations import put_rows
from marlcore.transitions import HeldRows

SMALL = TransitionSpec(Field((4,)), Field((), "int64"))
FRAMES = TransitionSpec(Field((20, 20), "uint8"), Field((), "int64"))
ALL_SPECS = SPECS | {
    "large action": TransitionSpec(Field((300,), "uint8"), Field((100,)), {"state": Field((99,), "float64")}),
    "at intervals": TransitionSpec(Field((4,)), Field((), "int64"), {"lstm": Field((3,), every=3), "x": Field()}),
}
LANES = 5


def rows(k, value=0.0, **changes):
    """Returns the arguments of an `add` of k rows to a replay of SMALL."""
    made = {"obs": np.full((k, 4), value, np.float32), "action": np.full(k, int(value)), "reward": np.full(k, value)}
    return made | changes


def body(replay):
    return Mapped(replay).body.tobytes()


steps = st.lists(
    st.tuples(
        st.none() | st.lists(st.integers(0, LANES - 1), min_size=1, max_size=LANES, unique=True),  # lanes of the call
        st.booleans(),  # whether final_obs is given
        st.sampled_from([0.0, 0.3, 1.0]),  # how often episodes end
        st.none() | st.lists(st.integers(0, LANES - 1), max_size=2),  # lanes that begin an episode before
    ),
    max_size=25,
)  # fmt: skip


@pytest.mark.parametrize("name", ALL_SPECS)
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(program=steps, seed=st.integers(0, 2**32 - 1))
def test_a_vector_writer_leaves_the_bytes_of_single_writers(name, program, seed):
    """Counters, records, frames and states at intervals are the same, wherever lanes wrap.

    Rows held until their outcomes come leave the same bytes too. A later call does not change returned tickets.
    """
    spec, rng = ALL_SPECS[name], np.random.default_rng(seed)
    one, many, late = (ReplayBuffer.create(spec, 9 * LANES, LANES) for _ in range(3))
    with one, many, late:
        writers, returned = [one.writer(lane) for lane in range(LANES)], []
        order = rng.permutation(LANES).tolist()
        vector = many.vector_writer(order)
        assert vector.lanes == tuple(order)
        held = HeldRows(late.vector_writer(order), LANES)
        for version, (lanes, finals, end, seams) in enumerate(program):
            for lane in range(LANES) if seams is None else seams:
                writers[lane].new_episode()
            if seams != []:
                for writer in (vector, held.writer):
                    writer.new_episode(*[] if seams is None else [np.array(seams)])
            vector.policy_version = held.writer.policy_version = 2**32 + version
            assert vector.policy_version == version
            numbers = order if lanes is None else lanes
            given = [random_row(spec, rng, end) for _ in numbers]
            for row in given:
                row["truncated"] &= finals or spec.next_obs
                row["final_obs"] = random_row(spec, rng, 0.0)["obs"]
            tickets = []
            for lane, row in zip(numbers, given, strict=True):
                ended = finals and not spec.next_obs and (row["terminated"] or row["truncated"])
                writers[lane].policy_version = version
                tickets.append(writers[lane].add(**row | {"final_obs": row["final_obs"] if ended else None}))
            columns = {key: column([row[key] for row in given]) for key in given[0]}
            if not finals or spec.next_obs:
                columns["final_obs"] = None
            given_lanes = None if lanes is None else np.array(lanes)
            returned.append((vector.add(**columns, lanes=given_lanes), tickets))
            if not spec.next_obs:
                append_held(held, columns, slice(None) if lanes is None else list(map(order.index, lanes)), given_lanes)
        assert all(got.dtype == np.int64 and got.tolist() == tickets for got, tickets in returned)
        assert body(one) == body(many) and (spec.next_obs or body(late) == body(many))


def append_held(held, columns, which, lanes):
    put_rows(held.obs, which, columns["obs"])
    held.action[which], held.reward[which] = columns["action"], columns["reward"]
    for name, values in held.extras.items():
        values[which] = columns[name]
    held.append(which, *(columns[name] for name in ("terminated", "truncated", "final_obs")), lanes)


def test_large_arrays_are_lent_and_given_back():
    """A call neither copies frames nor keeps them."""
    frames = np.zeros((2, 20, 20), np.uint8)
    with ReplayBuffer.create(FRAMES, 40, lanes=2) as replay, replay.vector_writer() as vector:
        before = sys.getrefcount(frames)
        vector.add(frames, [0, 0], [0.0, 0.0], truncated=[True, True], final_obs=frames)
        assert sys.getrefcount(frames) == before
        with pytest.raises(TypeError, match="action"):
            vector.add(frames, [0.5, 0], [0.0, 0.0])
        gc.collect()  # the traceback
        assert sys.getrefcount(frames) == before


@pytest.mark.parametrize("damaged", range(3))
def test_a_damaged_lane_is_found_before_anything_is_written(damaged):
    """A damaged lane cannot be claimed either."""
    with ReplayBuffer.create(SMALL, 30, lanes=3) as replay:
        with replay.vector_writer() as vector:
            vector.add(**rows(3))
            Mapped(replay).counters(damaged)[0] = 99
            before = body(replay)
            with pytest.raises(SegmentCorrupt):
                vector.add(**rows(3, 1.0))
            assert body(replay) == before
        with pytest.raises(SegmentCorrupt):
            replay.vector_writer()
        replay.vector_writer([lane for lane in range(3) if lane != damaged]).close()


def test_all_lanes_are_claimed_or_none():
    shared = TransitionSpec(Field((4,)), Field((), "int64"), next_obs=True)
    with ReplayBuffer.create(shared, 40, lanes=4) as replay:
        with replay.writer(2), pytest.raises(LaneBusy, match="lane 2 has a living writer"):
            replay.vector_writer()
        with replay.writer(1, shared=True), pytest.raises(LaneBusy, match="lane 1 has a living writer"):
            replay.vector_writer()
        descriptors = len(os.listdir("/proc/self/fd"))
        with replay.vector_writer([3, 1, 0]):
            assert len(os.listdir("/proc/self/fd")) == descriptors + 1
            for lane in (0, 1, 3):
                with pytest.raises(LaneBusy):
                    replay.writer(lane)
            replay.writer(2).close()
        says = r"lanes: expected different lanes of \(0, 1, 2, 3\), got \[4\]"
        with replay.vector_writer() as vector, pytest.raises(ValueError, match=says):
            vector.new_episode([4])


def test_the_limiter_counts_every_row_of_a_call():
    """Values are checked first; a call that the limiter could never admit is refused."""
    with (
        ReplayBuffer.create(SMALL, 400, 4, limiter=RateLimiter(1.0, 1, 8.0)) as replay,
        replay.vector_writer(timeout=0.0) as vector,
    ):
        ends = {"truncated": np.ones(4, bool), "final_obs": np.zeros((4, 4))}
        for ticket in (0, 2):
            assert vector.add(**rows(4), **ends).tolist() == [ticket] * 4
        for refused, error, says in (
            (rows(4), TimeoutError, r"no sampler made room for 4 more rows in 0\.0 seconds"),
            (rows(4, reward=np.full(4, np.nan)), ValueError, "reward: expected a finite number"),
            (rows(2, lanes=[1, 1]), ValueError, "lanes: expected different lanes"),
        ):
            with pytest.raises(error, match=says):
                vector.add(**refused)
        assert [Mapped(replay).committed(lane) for lane in range(4)] == [4] * 4
        replay.sampler(4).sample()
        assert vector.add(**rows(4), **ends).tolist() == [4] * 4
    limiter = RateLimiter(1.0, 1, 3.0)
    with ReplayBuffer.create(SMALL, 40, 4, limiter=limiter) as replay, replay.vector_writer() as vector:
        with pytest.raises(ValueError, match=r"tolerance: expected at least .* for an add of 4 rows, got a limiter"):
            vector.add(**rows(4))
        assert vector.add(**rows(3), lanes=[0, 1, 2]).tolist() == [0] * 3


def test_a_waiting_sampler_wakes_once_all_lanes_have_their_row():
    """One notification reports the rows of all lanes."""
    with ReplayBuffer.create(SMALL, 400, 4) as replay, replay.vector_writer() as vector:
        sampler, batches = replay.sampler(4, min_size=4), []
        waiter = threading.Thread(target=lambda: batches.append(sampler.sample(timeout=600.0)))
        waiter.start()
        wanted = Mapped(replay).words(0).view(np.uint32)
        while not wanted[0]:
            time.sleep(1e-3)
        vector.add(**rows(4), terminated=np.ones(4, bool))
        waiter.join()
        assert len(batches[0]) == 4
        assert wanted[:2].tolist() == [0, 1]


def test_any_byte_of_a_bool_but_zero_is_true():
    """NumPy makes such a bool from a view of bytes."""
    spec = TransitionSpec(Field((84, 84), "uint8"), Field((), "int64"))
    odd = np.array([4, 0], np.uint8).view(bool)
    plain = {"obs": np.zeros((2, 84, 84), np.uint8), "action": np.zeros(2, np.int64), "reward": np.zeros(2)}
    with ReplayBuffer.create(spec, 24, lanes=3) as replay:
        with replay.vector_writer([0, 1]) as vector:
            assert vector.add(**plain, terminated=odd).tolist() == [0, 0]
            assert vector.add(**plain, truncated=odd, final_obs=plain["obs"]).tolist() == [1, 1]
            assert vector.add(**plain).tolist() == [3, 2]
        with replay.writer(2) as writer:
            writer.add_batch(**plain, terminated=odd)
            writer.add_batch(**plain, truncated=odd, final_obs=plain["obs"][:1])
        heads = Mapped(replay)
        places = [heads.column(0, lane)[:, 4:8].view(np.uint32).ravel() for lane in range(3)]
        flags = [(place >> 24).tolist() for place in places]
        assert flags[0][:4] == [1, 2, 4, 0]
        assert flags[1][:3] == [0, 0, 0]
        assert flags[2][:5] == [1, 0, 2, 4, 0]
