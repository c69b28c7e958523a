"""The replay through its public face: what goes in comes out, and what is wrong does not go in."""

from __future__ import annotations

import gc
import json
import math
import multiprocessing
import pickle
import threading

import numpy as np
import pytest
from mapped import Mapped
from meanwhile import running
from model import SPECS, Model, chi_square_limit, columns, fill, random_row
from seams import patch

from marlcore import (
    ClosedError,
    Field,
    LaneBusy,
    LayoutMismatch,
    NotEnoughData,
    ReplayBuffer,
    SegmentCorrupt,
    SegmentNotFound,
    SharedMemoryFull,
    StaleHandle,
    TransitionSpec,
)
from marlcore.errors import TimedOut
from marlcore.memory import Event, Segment

SCALAR = TransitionSpec(Field(), Field((), "int64"))
VECTOR = SPECS["vector"]


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def write(replay, rows, lane=0):
    """Rows (obs, reward, ending[, final_obs]), where ending is "", "terminated" or "truncated"."""
    with replay.writer(lane) as writer:
        for obs, reward, ending, *final in rows:
            writer.add(
                obs, 0, reward,
                terminated=ending == "terminated", truncated=ending == "truncated",
                final_obs=final[0] if final else None,
            )  # fmt: skip


def drawn(replay, count=400, **options):
    """By ticket: one sampled row each, as (reward, discount, next_obs, terminated, truncated)."""
    batch = replay.sampler(count, min_size=1, seed=1, **options).sample()
    columns = batch.reward, batch.discount, batch.next_obs, batch.terminated, batch.truncated
    return {
        int(i) // replay.lanes: tuple(np.asarray(c)[k].tolist() for c in columns) for k, i in enumerate(batch.index)
    }


# ---- adding ----


def test_tickets_count_the_rows_of_a_lane_boundary_rows_too():
    with ReplayBuffer.create(SCALAR, 20, lanes=2) as replay, replay.writer(1) as writer:
        assert writer.add(0.0, 0, 0.0) == 0
        assert writer.add(0.0, 0, 0.0, truncated=True, final_obs=1.0) == 1
        assert writer.add(0.0, 0, 0.0, terminated=True) == 3
        assert writer.add_batch(np.zeros(3), np.zeros(3, int), np.zeros(3)) == 4
        assert writer.add(0.0, 0, 0.0) == 7
        assert len(replay) == 7
        assert writer.lane == 1


def everything(replay, **options):
    """All arrays of a batch, in a form that compares."""
    batch = replay.sampler(64, seed=4, min_size=1, **options).sample()
    names = ("obs", "action", "reward", "next_obs", "discount", "terminated", "truncated", "valid", "index", "extras")
    plain = {name: getattr(batch, name) for name in names}
    open_ended = batch.terminated
    return json.dumps(
        {name: {k: v.tolist() for k, v in value.items()} if isinstance(value, dict) else value.tolist()
         for name, value in plain.items() if name != "next_obs" or not open_ended.any()}
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", SPECS)
def test_rows_added_one_by_one_and_in_batches_are_the_same(name, rng):
    spec = SPECS[name]
    rows = [random_row(spec, rng, 0.2) for _ in range(70)]
    for row in rows:
        row["terminated"] = False  # add_batch takes a final_obs for truncated rows only
        if not row["truncated"]:
            row["final_obs"] = None
    with ReplayBuffer.create(spec, 40) as one, ReplayBuffer.create(spec, 40) as many:
        with one.writer() as writer:
            for row in rows:
                writer.add(**row)
        with many.writer() as writer:
            first = 0
            for size in (1, 7, 20, 7, 20, 15):
                writer.add_batch(**columns(rows[first : first + size]))
                first += size
        assert first == len(rows)
        assert len(one) == len(many)
        assert everything(one) == everything(many)
        if not spec.next_obs:
            assert everything(one, stack=3, n_step=2) == everything(many, stack=3, n_step=2)


def test_a_batch_as_long_as_the_lane_fits_and_wraps():
    with ReplayBuffer.create(SCALAR, 8) as replay, replay.writer() as writer:
        for start in (0, 5, 13):
            if start == 5:
                writer.add_batch(np.zeros(5), np.zeros(5, int), np.zeros(5))
            writer.add_batch(np.arange(8.0) + start, np.arange(8), np.arange(8.0), np.ones(8, bool))
            batch = replay.sampler(64, seed=0, min_size=1).sample()
            assert set(batch.obs.tolist()) == set((np.arange(8.0) + start).tolist())


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("bool", True), ("bool", np.True_), ("bool", np.array(True)),
        ("int8", -5), ("uint8", np.int64(200)), ("int64", 2**40), ("uint64", 2**63 + 1), ("int32", np.uint8(3)),
        ("float16", 0.5), ("float16", np.float64(0.5)), ("float32", 1), ("float64", np.float32(0.5)),
        ("longdouble", 0.25), ("complex64", 1 + 2j), ("complex128", 2.0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (70, 5)])
def test_values_of_every_kind_come_back(dtype, value, shape):
    spec = TransitionSpec(Field(), Field(shape, dtype), {"x": Field(shape, dtype)})
    given = value if shape == () else np.full(shape, value)
    with ReplayBuffer.create(spec, 4) as replay, replay.writer() as writer:
        writer.add(0.0, given, 0.0, terminated=True, x=given)
        writer.add_batch(np.zeros(1), np.array([given]), np.zeros(1), [True], x=[np.asarray(given).tolist()])
        batch = replay.sampler(8, min_size=1).sample()
        assert batch.action.dtype == dtype
        assert (batch.action == np.array(value, dtype)).all()
        assert (batch.extras["x"] == np.array(value, dtype)).all()


def test_strided_and_swapped_arrays_come_back(rng):
    frame = rng.integers(0, 255, (84, 168)).astype(np.uint8)
    spec = TransitionSpec(Field((84, 84), "uint8"), Field((4,)))
    vector = np.arange(8.0, dtype=">f4")[::2]
    with ReplayBuffer.create(spec, 4) as replay, replay.writer() as writer:
        writer.add(frame[:, ::2], vector, 0.0, terminated=True)
        writer.add_batch(frame[None, ::-1, 84:][:, ::-1], vector[None], [0.0], [True])
        batch = replay.sampler(16, min_size=1, seed=0).sample()
        for i, ticket in enumerate(batch.index):
            assert (batch.obs[i] == (frame[:, ::2] if ticket == 0 else frame[:, 84:])).all()
            assert batch.action[i].tolist() == [0, 2, 4, 6]


