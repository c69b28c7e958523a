"""The replay through its public methods: batches have the rows that were added, and bad rows are refused."""

import re
from contextlib import nullcontext

import numpy as np
import pytest
from mapped import Mapped
from model import SPECS, Model, chi_square_limit, fill
from refused import check_refused
from seams import trusting
from victims import fork, reap

from marlcore import (
    ClosedError,
    Field,
    NotEnoughData,
    Prioritized,
    RateLimiter,
    ReplayBuffer,
    SegmentCorrupt,
    Sequence,
    TransitionSpec,
)
from marlcore.errors import TimedOut
from marlcore.lazy import is_installed
from marlcore.observations import each
from marlcore.transitions import ReadPlan
from marlcore.transitions import writer as writer_module
from marlcore.transitions.staging import BatchStaging

SCALAR = TransitionSpec(Field(), Field((), "int64"))
VECTOR = SPECS["vector"]


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def write(replay, rows):
    with replay.writer() as writer:
        writer.add_batch(np.arange(float(rows)), np.zeros(rows, int), np.zeros(rows))


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
def test_values_of_every_kind_come_back(dtype, value):
    for shape in ((), (3,), (2, 2), (70, 5)):
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


def test_rows_with_their_own_next_obs_stand_alone():
    spec = TransitionSpec(Field(), Field(), next_obs=True)
    with ReplayBuffer.create(spec, 1) as replay, replay.writer() as writer:
        for end, discount in ({}, 0.5), ({"truncated": True}, 0.5), ({"terminated": True}, 0.0):
            ticket = writer.add(1.0, 0, 2.0, next_obs=5.0, **end)
            batch = replay.sampler(1, gamma=0.5).sample()
            assert (batch.index, batch.reward, batch.next_obs, batch.discount) == (ticket, 2, 5, discount)
            assert (batch.terminated, batch.truncated) == ("terminated" in end, "truncated" in end)


@pytest.mark.parametrize(("n_step", "reward", "discount"), [(1, [1, 1, 1, 4], 0.5), (3, [1.75, 1.5, 1, 4], 0.125)])
def test_a_truncation_learnt_after_the_add_reads_like_any_other(n_step, reward, discount):
    """No batch has the last row before its end is known, and what was committed stays as it was."""
    with ReplayBuffer.create(SCALAR, 16) as replay, replay.writer() as writer:
        for step in range(3):
            writer.add(float(step), step, 1.0)
        sampler, mapped = replay.sampler(64, n_step=n_step, gamma=0.5, min_size=1, seed=0), Mapped(replay)
        assert not sampler.can_sample() if n_step == 3 else 2 not in sampler.sample().index
        before = mapped.column(0)[:3].tobytes()
        assert writer.end_episode(final_obs=9.0) == 3
        assert mapped.column(0)[:3].tobytes() == before
        writer.add(5.0, 5, 4.0, terminated=True)
        batch = sampler.sample()
        found = {index: row for row, index in enumerate(batch.index.tolist())}
        rows = [found[index] for index in (0, 1, 2, 4)]
        assert batch.reward[rows].tolist() == reward
        assert batch.truncated[rows].tolist() == [n_step == 3, n_step == 3, True, False]
        assert batch.terminated[rows].tolist() == [False, False, False, True]
        assert (batch.next_obs[found[2]], batch.discount[found[0]], batch.discount[found[2]]) == (9, discount, 0.5)
        assert replay.sampler(1, sequence=Sequence(4), seed=0).sample().mask.sum() in (1, 3)


ENDED = "end_episode: expected an unfinished episode, got none"
NO_END = {
    "no row": ([], {}, ENDED),
    "terminated": ([{"terminated": True}], {}, ENDED),
    "truncated": ([{"truncated": True, "final_obs": 1.0}], {}, ENDED),
    "not truncated": ([{}], {"truncated": False}, "truncated: expected True, got False; `add` has terminated"),
    "wrong shape": ([{}], {"final_obs": [1.0]}, "final_obs: expected float32 (), got shape (1,)"),
}


@pytest.mark.parametrize("case", NO_END)
def test_only_a_last_row_without_an_end_can_be_truncated(case):
    rows, options, says = NO_END[case]
    with ReplayBuffer.create(SCALAR, 16) as replay, replay.writer() as writer:
        for ends in rows:
            writer.add(0.0, 0, 0.0, **ends)
        with pytest.raises(ValueError, match=re.escape(says)):
            writer.end_episode(**{"final_obs": 1.0} | options)
        assert Mapped(replay).committed() == len(rows) + (case == "truncated")