def test_other_large_fields_may_go_with_a_final_obs():
    """A boundary row has every column, though only its observation means something."""
    spec = TransitionSpec(Field((300,), "uint8"), Field((100,)), {"state": Field((99,), "float64")})
    with ReplayBuffer.create(spec, 10) as replay, replay.writer() as writer:
        for i in range(6):
            obs, action, state = np.full(300, i), np.full(100, i), np.full(99, i)
            writer.add(obs, action, i, truncated=True, final_obs=obs + 100, state=state)
        batch = replay.sampler(32, min_size=1).sample()
        assert (batch.next_obs[:, 0] == batch.obs[:, 0] + 100).all()
        assert (batch.extras["state"] == batch.obs[:, :1]).all()


@pytest.mark.long
def test_the_order_of_named_fields_does_not_matter(program):
    spec = TransitionSpec(
        {"position": Field((2,)), "goal": Field((2,))}, Field(), {"value": Field(), "log_prob": Field()}
    )
    with ReplayBuffer.create(spec, 4) as replay:
        program(
            """
            import sys
            from marlcore import ReplayBuffer
            with ReplayBuffer.attach(sys.argv[1]) as replay, replay.writer() as writer:
                obs = {"goal": [2, 2], "position": [1, 1]}
                writer.add(obs, 0, 0, terminated=True, log_prob=4, value=3)
            """,
            args=[replay.handle.path],
        ).finish()
        batch = replay.sampler(1).sample()
        assert batch.obs["position"].tolist() == [[1, 1]]
        assert batch.obs["goal"].tolist() == [[2, 2]]
        assert batch.extras["value"].tolist() == [3]
        assert batch.extras["log_prob"].tolist() == [4]


def test_the_policy_version_goes_with_the_rows_from_then_on():
    with ReplayBuffer.create(SCALAR, 8) as replay, replay.writer() as writer:
        assert writer.policy_version == 0
        writer.add(0.0, 0, 0.0, terminated=True)
        writer.policy_version = 2**32 + 7
        writer.add_batch(np.zeros(2), np.zeros(2, int), np.zeros(2), np.ones(2, bool))
        assert writer.policy_version == 7
        batch = replay.sampler(32, seed=0, min_size=1).sample()
        assert (batch.policy_version == np.where(batch.index == 0, 0, 7)).all()


# ---- what follows what ----


def test_next_obs_of_a_truncated_row_is_its_final_obs():
    with ReplayBuffer.create(SCALAR, 10) as replay:
        write(replay, [(1, 1, ""), (2, 1, "truncated", 30), (4, 1, ""), (5, 1, "")])
        assert drawn(replay, gamma=0.5) == {
            0: (1, 0.5, 2, False, False),
            1: (1, 0.5, 30, False, True),
            3: (1, 0.5, 5, False, False),
        }


def test_discount_is_zero_after_termination():
    with ReplayBuffer.create(SCALAR, 10) as replay:
        write(replay, [(1, 1, "terminated"), (2, 1, "terminated", 30), (4, 1, "terminated")])
        got = drawn(replay, gamma=0.5)
        assert set(got) == {0, 1, 3}
        assert got[1] == (1, 0, 30, True, False)
        assert got[0][1] == got[3][1] == 0
        assert math.isfinite(got[0][2])


def test_a_row_that_is_terminated_and_truncated_is_both():
    with ReplayBuffer.create(SCALAR, 10) as replay, replay.writer() as writer:
        writer.add(1.0, 0, 1.0, terminated=True, truncated=True, final_obs=9.0)
        assert drawn(replay) == {0: (1, 0, 9, True, True)}
        with pytest.raises(ValueError, match=r"^final_obs"):
            writer.add(1.0, 0, 1.0, terminated=True, truncated=True)


def test_n_step_returns_end_at_every_edge():
    with ReplayBuffer.create(SCALAR, 30) as replay:
        write(replay, [(i, 2**i, "") for i in range(4)] + [(4, 16, "terminated")])  # 0..4
        write(replay, [(i, 2**i, "") for i in range(5, 7)] + [(7, 128, "truncated", 70)])  # 5..7, 8
        write(replay, [(9, 1, ""), (10, 2, ""), (11, 4, ""), (12, 8, "")])  # 9..12, then a seam
        write(replay, [(13, 1, ""), (14, 2, ""), (15, 4, ""), (16, 8, "")])  # 13..16, then the head
        got = drawn(replay, n_step=3, gamma=0.5)
        end = {t: got[t][:2] + got[t][3:] for t in (2, 3, 4)}  # next_obs means nothing there
        assert end == {
            2: (4 + 4 + 4, 0, True, False),
            3: (8 + 8, 0, True, False),
            4: (16, 0, True, False),
        }
        assert {t: row for t, row in got.items() if t not in end} == {
            0: (0 + 1 + 1 + 1, 0.125, 3, False, False),
            1: (2 + 2 + 2, 0.125, 4, False, False),
            5: (32 + 32 + 32, 0.125, 70, False, True),
            6: (64 + 64, 0.25, 70, False, True),
            7: (128, 0.5, 70, False, True),
            9: (1 + 1 + 1, 0.125, 12, False, False),
            13: (1 + 1 + 1, 0.125, 16, False, False),
        }


@pytest.mark.parametrize("pad", ["repeat", "zero"])
def test_stacks_never_reach_into_another_episode(pad):
    with ReplayBuffer.create(SCALAR, 30) as replay:
        write(replay, [(1, 0, ""), (2, 0, "truncated", 3), (5, 0, ""), (6, 0, "")])  # 0, 1, 2b, 3, 4, seam
        write(replay, [(8, 0, ""), (9, 0, "")])  # 5, 6
        batch = replay.sampler(200, stack=3, pad=pad, seed=0, min_size=1).sample()
        rows = {
            int(t): (batch.obs[i].tolist(), batch.next_obs[i].tolist(), batch.valid[i].tolist())
            for i, t in enumerate(batch.index)
        }
        first = (lambda frame: frame) if pad == "repeat" else (lambda frame: 0)
        start, second = [False, False, True], [False, True, True]
        assert rows == {
            0: ([first(1), first(1), 1], [first(1), 1, 2], start),
            1: ([first(1), 1, 2], [1, 2, 3], second),
            3: ([first(5), first(5), 5], [first(5), 5, 6], start),
            5: ([first(8), first(8), 8], [first(8), 8, 9], start),
        }


def test_a_partly_overwritten_stack_is_not_drawn():
    with ReplayBuffer.create(SCALAR, 8) as replay:
        write(replay, [(i, 0, "") for i in range(20)])
        batch = replay.sampler(200, stack=4, seed=0, min_size=1).sample()
        assert set(batch.index.tolist()) == set(range(12 + 3, 19))
        assert batch.valid.all()


def test_a_new_episode_may_be_begun_by_hand():
    with ReplayBuffer.create(SCALAR, 8) as replay, replay.writer() as writer:
        for i in range(2):
            writer.add(i, 0, 0.0)
        writer.new_episode()
        for i in range(2, 4):
            writer.add(i, 0, 0.0)
        assert set(drawn(replay)) == {0, 2}


def test_rows_with_their_own_next_obs_stand_alone():
    spec = TransitionSpec(Field(), Field(), next_obs=True)
    with ReplayBuffer.create(spec, 1) as replay, replay.writer() as writer:
        writer.add(1.0, 0, 2.0, next_obs=5.0)
        assert drawn(replay, gamma=0.5) == {0: (2, 0.5, 5, False, False)}
        writer.add(1.0, 0, 2.0, truncated=True, next_obs=6.0)
        assert drawn(replay, gamma=0.5) == {1: (2, 0.5, 6, False, True)}
        writer.add(1.0, 0, 2.0, terminated=True, next_obs=7.0)
        assert drawn(replay, gamma=0.5) == {2: (2, 0, 7, True, False)}
        with pytest.raises(ValueError, match=r"^stack, n_step: expected 1 and 1"):
            replay.sampler(1, stack=2)
        with pytest.raises(ValueError, match=r"^final_obs: expected None"):
            writer.add(1.0, 0, 2.0, truncated=True, next_obs=6.0, final_obs=6.0)
        with pytest.raises(ValueError, match=r"^extras: expected the fields .'next_obs'"):
            writer.add(1.0, 0, 2.0)


# ---- length and capacity ----


@pytest.mark.parametrize("name", SPECS)
def test_a_replay_that_wrapped_many_times_holds_the_newest_rows(name, rng):
    spec = SPECS[name]
    with ReplayBuffer.create(spec, 14, lanes=2) as replay:
        model = Model(spec, 2, 7)
        fill(replay, model, rng, [300, 3], end=0.1)
        assert len(replay) == len(model)
        allowed = model.sampleable(1, 1)
        sampler = replay.sampler(32, seed=1, min_size=1)
        seen = {index for _ in range(10) for index in model.check(sampler.sample(), allowed=allowed)}
        assert seen == set(allowed)


def test_length_counts_transitions_at_every_step(rng):
    with ReplayBuffer.create(VECTOR, 9) as replay, replay.writer() as writer:
        model = Model(VECTOR, 1, 9)
        assert len(replay) == 0
        for _ in range(60):
            row = random_row(VECTOR, rng, 0.3)
            writer.add(**row)
            model.add(0, **row)
            assert len(replay) == len(model)


def test_capacity_is_rounded_down_to_whole_lanes():
    with ReplayBuffer.create(SCALAR, 11, lanes=3) as replay:
        assert replay.capacity == 9
        assert replay.nbytes > 9 * 32


def test_two_rows_a_lane_are_enough_for_a_step():
    with ReplayBuffer.create(SCALAR, 2) as replay:
        write(replay, [(1, 5, ""), (2, 6, "")])
        assert drawn(replay, gamma=0.5) == {0: (5, 0.5, 2, False, False)}
        write(replay, [(3, 7, "truncated", 4)])
        assert drawn(replay, gamma=0.5) == {2: (7, 0.5, 4, False, True)}


# ---- drawing ----


@pytest.mark.parametrize("options", [{}, {"stack": 3}, {"n_step": 4}])
def test_each_sampleable_row_of_all_lanes_is_equally_likely(options, rng):
    with ReplayBuffer.create(VECTOR, 90, lanes=3) as replay:
        model = Model(VECTOR, 3, 30)
        fill(replay, model, rng, [80, 3, 14], end=0.2)
        allowed = sorted(model.sampleable(options.get("stack", 1), options.get("n_step", 1)))
        sampler = replay.sampler(1000, seed=9, min_size=1, **options)
        indices = np.concatenate([sampler.sample().index for _ in range(50)])
        seen, counts = np.unique(indices, return_counts=True)
        assert seen.tolist() == allowed
        expected = len(indices) / len(allowed)
        assert ((counts - expected) ** 2 / expected).sum() <= chi_square_limit(len(allowed))