def test_no_row_can_be_truncated_after_the_writer_or_where_rows_stand_alone():
    with ReplayBuffer.create(TransitionSpec(Field(), Field(), next_obs=True), 8) as replay:
        with replay.writer() as writer, pytest.raises(ValueError, match=r"^end_episode: expected a spec without next_"):
            writer.end_episode(final_obs=0.0)
        with pytest.raises(ClosedError, match="the writer was closed"):
            writer.end_episode(final_obs=0.0)


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


def test_a_seed_decides_the_draws():
    with ReplayBuffer.create(SCALAR, 100) as replay:
        write(replay, 100)
        first, second, *others = (replay.sampler(32, seed=seed) for seed in (1, 1, 2, None, None))
        assert first.sample().index.tolist() == second.sample().index.tolist()
        draws = [tuple(sampler.sample().index.tolist()) for sampler in (first, *others)]
        assert len(set(draws)) == 4 and draws[0] == tuple(second.sample().index.tolist())


@pytest.mark.parametrize("timeout", [None, 0.0, 0.001])
def test_without_enough_rows_there_is_no_batch(timeout):
    error = NotEnoughData if timeout is None else TimedOut
    with ReplayBuffer.create(SCALAR, 100) as replay, replay.writer() as writer:
        usual, patient, far = replay.sampler(4), replay.sampler(4, min_size=6), replay.sampler(4, n_step=5)
        for held in range(9):
            short = "at least 4" if held < 4 else "transitions has its stack and its next 5 steps held whole"
            for sampler, least, says in ((usual, 4, "at least 4"), (patient, 6, "at least 6"), (far, 6, short)):
                assert sampler.can_sample() == (held >= least)
                if held < least:
                    with pytest.raises(error, match=says):
                        sampler.sample(timeout=timeout)
            writer.add(0.0, 0, 0.0)


def test_stats_count_rows():
    with ReplayBuffer.create(SCALAR, 100) as replay:
        write(replay, 10)
        sampler = replay.sampler(10, seed=0)
        for _ in range(20):
            sampler.sample()
        stats = sampler.stats
        assert (stats.drawn, stats.lapped, stats.waited) == (200, 0, 0)
        assert 0 < stats.redrawn < 200  # one row of ten, the newest, has no successor yet


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
        if not is_installed("train"):
            keepers = {name: keep for name, keep in keepers.items() if "tensor" not in name}

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


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("name", SPECS)
def test_tensors_on_the_cpu_share_the_batchs_memory(name, stack, rng):
    pytest.importorskip("torch")

    def check(array, tensor):
        assert tensor.data_ptr() == array.ctypes.data
        assert tuple(tensor.shape) == array.shape and np.array_equal(tensor.numpy(), array)

    spec = SPECS[name]
    with ReplayBuffer.create(spec, 50) as replay:
        fill(replay, Model(spec, 1, 50), rng, [50])
        batch = replay.sampler(8, stack=1 if spec.next_obs else stack, seed=0).sample()
        tensors = batch.torch()
        for name, values in vars(batch).items():
            if values is None:
                assert getattr(tensors, name) is None
            else:
                each(check, values, getattr(tensors, name))
        assert len(vars(batch)) == 13


def test_a_released_batchs_memory_is_used_again():
    with ReplayBuffer.create(SCALAR, 10) as replay:
        write(replay, 10)
        sampler = replay.sampler(4)
        assert len({sampler.sample().obs.ctypes.data for _ in range(20)}) == 1


def test_obs_and_next_obs_share_frames():
    with ReplayBuffer.create(SPECS["frame"], 20) as replay, replay.writer() as writer:
        for i in range(20):
            writer.add(np.full((84, 84), i, np.uint8), 0, 0.0)
        batch = replay.sampler(4, stack=4, seed=0).sample()
        assert batch.obs.shape == (4, 4, 84, 84)
        assert batch.next_obs.ctypes.data == batch.obs.ctypes.data + 84 * 84


def test_rows_that_count_too_many_transitions_are_refused():
    with ReplayBuffer.create(TransitionSpec(Field(), Field()), 8) as replay, replay.writer() as writer:
        writer.add(0.0, 0.0, 0.0)
        cleared = replay.sampler(8)
        cleared.clear()
        for _ in range(3):
            writer.add(0.0, 0.0, 0.0)
        assert len(replay) == 4 and not cleared.can_sample()
        Mapped(replay).column(0)[:2].view(np.uint32)[:, 0] = 7  # the ordinals of the oldest one and of the one after
        for count in (replay.__len__, cleared.can_sample):
            with pytest.raises(SegmentCorrupt, match="contradict one another"):
                count()


def test_the_ends_of_one_batch_are_not_those_of_the_next():
    """The staging is reused for batches of one length, also after a check failed."""
    rows = {"obs": np.zeros(3, np.float32), "action": np.zeros(3, np.int64), "reward": np.zeros(3, np.float32)}
    ends = np.array([False, True, False])
    with ReplayBuffer.create(SCALAR, 64) as replay, replay.writer() as writer:
        writer.add_batch(**rows, terminated=ends)
        writer.add_batch(**rows)
        with pytest.raises(ValueError, match="truncated"):
            writer.add_batch(**rows, terminated=ends, truncated=np.full(3, 2))
        writer.add_batch(**rows)
        batch = replay.sampler(64, seed=0, min_size=1).sample()
        assert set(batch.index[batch.terminated].tolist()) == {1}


def test_boundary_rows_follow_the_truncated_rows_of_each_batch(rng, monkeypatch):
    """Batches of one length and as many boundary rows share their staging; memory is as after single adds."""
    made = []
    monkeypatch.setattr(writer_module, "BatchStaging", lambda *args: made.append(args) or BatchStaging(*args))
    spec = TransitionSpec({"frame": Field((20, 20), "uint8"), "id": Field()}, Field((), "int64"))
    with ReplayBuffer.create(spec, 200) as many, ReplayBuffer.create(spec, 200) as single:
        with many.writer() as writer, single.writer() as one:
            for cuts in [[5], [0], [2], [], [5], [0, 4], [1, 2], [0, 1, 2, 3, 4, 5], [3]]:
                obs, after = (
                    {"frame": rng.integers(0, 256, (n, 20, 20), np.uint8), "id": rng.random(n, np.float32)}
                    for n in (6, len(cuts))
                )
                action, truncated = rng.integers(0, 9, 6), np.isin(np.arange(6), cuts)
                writer.add_batch(obs, action, np.ones(6), ~truncated, truncated, after)
                for i in range(6):
                    row = {name: part[i] for name, part in obs.items()}
                    final = {name: part[cuts.index(i)] for name, part in after.items()} if i in cuts else None
                    one.add(row, action[i], 1.0, not final, bool(final), final)
        assert len(made) == 4  # for 1, 0, 2 and 6 boundary rows
        for column in range(2):
            assert Mapped(many).column(column).tobytes() == Mapped(single).column(column).tobytes()


@pytest.mark.parametrize("form", [Field((4,)), {"a": Field((4,)), "b": Field()}], ids=["array", "dict"])
@pytest.mark.parametrize("truncated", [None, np.zeros(3, bool)], ids=["none", "all False"])
def test_a_batch_without_truncated_rows_takes_an_empty_final_obs(form, truncated):
    spec, obs = TransitionSpec(form, Field((), "int64")), {"a": np.zeros((3, 4)), "b": np.zeros(3)}
    obs = obs if isinstance(form, dict) else obs["a"]
    with ReplayBuffer.create(spec, 64) as replay, replay.writer() as writer:
        for empty in ([], each(lambda part: part[:0], obs)):
            writer.add_batch(obs, np.zeros(3, int), np.zeros(3), truncated=truncated, final_obs=empty)
        assert len(replay) == 6


def add_tickets(replay, first, end):
    """Adds transitions to both lanes; each ends its episode, and its observation is its ticket."""
    tickets = np.arange(first, end)
    for lane in range(2):
        with replay.writer(lane) as writer:
            writer.add_batch(tickets, tickets, np.zeros(end - first), np.ones(end - first, bool))