@pytest.mark.long
def test_few_allowed_rows_are_equally_likely():
    """Three of 20,000: chance draws fail, and a list of the three is drawn from."""
    with ReplayBuffer.create(SCALAR, 40_000, lanes=2) as replay:
        with replay.writer(1) as writer:
            writer.add_batch(np.arange(3.0), np.zeros(3, int), np.arange(3.0), [False, False, True])
            for i in range(19_000):
                writer.new_episode()
                writer.add(i, 0, -1.0)
        sampler = replay.sampler(3, gamma=1.0, seed=0)
        batches = [sampler.sample() for _ in range(500)]
        indices = np.concatenate([batch.index for batch in batches])
        rewards = np.concatenate([batch.reward for batch in batches])
        discounts = np.concatenate([batch.discount for batch in batches])
        seen, counts = np.unique(indices, return_counts=True)
        assert seen.tolist() == [1, 3, 5]
        assert (rewards == indices // 2).all()
        assert (discounts == (indices != 5)).all()
        assert ((counts - 500) ** 2 / 500).sum() <= chi_square_limit(3)


def test_a_seed_decides_the_draws():
    with ReplayBuffer.create(SCALAR, 100) as replay:
        write(replay, [(i, 0, "") for i in range(100)])

        def draws(seed):
            sampler = replay.sampler(32, seed=seed)
            return [sampler.sample().index.tolist() for _ in range(3)]

        assert draws(1) == draws(1)
        assert draws(1) != draws(2)
        assert draws(None) != draws(None)


def test_sampling_waits_for_min_size():
    with ReplayBuffer.create(SCALAR, 100) as replay, replay.writer() as writer:
        usual, patient = replay.sampler(4), replay.sampler(4, min_size=6)
        for held in range(1, 9):
            writer.add(0.0, 0, 0.0)
            assert usual.can_sample() == (held >= 4)
            assert patient.can_sample() == (held >= 6)


@pytest.mark.parametrize(("timeout", "error"), [(None, NotEnoughData), (0.0, TimedOut), (0.001, TimedOut)])
def test_an_empty_replay_gives_no_batch(timeout, error):
    with ReplayBuffer.create(SCALAR, 100) as replay:
        sampler = replay.sampler(4)
        assert not sampler.can_sample()
        with pytest.raises(error, match="expected at least 4 transitions, got 0"):
            sampler.sample(timeout)


@pytest.mark.parametrize(("timeout", "error"), [(None, NotEnoughData), (0.001, TimedOut)])
def test_rows_of_which_none_is_whole_give_no_batch(timeout, error):
    with ReplayBuffer.create(SCALAR, 100) as replay:
        write(replay, [(i, 0, "") for i in range(5)])
        sampler = replay.sampler(4, n_step=5)
        assert not sampler.can_sample()
        with pytest.raises(error, match="none of the 5 transitions has its stack and its next 5 steps held whole"):
            sampler.sample(timeout)
        assert replay.sampler(4, n_step=4).can_sample()


WRITE_LATER = """
    import sys
    from marlcore import ReplayBuffer
    with ReplayBuffer.attach(sys.argv[1]) as replay, replay.writer() as writer:
        print("ready", flush=True)
        sys.stdin.readline()
        for i in range(int(sys.argv[2])):
            writer.add(float(i), 0, 0.0)
        sys.stdin.readline()
"""


@pytest.mark.long
def test_a_writer_in_another_process_wakes_a_sampler(program, monkeypatch):
    """The kernel's wake-up alone ends the sleep: its slice is made longer than the test's patience."""
    monkeypatch.setattr("marlcore.memory.waiting.WAIT_SLICE_S", 1e6)
    with ReplayBuffer.create(SCALAR, 100) as replay:
        writer = program(WRITE_LATER, args=[replay.handle.path, 5])
        assert writer.line() == "ready"
        sampler = replay.sampler(4)
        asleep = threading.Thread(target=lambda: writer.tell())
        prepare = Event.prepare
        monkeypatch.setattr(
            Event, "prepare", lambda event, n: (prepare(event, n), asleep.ident is None and asleep.start())[0]
        )
        batch = sampler.sample(timeout=1e6)
        asleep.join()
        assert batch.obs.max() <= 3
        assert sampler.stats.waited > 0
        writer.tell()
        writer.finish()


def test_stats_count_rows():
    with ReplayBuffer.create(SCALAR, 100) as replay:
        write(replay, [(i, 0, "") for i in range(10)])
        sampler = replay.sampler(10, seed=0)
        for _ in range(20):
            sampler.sample()
        assert sampler.stats.drawn == 200
        assert sampler.stats.lapped == 0
        assert sampler.stats.waited == 0
        assert 0 < sampler.stats.redrawn < 200  # one row of ten, the newest, has no successor yet


# ---- batches ----


def test_a_batch_stays_as_it_is_while_any_of_its_arrays_is_kept(rng):
    with ReplayBuffer.create(VECTOR, 100) as replay:
        fill(replay, Model(VECTOR, 1, 100), rng, [90])
        sampler = replay.sampler(16, seed=2)
        keepers = {
            "batch": lambda b: b, "obs": lambda b: b.obs, "a slice": lambda b: b.next_obs[3:5, 1],
            "extras": lambda b: b.extras, "index": lambda b: b.index, "a tensor": lambda b: b.torch().obs,
            "tensors": lambda b: b.torch(), "a view of a tensor": lambda b: b.torch().reward[2:],
            "a memoryview": lambda b: memoryview(b.reward), "numpy of a tensor": lambda b: b.torch().obs.numpy(),
        }  # fmt: skip

        def look(name, kept):
            if name == "batch":
                return kept.obs.tolist() + kept.reward.tolist()
            if name == "extras":
                return kept["log_prob"].tolist()
            return (kept.reward if name == "tensors" else kept).tolist()

        kept = {name: keep(sampler.sample()) for name, keep in keepers.items()}
        seen = {name: look(name, value) for name, value in kept.items()}
        for _ in range(50):
            sampler.sample()
        assert {name: look(name, value) for name, value in kept.items()} == seen
        assert sampler.can_sample()
        assert {name: look(name, value) for name, value in kept.items()} == seen


def test_a_batch_that_was_let_go_of_is_used_again():
    with ReplayBuffer.create(SCALAR, 10) as replay:
        write(replay, [(i, 0, "") for i in range(10)])
        sampler = replay.sampler(4)
        places = {sampler.sample().obs.ctypes.data for _ in range(20)}
        assert len(places) == 1


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("stack", [1, 3])
def test_tensors_on_the_cpu_share_the_batchs_memory(name, stack, rng):
    spec = SPECS[name]
    if spec.next_obs and stack > 1:
        return  # refused, see above
    with ReplayBuffer.create(spec, 50) as replay:
        fill(replay, Model(spec, 1, 50), rng, [50])
        batch = replay.sampler(8, stack=stack, seed=0).sample()
        tensors = batch.torch()

        def pairs():
            for field in ("obs", "action", "reward", "next_obs", "discount", "terminated", "truncated", "valid",
                          "weight", "index", "policy_version", "extras"):  # fmt: skip
                array, tensor = getattr(batch, field), getattr(tensors, field)
                if isinstance(array, dict):
                    assert array.keys() == tensor.keys()
                    yield from ((array[key], tensor[key]) for key in array)
                else:
                    yield array, tensor

        for array, tensor in pairs():
            assert tensor.data_ptr() == array.ctypes.data
            assert tuple(tensor.shape) == array.shape
            assert np.array_equal(tensor.numpy(), array)


def test_obs_and_next_obs_share_frames():
    with ReplayBuffer.create(SPECS["frame"], 20) as replay, replay.writer() as writer:
        for i in range(20):
            writer.add(np.full((84, 84), i, np.uint8), 0, 0.0)
        batch = replay.sampler(4, stack=4, seed=0).sample()
        assert batch.obs.shape == (4, 4, 84, 84)
        assert batch.next_obs.ctypes.data == batch.obs.ctypes.data + 84 * 84


# ---- processes ----


def add_in_a_child(replay, lane):
    with replay.writer(lane) as writer:
        for i in range(5):
            writer.add(float(i), lane, 1.0)
    assert replay.sampler(4).sample().reward.tolist() == [1, 1, 1, 1]
    replay.close()


@pytest.mark.long
def test_a_replay_may_be_passed_to_a_process():
    with ReplayBuffer.create(SCALAR, 30, lanes=3) as replay:
        context = multiprocessing.get_context("spawn")
        with running(*(context.Process(target=add_in_a_child, args=(replay, lane)) for lane in (0, 2))):
            pass
        assert len(replay) == 10
        assert pickle.loads(pickle.dumps(replay.spec)) == replay.spec


def test_a_writer_and_a_sampler_belong_to_one_process():
    with ReplayBuffer.create(SCALAR, 30) as replay, replay.writer() as writer:
        with pytest.raises(TypeError, match="a Writer belongs to one process"):
            pickle.dumps(writer)
        with pytest.raises(TypeError):
            pickle.dumps(replay.sampler(1))


FORKED = """
    import os
    from marlcore import Field, LaneBusy, ReplayBuffer, StaleHandle, TransitionSpec
    replay = ReplayBuffer.create(TransitionSpec(Field(), Field()), 10, lanes=2)
    writer = replay.writer()
    writer.add(1.0, 0.0, 0.0)
    writer.add(2.0, 0.0, 0.0)
    sampler = replay.sampler(1)
    child = os.fork()
    if child == 0:
        try:
            attempts = (
                lambda: writer.add(3.0, 0.0, 0.0), lambda: writer.add_batch([3.0], [0.0], [0.0]),
                lambda: len(replay), lambda: replay.writer(1), lambda: replay.sampler(1),
                sampler.sample, sampler.can_sample,
            )
            for i, attempt in enumerate(attempts):
                try:
                    attempt()
                except StaleHandle:
                    continue
                os._exit(10 + i)
            writer.close()
            again = ReplayBuffer.attach(replay.handle)
            try:
                again.writer(0)
            except LaneBusy:
                pass
            else:
                os._exit(2)
            with again.writer(1) as other:
                other.add(5.0, 0.0, 0.0)
            replay.close()
            replay = None
            os._exit(0)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    writer.add(3.0, 0.0, 0.0)
    print(len(replay))
"""


@pytest.mark.long
def test_a_forked_childs_replay_is_stale(program):
    assert program(FORKED).finish().split() == ["0", "4"]


def test_rows_that_count_too_many_transitions_are_told():
    with ReplayBuffer.create(TransitionSpec(Field(), Field()), 8) as replay, replay.writer() as writer:
        for _ in range(3):
            writer.add(0.0, 0.0, 0.0)
        assert len(replay) == 3
        Mapped(replay).column(0)[0].view(np.uint32)[0] = 7  # the oldest one's ordinal
        with pytest.raises(SegmentCorrupt, match="contradict one another"):
            len(replay)


LARGE = TransitionSpec(Field((1 << 19,), "float64"), Field((), "int64"))

WRITE_LARGE = """
    import sys
    import numpy as np
    from marlcore import ReplayBuffer
    replay = ReplayBuffer.attach(sys.argv[1])
    obs = np.zeros(1 << 19)
    with replay.writer() as writer:
        while True:
            ticket = writer.add(obs, 0, 0.0)
            obs += 1
            if ticket % 8 == 7:
                print(ticket, flush=True)
"""


@pytest.mark.long
def test_a_lane_whose_writer_was_killed_inside_add_goes_on(program):
    """The rows are so large that the kill falls into a copy; it is tried again until it has."""
    inside = False
    with ReplayBuffer.create(LARGE, 6) as replay:
        counters = Mapped(replay).counters()
        for _ in range(40):
            child = program(WRITE_LARGE, args=[replay.handle.path])
            child.line()
            with pytest.raises(LaneBusy):
                replay.writer()
            child.kill()
            committed, reserved = (int(word) for word in counters)
            inside = reserved == committed + 1
            if inside:
                break
        assert inside
        assert len(replay) == 5, "the row that was being overwritten is held no more"
        batch = replay.sampler(8, min_size=1, seed=0).sample()
        assert (batch.obs == batch.obs[:, :1]).all()
        assert (batch.next_obs == batch.next_obs[:, :1]).all()
        with replay.writer() as writer:
            ticket = writer.add(np.full(1 << 19, -1.0), 1, 0.0)
            assert ticket == committed
            assert len(replay) == 6
            batch = replay.sampler(16, min_size=1, seed=0).sample()
            assert committed - 1 not in batch.index, "the row before the seam has no successor"
            assert committed not in batch.index
            writer.add(np.full(1 << 19, -2.0), 1, 0.0)
            batch = replay.sampler(16, min_size=1, seed=0).sample()
            newest = batch.index == committed
            assert newest.any()
            assert (batch.obs[newest] == -1).all()
            assert (batch.next_obs[newest] == -2).all()


@pytest.mark.parametrize("dead", [1, 3, 8])
def test_what_a_killed_writer_may_have_overwritten_is_not_read(dead):
    """As if it had died after reserving `dead` rows: they are out until the successor has passed them."""
    with ReplayBuffer.create(SCALAR, 8) as replay:
        write(replay, [(i, i, "") for i in range(8)])
        counters = Mapped(replay).counters()
        counters[1] += dead
        Mapped(replay).column(0)[:dead] = 255
        assert len(replay) == 8 - dead
        write(replay, [(100, 100, ""), (101, 101, "")])
        # Rows 0 .. dead-1 are gone, though the successor has overwritten only two of them.
        assert len(replay) == min(8, 8 - max(0, dead - 2))
        expected = [*range(max(dead, 2), 7), 8]
        assert sorted(drawn(replay)) == expected
        assert counters.tolist() == [10, max(10, 8 + dead)]


def test_a_writer_that_is_forgotten_gives_its_lane_back():
    with ReplayBuffer.create(SCALAR, 8) as replay:
        writer = replay.writer()
        with pytest.raises(LaneBusy):
            replay.writer()
        del writer
        gc.collect()
        replay.writer().close()


# ---- lifetime ----


def test_a_replay_in_a_file_attaches_after_all_closed_it(tmp_path):
    path = tmp_path / "replay"
    with ReplayBuffer.create(VECTOR, 20, path=path) as replay:
        handle = replay.handle
        model = Model(VECTOR, 1, 20)
        fill(replay, model, np.random.default_rng(0), [30])
    for way in (handle, path, str(path)):
        with ReplayBuffer.attach(way, VECTOR) as again:
            assert again.spec == VECTOR
            assert len(again) == len(model)
            model.check(again.sampler(64, min_size=1).sample())
    again.unlink()
    with pytest.raises(SegmentNotFound):
        ReplayBuffer.attach(handle)


def test_attaching_with_another_spec_is_a_mismatch():
    with ReplayBuffer.create(SCALAR, 8) as replay:
        ReplayBuffer.attach(replay.handle, SCALAR).close()
        with pytest.raises(LayoutMismatch, match=r": spec obs: expected float32 \(\), got "):
            ReplayBuffer.attach(replay.handle, VECTOR)


def test_attaching_to_a_segment_of_another_kind_is_refused():
    with pytest.raises(SegmentCorrupt, match="expected a replay, got another kind of segment"):
        other = Segment.create("other", {"kind": "weights"}, 100)
        ReplayBuffer.attach(other.handle)


def test_a_closed_replay_says_so():
    replay = ReplayBuffer.create(SCALAR, 8)
    write(replay, [(1, 0, "terminated")])
    sampler, writer = replay.sampler(1), replay.writer()
    batch = sampler.sample()
    writer.close()
    writer.close()
    with pytest.raises(ClosedError, match="the writer was closed"):
        writer.add(0.0, 0, 0.0)
    with pytest.raises(ClosedError, match="the writer was closed"):
        writer.add_batch([0.0], [0], [0.0])
    replay.close()
    replay.close()
    for attempt in (lambda: len(replay), replay.writer, lambda: replay.sampler(1), sampler.sample, sampler.can_sample):
        with pytest.raises(ClosedError, match="it was closed"):
            attempt()
    assert batch.obs.tolist() == [1]
    with pytest.raises(SegmentNotFound):
        ReplayBuffer.attach(replay.handle)
    assert not issubclass(ClosedError, StaleHandle)


def test_a_replay_shows_what_it_is():
    with ReplayBuffer.create(SCALAR, 8, lanes=2, name="demo") as replay:
        assert "marlcore-demo-" in repr(replay)
        assert "capacity=8 lanes=2" in repr(replay)


# ---- what is wrong does not go in ----

CHECKED = TransitionSpec(
    {"frame": Field((20, 20), "uint8"), "state": Field((3,)), "id": Field((), "int8")},
    Field((), "int64"),
    {"log_prob": Field(), "big": Field((70,)), "flag": Field((), "bool")},
)


def good_row():
    return {
        "obs": {"frame": np.zeros((20, 20), np.uint8), "state": np.zeros(3, np.float32), "id": 1},
        "action": 1, "reward": 1.0, "log_prob": 0.5, "big": np.zeros(70, np.float32), "flag": True,
    }  # fmt: skip


def with_obs(**changes):
    return {"obs": good_row()["obs"] | changes}


BAD_ROWS = {
    ValueError: [
        (with_obs(frame=np.zeros((20, 21), np.uint8)), r"obs['frame']: expected uint8 (20, 20), got shape (20, 21)"),
        (with_obs(frame=np.full((20, 20), 256)), r"obs['frame']: expected values in uint8's range, got 256 to 256"),
        (with_obs(frame=None), r"obs['frame']: expected uint8 (20, 20), got shape ()"),
        (with_obs(state=np.zeros(4)), r"obs['state']: expected float32 (3,), got shape (4,)"),
        (with_obs(state=0.0), r"obs['state']: expected float32 (3,), got shape ()"),
        (with_obs(state=[1.0, [2.0], 3.0]), r"obs['state']: expected float32 (3,), got "),
        (with_obs(id=128), r"obs['id']: expected values in int8's range, got 128 to 128"),
        (with_obs(id=[1]), r"obs['id']: expected int8 (), got shape (1,)"),
        (
            with_obs(extra=1),
            r"obs: expected the fields ['frame', 'id', 'state'], got ['frame', 'state', 'id', 'extra']",
        ),
        ({"obs": {"state": np.zeros(3)}}, r"obs: expected the fields ['frame', 'id', 'state'], got ['state']"),
        ({"obs": {1: 2, "a": 3}}, r"obs: expected the fields ['frame', 'id', 'state'], got [1, 'a']"),
        ({"obs": np.zeros((20, 20))}, r"obs: expected the fields ['frame', 'id', 'state'], got array("),
        ({"obs": None}, r"obs: expected the fields ['frame', 'id', 'state'], got None"),
        ({"action": np.zeros(1, int)}, r"action: expected int64 (), got shape (1,)"),
        ({"action": 2**63}, r"action: expected values in int64's range"),
        ({"reward": float("nan")}, r"reward: expected a finite number, got NaN or infinity"),
        ({"reward": float("-inf")}, r"reward: expected a finite number, got NaN or infinity"),
        ({"reward": 1e39}, r"reward: expected values in float32's range, got 1e+39"),
        ({"log_prob": 1e39}, r"log_prob: expected values in float32's range, got 1e+39"),
        (with_obs(state=[0, -1e39, 0]), r"obs['state']: expected values in float32's range, got -1e+39"),
        ({"truncated": True}, r"final_obs: expected the observation after a truncated transition, got None"),
        ({"final_obs": good_row()["obs"]}, r"final_obs: expected None unless terminated or truncated"),
        (
            {"truncated": True, "final_obs": with_obs(state=[1])["obs"]},
            r"final_obs['state']: expected float32 (3,), got shape (1,)",
        ),
        ({"terminated": True, "final_obs": 3}, r"final_obs: expected the fields ['frame', 'id', 'state'], got 3"),
        ({"big": np.zeros(71)}, r"big: expected float32 (70,), got shape (71,)"),
        (
            {"entropy": 1.0},
            r"extras: expected the fields ['big', 'flag', 'log_prob'], got ['log_prob', 'big', 'flag', 'ent",
        ),
        ({"flag": ...}, r"extras: expected the fields ['big', 'flag', 'log_prob'], got ['log_prob', 'big']"),
    ],
    TypeError: [
        (with_obs(frame=np.zeros((20, 20))), r"obs['frame']: expected uint8 (20, 20), got dtype float64"),
        (with_obs(state=np.zeros(3, complex)), r"obs['state']: expected float32 (3,), got dtype complex128"),
        (with_obs(state=["a", "b", "c"]), r"obs['state']: expected float32 (3,), got dtype <U1"),
        (with_obs(id=1.0), r"obs['id']: expected int8 (), got dtype float64"),
        ({"action": 1.5}, r"action: expected int64 (), got dtype float64"),
        ({"action": "north"}, r"action: expected int64 (), got dtype <U5"),
        ({"action": None}, r"action: expected int64 (), got dtype object"),
        ({"reward": None}, r"reward: expected a number, got None"),
        ({"reward": "1"}, r"reward: expected a number, got '1'"),
        ({"reward": np.zeros((9, 9))}, r"reward: expected a number, got array("),
        ({"reward": 1j}, r"reward: expected a number, got 1j"),
        ({"terminated": 1}, r"terminated: expected a bool, got 1"),
        ({"truncated": np.zeros((5, 5))}, r"truncated: expected a bool, got array("),
        ({"log_prob": "low"}, r"log_prob: expected float32 (), got dtype <U3"),
        ({"flag": 1}, r"flag: expected bool (), got dtype int64"),
    ],
}


def refused(replay, writer, call, error, message):
    """The error is one line that begins with the message, and the replay is as it was."""
    held, memory = len(replay), Mapped(replay).body.tobytes()
    with pytest.raises(error) as caught:
        call()
    text = str(caught.value)
    assert text.startswith(message)
    assert "\n" not in text
    assert len(text) < 500
    assert len(replay) == held
    assert Mapped(replay).body.tobytes() == memory


def cases(bad):
    return [pytest.param(what, error, message, id=message) for error, rows in bad.items() for what, message in rows]


@pytest.mark.parametrize(("changes", "error", "message"), cases(BAD_ROWS))
def test_a_bad_row_is_refused_by_name_and_changes_nothing(changes, error, message):
    with ReplayBuffer.create(CHECKED, 10) as replay, replay.writer() as writer:
        assert writer.add(**good_row()) == 0
        row = {name: value for name, value in (good_row() | changes).items() if value is not ...}
        refused(replay, writer, lambda: writer.add(**row), error, message)
        assert writer.add(**good_row(), terminated=True) == 1
        batch = replay.sampler(8, min_size=1, seed=0).sample()
        assert set(batch.index.tolist()) == {0, 1}
        assert (batch.obs["id"] == 1).all()
        assert (batch.action == 1).all()


def batch_of(rows=4, **changes):
    columns = {
        "obs": {"frame": np.zeros((rows, 20, 20), np.uint8), "state": np.zeros((rows, 3)), "id": np.ones(rows, int)},
        "action": np.ones(rows, int), "reward": np.ones(rows), "log_prob": np.zeros(rows),
        "big": np.zeros((rows, 70)), "flag": np.ones(rows, bool),
    }  # fmt: skip
    return {name: value for name, value in (columns | changes).items() if value is not ...}


def batch_obs(**changes):
    return batch_of(obs=batch_of()["obs"] | changes)


ONE_TRUNCATED = np.array([False, True, False, False])

BAD_BATCHES = {
    ValueError: [
        (batch_of(reward=[]), "reward: expected an array of shape (T,) with T of at least 1, got []"),
        (batch_of(reward=1.0), "reward: expected an array of shape (T,) with T of at least 1, got 1.0"),
        (batch_of(reward=None), "reward: expected an array of shape (T,) with T of at least 1, got None"),
        (batch_of(reward=np.ones((4, 1))), "reward: expected float32 (4,), got shape (4, 1)"),
        (batch_of(reward=[0.0, 1.0, math.nan, 0.0]), "reward: expected a finite number"),
        (batch_of(reward=[0.0, 1.0, 0.0, math.inf]), "reward: expected a finite number"),
        (batch_of(reward=np.ones(3)), "obs['id']: expected int8 (3,), got shape (4,)"),
        (batch_of(action=np.ones((4, 2), int)), "action: expected int64 (4,), got shape (4, 2)"),
        (batch_of(obs=None), "obs: expected the fields ['frame', 'id', 'state'], got None"),
        (batch_obs(id=[1, 2, 300, 4]), "obs['id']: expected values in int8's range, got 1 to 300"),
        (batch_obs(state=np.full((4, 3), 1e39)), "obs['state']: expected values in float32's range, got 1e+39"),
        (batch_obs(state=np.zeros((4, 2))), "obs['state']: expected float32 (4, 3), got shape (4, 2)"),
        (batch_of(terminated=True), "terminated: expected bool (4,), got shape ()"),
        (batch_of(truncated=np.ones(3, bool)), "truncated: expected bool (4,), got shape (3,)"),
        (batch_of(truncated=ONE_TRUNCATED), "final_obs: expected one observation for each truncated row, got None"),
        (
            batch_of(truncated=ONE_TRUNCATED, final_obs=batch_of(2)["obs"]),
            "final_obs['id']: expected int8 (1,), got shape (2,)",
        ),
        (batch_of(final_obs=batch_of(1)["obs"]), "final_obs: expected None unless rows are truncated"),
        (batch_of(entropy=np.zeros(4)), "extras: expected the fields ['big', 'flag', 'log_prob'], got"),
        (batch_of(flag=...), "extras: expected the fields ['big', 'flag', 'log_prob'], got ['log_prob', 'big']"),
        (batch_of(big=np.zeros((4, 71))), "big: expected float32 (4, 70), got shape (4, 71)"),
        (batch_of(11), "reward: expected at most the lane's 10 rows, final_obs included, got 11"),
        (
            batch_of(10, truncated=np.arange(10) == 3, final_obs=batch_of(1)["obs"]),
            "reward: expected at most the lane's 10 rows, final_obs included, got 11",
        ),
    ],
    TypeError: [
        (batch_of(reward=["a"] * 4), "reward: expected float32 (4,), got dtype <U1"),
        (batch_of(action=np.ones(4)), "action: expected int64 (4,), got dtype float64"),
        (batch_obs(frame=np.zeros((4, 20, 20))), "obs['frame']: expected uint8 (4, 20, 20), got dtype float64"),
        (batch_of(terminated=[0, 0, 1, 0]), "terminated: expected bool (4,), got dtype int64"),
    ],
}


@pytest.mark.long
@pytest.mark.parametrize(("columns", "error", "message"), cases(BAD_BATCHES))
def test_a_bad_batch_is_refused_by_name_and_changes_nothing(columns, error, message):
    with ReplayBuffer.create(CHECKED, 10) as replay, replay.writer() as writer:
        assert writer.add(**good_row()) == 0
        refused(replay, writer, lambda: writer.add_batch(**columns), error, message)
        assert writer.add_batch(**batch_of(4, terminated=np.ones(4, bool))) == 1
        batch = replay.sampler(32, min_size=1, seed=0).sample()
        assert set(batch.index.tolist()) == {0, 1, 2, 3, 4}
        assert not batch.truncated.any()
        assert (batch.obs["id"] == 1).all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"spec": {"obs": 1}}, TypeError, "spec: expected a TransitionSpec, got "),
        ({"capacity": 0}, ValueError, "capacity: expected an integer of at least 1, got 0"),
        ({"capacity": -5}, ValueError, "capacity: expected an integer of at least 1, got -5"),
        ({"capacity": 10.0}, ValueError, "capacity: expected an integer of at least 1, got 10.0"),
        ({"capacity": True}, ValueError, "capacity: expected an integer of at least 1, got True"),
        (
            {"capacity": 1},
            ValueError,
            "capacity: expected at least 2, 2 rows a lane for a truncated transition and its",
        ),
        ({"capacity": 2**32}, ValueError, "capacity: expected from 1 rows, one a lane, to 4294967295, got 4294967296"),
        ({"capacity": 3, "lanes": 4}, ValueError, "capacity: expected from 4 rows, one a lane, to 4294967295, got 3"),
        ({"lanes": 0}, ValueError, "lanes: expected an integer of at least 1, got 0"),
        ({"lanes": None}, ValueError, "lanes: expected an integer of at least 1, got None"),
        ({"name": "a/b"}, ValueError, "name: expected letters, digits, '_' and '.', got 'a/b'"),
        ({"capacity": 2**32 - 1}, SharedMemoryFull, "/dev/shm: "),
    ],
)
def test_a_replay_that_cannot_be_is_refused(arguments, error, message, monkeypatch):
    patch(monkeypatch, "memory", free_bytes=lambda directory: 1 << 30)
    with pytest.raises(error) as caught:
        ReplayBuffer.create(**{"spec": SCALAR, "capacity": 10, **arguments})
    assert str(caught.value).startswith(message)


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size: expected an integer of at least 1, got 0"),
        ({"batch_size": 2.0}, "batch_size: expected an integer of at least 1, got 2.0"),
        ({"stack": 0}, "stack: expected an integer of at least 1, got 0"),
        ({"stack": True}, "stack: expected an integer of at least 1, got True"),
        ({"n_step": -1}, "n_step: expected an integer of at least 1, got -1"),
        ({"stack": 5}, "stack + n_step: expected at most the 5 rows of a lane, got 5 + 1"),
        ({"n_step": 5}, "stack + n_step: expected at most the 5 rows of a lane, got 1 + 5"),
        ({"gamma": 1.1}, "gamma: expected a number from 0 to 1, got 1.1"),
        ({"gamma": math.nan}, "gamma: expected a number from 0 to 1, got nan"),
        ({"gamma": "0.9"}, "gamma: expected a number from 0 to 1, got '0.9'"),
        ({"pad": "edge"}, "pad: expected 'repeat' or 'zero', got 'edge'"),
        ({"min_size": 0}, "min_size: expected an integer of at least 1, got 0"),
        ({"min_size": "1"}, "min_size: expected an integer of at least 1, got '1'"),
    ],
)
def test_a_sampler_that_cannot_be_is_refused(options, message):
    with ReplayBuffer.create(SCALAR, 10, lanes=2) as replay:
        with pytest.raises(ValueError) as caught:
            replay.sampler(**{"batch_size": 4, **options})
        assert str(caught.value).startswith(message)
        replay.sampler(4, stack=4)
        replay.sampler(4, n_step=4)


@pytest.mark.parametrize("rows", [2**40, 2**63, 2**70])
def test_a_batch_beyond_memory_is_refused_with_its_bytes(rows):
    """NumPy's error names neither the option nor the batch; a little less would end the process by the kernel."""
    refused = rf"^batch_size: expected a batch within this machine's [\d,]+ bytes of memory, got {rows}, which takes "
    with ReplayBuffer.create(SCALAR, 10) as replay, pytest.raises(ValueError, match=refused + r"[\d,]{18,} bytes$"):
        replay.sampler(rows)


@pytest.mark.parametrize("lane", [-1, 2, "0", None, 0.0])
def test_a_lane_that_is_not_there_is_refused(lane):
    with (
        ReplayBuffer.create(SCALAR, 10, lanes=2) as replay,
        pytest.raises(ValueError, match=r"^lane: expected 0 to 1, got "),
    ):
        replay.writer(lane)


def test_the_ends_of_one_batch_are_not_those_of_the_next():
    """Also where a check failed in between; the staging is kept for batches of the same length."""
    rows = {"obs": np.zeros(3, np.float32), "action": np.zeros(3, np.int64), "reward": np.zeros(3, np.float32)}
    ends = np.array([False, True, False])
    with ReplayBuffer.create(SCALAR, 64) as replay, replay.writer() as writer:
        writer.add_batch(**rows, terminated=ends)
        writer.add_batch(**rows)
        with pytest.raises(TypeError, match="truncated"):
            writer.add_batch(**rows, terminated=ends, truncated=np.zeros(3))
        writer.add_batch(**rows)
        batch = replay.sampler(64, seed=0, min_size=1).sample()
        assert set(batch.index[batch.terminated].tolist()) == {1}