@pytest.mark.parametrize("limiter", [None, RateLimiter(1.0, 10, 20.0)], ids=["free", "limited"])
def test_min_size_counts_from_the_clearing(limiter):
    """This holds for the cleared sampler and for one with its state; a limiter lets writers add the missing rows."""
    with ReplayBuffer.create(SCALAR, 200, lanes=2, limiter=limiter) as replay:
        add_tickets(replay, 0, 10)
        sampler, other = replay.sampler(8, min_size=40), replay.sampler(8)
        sampler.clear()
        restored = replay.sampler(8, min_size=40)
        restored.load_state_dict(sampler.state_dict())
        assert not sampler.can_sample()
        add_tickets(replay, 10, 19)
        for cleared in (sampler, restored):
            with pytest.raises(NotEnoughData, match="expected at least 40 transitions, got 18"):
                cleared.sample()
        add_tickets(replay, 19, 30)
        assert min(cleared.sample().obs.min() for cleared in (sampler, restored)) >= 10
        assert min(other.sample().obs.min() for _ in range(5)) < 10 and len(replay) == 60
        sampler.clear()
        with pytest.raises(ValueError, match="state: expected floor as tickets of this replay"):
            sampler.load_state_dict(sampler.state_dict() | {"floor": np.array([30, 1000])})


@pytest.mark.parametrize("options", [{}, {"replace": False}, {"prioritized": Prioritized()}], ids=str)
def test_counters_that_went_back_behind_a_clearing_are_refused(options):
    """In a child's process: a window of negative length once led a kernel out of its arrays."""

    def work():
        with ReplayBuffer.create(SCALAR, 40_000, lanes=2) as replay:
            add_tickets(replay, 0, 10_000)
            sampler = replay.sampler(8, **options)
            sampler.clear()
            with replay.writer(1) as writer:
                for ticket in range(9995):  # as many as the other lane has too few
                    writer.add(ticket, ticket, 0.0)
            Mapped(replay).counters()[:] = 5
            for call in (sampler.sample, sampler.can_sample, sampler.clear, sampler.state_dict):
                check_refused(call, SegmentCorrupt, "contradict one another")

    assert reap(fork(work)) == 0


def test_a_cleared_sampler_bears_a_lane_torn_whole():
    """A writer died in an append of a whole lane; the next writer continues the counts."""
    with ReplayBuffer.create(SCALAR, 16, lanes=2) as replay:
        write(replay, 3)
        sampler = replay.sampler(64, min_size=4)
        sampler.clear()
        committed, records = Mapped(replay).counters()[:1], Mapped(replay).column(0)
        write(replay, 8)
        committed[:], records[:] = 3, 0xA5
        assert not sampler.can_sample()
        sampler.clear()
        with replay.writer() as writer:
            for value, truncated in enumerate([False, True, False, True]):
                assert not sampler.can_sample()
                writer.add(value, 0, 0.0, truncated=truncated, final_obs=-1.0 if truncated else None)
        other = replay.sampler(64, min_size=5)
        other.load_state_dict(sampler.state_dict() | {"cleared_at": np.array(3)})  # as former versions wrote it
        with pytest.raises(NotEnoughData, match="expected at least 5 transitions, got 4"):
            other.sample()
        assert set(sampler.sample().obs.tolist()) == {0.0, 1.0, 2.0, 3.0}


@pytest.mark.parametrize("trusted", [False, True], ids=["", "control"])
def test_a_lane_lapped_while_it_is_counted_is_counted_again(monkeypatch, trusted):
    """The control trusts the overwritten rows, and counts 3 transitions instead of 8."""
    read_windows, rows = ReadPlan.read_windows, [8]

    def read_and_write(plan):
        read_windows(plan)
        if rows:
            write(replay, rows.pop())

    with ReplayBuffer.create(SCALAR, 8) as replay, trusting() if trusted else nullcontext():
        write(replay, 1)
        sampler = replay.sampler(8, min_size=5)
        sampler.clear()
        write(replay, 3)
        monkeypatch.setattr(ReadPlan, "read_windows", read_and_write)
        assert sampler.can_sample() == (not trusted) and not rows


def test_torch_refuses_what_it_does_not_have() -> None:
    spec = TransitionSpec(Field((2,), "longdouble"), Field((), "int64"))
    with ReplayBuffer.create(spec, 8) as replay, replay.writer() as writer:
        for _ in range(8):
            writer.add(np.ones(2, np.longdouble), 0, 0.0, terminated=True)
        with pytest.raises(TypeError, match=r"longdouble|float128"):
            replay.sampler(4, n_step=1, min_size=1).sample().torch()
