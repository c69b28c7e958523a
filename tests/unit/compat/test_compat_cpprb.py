"""marlcore.compat.cpprb against the real cpprb, in every kind of process, and under SIGKILL."""

import multiprocessing as mp
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import count
from multiprocessing.managers import SyncManager
from typing import Any

import numpy as np
import pytest
from cpprb_alike import ENV, assert_equal, sizes, steps
from filled import torn
from meanwhile import running
from refused import Refused, check_refused, each_bad, refusals
from seams import patch, trusting
from victims import at_instruction, fork, reap

from marlcore.compat import ring_lane
from marlcore.compat.cpprb import MPPrioritizedReplayBuffer, MPReplayBuffer
from marlcore.memory import SHM_DIR, NativeWriter, add_lock, survey_segments

COUNTED = {"who": {"dtype": "int64"}, "t": {"dtype": "int64"}}
BOTH = pytest.mark.parametrize("cls", [MPReplayBuffer, MPPrioritizedReplayBuffer])


@pytest.mark.long
def test_a_long_sequence_of_calls_has_the_results_of_cpprb(program) -> None:
    pytest.importorskip("cpprb", reason="cpprb has wheels for Python 3.10 to 3.12 on x86-64 only", exc_type=ImportError)
    assert program("from cpprb_alike import compare; compare(); print('equal')").finish() == "equal"


def exact(size: int, count: int = 0, priorities: object = None, **options: float) -> MPPrioritizedReplayBuffer:
    """A buffer whose rows are drawn in proportion to their priorities, with rows 0 to count - 1."""
    buffer = MPPrioritizedReplayBuffer(size, {"t": {}}, **{"alpha": 1.0, "eps": 0.0, **options})
    if count:
        buffer.add(t=np.arange(count), priorities=priorities)
    return buffer


def elsewhere(buffer: MPReplayBuffer) -> MPReplayBuffer:
    """The buffer as another process has it."""
    return pickle.loads(pickle.dumps(buffer))


def weights(buffer: MPPrioritizedReplayBuffer) -> dict[int, float]:
    """Each row's weight, by position, from samples that hold it."""
    np.random.seed(0)
    sample = buffer.sample(200, beta=1.0)
    return dict(zip(sample["indexes"].tolist(), sample["weights"].tolist(), strict=True))


def test_rows_are_drawn_in_proportion_to_their_priorities() -> None:
    priorities = np.random.default_rng(0).random(40) * 5
    buffer = exact(40, 40, priorities, alpha=0.6, eps=1e-4)
    np.random.seed(1)
    draws = 50_000
    counts = np.bincount(buffer.sample(draws)["indexes"].astype(int), minlength=40)
    expected = (priorities + 1e-4) ** 0.6
    expected *= draws / expected.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 90  # chi-squared of 39 degrees: 1 in 10^5


def test_a_wrapping_add_gives_each_row_its_own_priority() -> None:
    buffer = exact(5, 4, np.ones(4))
    assert buffer.add(t=np.arange(4, 7), priorities=[8.0, 4.0, 2.0]) == 4
    assert weights(buffer) == {4: 0.125, 0: 0.25, 1: 0.5, 2: 1.0, 3: 1.0}


def test_an_update_skips_rows_that_were_overwritten() -> None:
    buffer = exact(4, 4)
    buffer.sample(4)
    buffer.add(t=4, priorities=0.5)
    buffer.update_priorities([0, 1], [9.0, 0.25])
    assert buffer.get_max_priority() == 1.0
    assert weights(buffer) == {0: 0.5, 1: 1.0, 2: 0.25, 3: 0.25}


def test_updates_tell_other_processes_the_greatest_priority() -> None:
    buffer = exact(4)
    other = elsewhere(buffer)
    other.add(t=np.arange(4), priorities=np.full(4, 3.0))
    assert buffer.get_max_priority() == other.get_max_priority() == 3.0
    buffer.sample(4)
    buffer.update_priorities([1], [7.5])
    assert other.get_max_priority() == 7.5
    other.clear()
    assert buffer.get_max_priority() == other.get_max_priority() == 1.0


def test_a_priority_of_zero_can_be_raised_again() -> None:
    buffer = exact(4, 4)
    buffer.sample(4)
    for positions, priorities, drawn in (
        ([0, 1, 2, 3], [0.0, 0.0, 2.0, 0.0], 2.0), ([2, 1], [0.0, 5.0], 1.0), ([1, 1], [0.0, 1.0], 1.0),
    ):  # fmt: skip
        for position, priority in zip(positions, priorities, strict=True):
            buffer.update_priorities([position], [priority])
        assert set(buffer.sample(40)["t"].ravel()) == {drawn}


def test_an_interrupted_update_happens_whole_or_not_at_all() -> None:
    buffer, rows = MPPrioritizedReplayBuffer(40, {"t": {}}, alpha=1.0, eps=0.0), np.arange(40)
    buffer.add(t=rows)
    for moment in count(1):
        buffer.update_priorities(rows, np.full(40, 3.0))
        buffer.sample(1)
        update = partial(buffer.update_priorities, rows[:20], np.ones(20))
        came, _ = at_instruction(update, moment, lambda file: "/cpprb/" in file, signals=True)
        sample = buffer.sample(1000, beta=1.0)
        drawn = np.bincount(sample["t"].ravel().astype(int), minlength=40)
        happened = sample["weights"].min() < 1
        assert drawn.max() < 100 and (drawn[:20].sum() < 375) == happened
        if not came:
            break
    assert happened and moment > 20


@pytest.mark.parametrize("alpha", [8.0, 40.0])
def test_the_greatest_allowed_priority_has_a_finite_sum(alpha) -> None:
    buffer = exact(4, alpha=alpha, eps=1e-4)
    check_refused(lambda: buffer.add(t=0, priorities=np.inf), ValueError, "got [inf]")
    with pytest.raises(ValueError, match=r"priorities: expected numbers from 0 to .*, got \[3.39") as refused:
        buffer.add(t=0, priorities=3.4e38)
    assert buffer.get_stored_size() == 0
    most = float(str(refused.value).split()[6].rstrip(","))
    buffer.add(t=np.arange(4), priorities=np.full(4, 0.999 * most))
    np.testing.assert_array_equal(buffer.sample(8)["weights"], np.ones(8))
    check_refused(lambda: buffer.update_priorities([0], [1.001 * most]), ValueError, "priorities: expected numbers")
    buffer.update_priorities([0], [0.999 * most])
    assert buffer.get_max_priority() == pytest.approx(0.999 * most)


def between(monkeypatch, owner, step="_draw", *, before=(), after=()) -> None:
    """Does something before or after the first times that the owner takes this step: first the first, and so on."""
    real, before, after = getattr(owner, step), iter(before), iter(after)

    def interrupted(*arguments):
        next(before, lambda: None)()
        result = real(*arguments)
        next(after, lambda: None)()
        return result

    monkeypatch.setattr(owner, step, interrupted)


@pytest.mark.parametrize("when", ["before", "after"])
def test_indexes_survive_another_processs_clear_inside_sample(when, monkeypatch) -> None:
    buffer = exact(5, 3, [1.0, 2.0, 3.0])
    other = elsewhere(buffer)

    def clear_and_add() -> None:
        other.clear()
        other.add(t=np.arange(10, 14), priorities=[1.0, 2.0, 3.0, 4.0])  # over the rows 0 and 1

    between(monkeypatch, buffer, **{when: [clear_and_add]})
    np.random.seed(0)
    sample = buffer.sample(20, beta=1.0)
    at = sample["indexes"].astype(int)
    assert len(set(at)) > 1
    np.testing.assert_array_equal(sample["t"][:, 0], at + 10)
    np.testing.assert_allclose(sample["weights"], 1 / (at + 1), rtol=1e-6)


def test_a_row_added_inside_sample_takes_its_update(monkeypatch) -> None:
    buffer = exact(50, 1, 1.0)
    between(monkeypatch, buffer, before=[lambda: buffer.add(t=1, priorities=1000.0)])
    np.random.seed(0)
    sample = buffer.sample(6)
    assert 1 in sample["indexes"]
    buffer.update_priorities(sample["indexes"], np.full(6, 4.0))
    least = 4.0 if 0 in sample["indexes"] else 1.0
    again = buffer.sample(60, beta=1.0)
    np.testing.assert_array_equal(again["weights"], np.where(again["indexes"] == 1, least / 4, 1.0))


def test_a_row_overwritten_inside_sample_takes_no_update(monkeypatch) -> None:
    buffer = exact(4, 4)
    adds = [lambda: buffer.add(t=[4, 5], priorities=[1.0, 1.0]), lambda: buffer.add(t=[6, 7], priorities=[1e-9, 1e-9])]
    between(monkeypatch, buffer, after=adds)
    np.random.seed(0)
    sample = buffer.sample(64)
    assert set(sample["t"].ravel()) == {2.0, 3.0, 4.0, 5.0}  # 0 and 1 were gone when they were copied, 6 and 7 unlikely
    for positions, greatest in (([2, 3], 1.0), ([0, 1], 9.0)):
        buffer.update_priorities(positions, [9.0, 9.0])
        assert buffer.get_max_priority() == greatest


@BOTH
def test_a_clear_inside_a_look_counts_what_follows_it(cls, monkeypatch) -> None:
    buffer = cls(8, {"t": {}})
    buffer.add(t=np.arange(3))
    other = elsewhere(buffer)

    def clear_and_add() -> None:
        other.clear()
        other.add(t=3)

    between(monkeypatch, buffer._ring.lane, "edges", before=[clear_and_add])
    assert buffer.get_stored_size() == 1


@BOTH
def test_transitions_lie_at_the_positions_of_their_add(cls) -> None:
    buffer = cls(6, {"t": {}, "x": {"shape": (2, 2)}})
    buffer.add(t=np.arange(4), x=np.zeros((4, 2, 2)))
    np.testing.assert_array_equal(buffer._encode_sample(range(6))["t"].ravel(), [0, 1, 2, 3, 0, 0])
    buffer.add(t=np.arange(4, 8), x=np.ones((4, 2, 2)))
    found = buffer._encode_sample([5, 0, -1, 2])
    assert_equal(found, {"t": np.float32([[5], [6], [5], [2]]), "x": found["x"]})
    assert (found["x"].shape, found["x"].dtype) == ((4, 2, 2), np.float32)


def held(cls: type = MPPrioritizedReplayBuffer, count: int = 2) -> MPReplayBuffer:
    """A buffer with room for four steps."""
    buffer = cls(4, ENV)
    if count:
        buffer.add(**steps(np.random.default_rng(0), count))
    return buffer


def shut_down() -> SyncManager:
    with SyncManager(ctx=mp.get_context("spawn")) as manager:
        held().__init__(4, ENV, ctx=manager)  # a running one is accepted
        return manager


NUMBER = "a finite number of at least 0"
new = partial(MPPrioritizedReplayBuffer, size=4, env_dict={"a": {}})
REFUSED: list[Refused] = [
    *each_bad(new, "an integer of at least 1", size=[0, None, 2.5]),
    *each_bad(new, NUMBER, alpha=["a"], eps=[-1]),
    (lambda: new(env_dict={}), ValueError, "env_dict: expected a dict of at least one field"),
    (lambda: new(env_dict={"a": {"shape": ()}}), ValueError, "env_dict['a']: expected a shape of at least one axis"),
    (lambda: new(env_dict={"a": {"dtype": object}}), TypeError, "env_dict['a']: Field dtype"),
    (lambda: new(env_dict={"a": None}), TypeError, "env_dict['a']: expected a dict"),
    (lambda: new(backend="disk"), ValueError, "backend: expected one of"),
    *((partial(new, **{name: "a"}), TypeError, f"unexpected keyword argument '{name}'")
      for name in ("Nstep", "next_of", "stack_compress", "mmap_prefix")),
    (lambda: new(alpha=1e9), ValueError, "alpha, eps: expected a finite sum"),
    *((partial(call, bad), ValueError, "priorities: expected")
      for bad in ([1.0], [1.0, -1.0], [np.nan, 1.0], [np.inf, 1.0])
      for call in (lambda bad: exact(4).add(t=[1, 2], priorities=bad),
                   lambda bad: exact(4, 2).update_priorities([0, 1], bad))),
    (lambda: exact(4, 2).update_priorities([0, 1], None), TypeError, "indexes, priorities: expected arrays"),
    (lambda: exact(4, 2, [0.0, 0.0]).sample(4), ValueError,
        "sample: expected a transition with a priority + eps above 0, got none"),
    (lambda: held().sample(1, beta="x"), ValueError, f"beta: expected {NUMBER}, got 'x'"),
]  # fmt: skip
test_refuses = refusals(REFUSED)
BAD_ROWS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"obs": np.zeros((1, 5))}, ValueError, "obs: expected steps of shape (2, 3), got shape (1, 5)"),
    ({"obs": None}, KeyError, "obs: expected a value for each of"),
    ({"act": [1, 2]}, ValueError, "steps: expected the same number in each field"),
    ({"rew": "much"}, ValueError, "could not convert string to float"),
    (steps(np.random.default_rng(1), 5), ValueError, "steps: expected at most the buffer's size 4, got 5"),
]


@BOTH
def test_both_refuse(cls, subtests) -> None:
    for call, error, says in (
        (lambda: cls(4, ENV, ctx=shut_down()), mp.ProcessError,
            "ctx: expected a context or a manager, got a manager that has shut down"),
        *each_bad(held(cls).sample, "an integer of at least 0", batch_size=[-1, "a", None, 1.5]),
        *((lambda bad=bad: held(cls)._encode_sample([0, bad]), IndexError,
            f"idx: expected positions from -4 to 3, got {bad}") for bad in (4, -5)),
    ):  # fmt: skip
        with subtests.test(says):
            check_refused(call, error, says)


@BOTH
def test_a_bad_add_raises_and_adds_nothing(cls, subtests) -> None:
    for change, error, says in BAD_ROWS:
        with subtests.test(says):
            buffer = held(cls)
            values = {**steps(np.random.default_rng(1), 1), **change}
            given = {name: value for name, value in values.items() if value is not None}
            check_refused(partial(buffer.add, **given), error, says)
            assert sizes(buffer)[:2] == (2, 2)
            assert len(buffer.sample(8)["obs"]) == 8
            assert buffer.add(**steps(np.random.default_rng(1), 4)) == 2
            assert buffer.get_stored_size() == 4


@BOTH
def test_an_empty_buffer_returns_or_raises_at_once(cls) -> None:
    buffer = held(cls)
    assert buffer.sample(0)["act"].shape == (0, 1)
    buffer.clear()
    check_refused(lambda: buffer.sample(2), ValueError, "sample: expected at least one stored transition, got none")
    assert {name: array.shape for name, array in buffer.get_all_transitions().items()} == {
        "obs": (0, 2, 3), "act": (0, 1), "rew": (0, 1), "done": (0, 1), "next obs": (0, 4)}  # fmt: skip


@pytest.mark.parametrize("backend", [{}, {"backend": "sharedctypes"}, {"backend": "SharedMemory"}], ids=str)
def test_names_shapes_and_dtypes_are_free(backend) -> None:
    """With each backend the rows lie in marlcore's own shared memory, to which another process adds."""
    before = len(survey_segments())
    env = {"a b": {}, "reward": {"shape": (3, 1)}, "self": {"dtype": np.uint8}, "tickets": {"shape": 200}}
    buffer = MPReplayBuffer(5, env, default_dtype="float64", **backend)
    assert len(survey_segments()) == before + 1
    row = {"a b": 0.1, "reward": [[1], [2], [3]], "self": 7, "tickets": np.arange(200)}
    buffer.add(**row)
    assert reap(fork(lambda: buffer.add(**row) != 1)) == 0 and buffer.get_stored_size() == 2
    assert repr(buffer) == "MPReplayBuffer(size=5, fields=['a b', 'reward', 'self', 'tickets'])"
    sample = buffer.sample(2)
    assert {name: (array.shape, array.dtype) for name, array in sample.items()} == {
        "a b": ((2, 1), np.float64), "reward": ((2, 3, 1), np.float64), "self": ((2, 1), np.uint8),
        "tickets": ((2, 200), np.float64)}  # fmt: skip
    np.testing.assert_array_equal(sample["tickets"][0], np.arange(200))


def test_a_block_of_large_rows_is_copied_once(monkeypatch) -> None:
    """A contiguous array of the field's dtype goes to the ring itself; any other one is staged, as a small field is."""
    buffer = MPReplayBuffer(64, {"frame": {"shape": 200}, "t": {}})
    buffer.add(frame=np.zeros((2, 200)), t=[0, 1])
    lent = []
    rows_adder = NativeWriter.rows_adder

    def noting(*arguments):
        append = rows_adder(*arguments)
        return lambda frames: (lent.extend(frames), append(frames))[1]

    monkeypatch.setattr(NativeWriter, "rows_adder", noting)
    block = np.arange(4 * 400, dtype=np.float32).reshape(4, 400)
    frozen = block[:, :200].copy()
    frozen.flags.writeable = False
    ours = [frozen, frozen.ravel(), block[:, 200:], frozen.astype(np.float64), frozen.astype(">f4"), frozen.tolist()]
    for given in ours:
        buffer.add(frame=given, t=np.arange(4))
    shared = [np.shares_memory(one, given) for one, given in zip(lent, ours[:-1], strict=False)]
    assert shared == [True, True, False, False, False]
    held = buffer.get_all_transitions()
    for i, given in enumerate(ours):
        rows = slice(2 + 4 * i, 6 + 4 * i)
        np.testing.assert_array_equal(held["frame"][rows], np.reshape(given, (4, 200)))
        assert held["t"][rows].ravel().tolist() == [0, 1, 2, 3]


@BOTH
def test_a_full_dev_shm_is_no_error(cls, monkeypatch) -> None:
    """As in cpprb, whose memory is then a file in the temporary directory too."""
    patch(monkeypatch, "memory", free_bytes=lambda directory: 0 if directory == SHM_DIR else 1 << 30)
    buffer = cls(100, COUNTED)
    with running(mp.get_context("fork").Process(target=explore, args=[buffer, 1, 50])):
        pass
    other = elsewhere(buffer)
    explore(other, 2, 50)
    assert buffer.get_all_transitions()["who"].ravel().tolist() == [1] * 50 + [2] * 50
    other.close()
    buffer.close()


@BOTH
def test_an_add_waits_only_so_long_for_a_stopped_writer(cls, monkeypatch) -> None:
    monkeypatch.setattr(ring_lane, "PATIENCE_S", 0.02)
    buffer = held(cls, 0)
    inside = buffer._ring.lane._segment.lock(add_lock(1, 0))
    says = "add: this writer waited 0.02 seconds while another one was inside an add"
    check_refused(lambda: buffer.add(**steps(np.random.default_rng(0), 2)), TimeoutError, says)
    assert buffer.get_stored_size() == 0
    inside.close()
    assert buffer.add(**steps(np.random.default_rng(0), 2)) == 0


def explore(buffer: MPReplayBuffer, who: int, count: int) -> None:
    given = isinstance(buffer, MPPrioritizedReplayBuffer) and who % 2
    priorities = {"priorities": np.full(10, 2.0)} if given else {}
    for t in range(0, count, 10):
        buffer.add(who=np.full(10, who), t=np.arange(t, t + 10), **priorities)


@pytest.mark.long
@BOTH
@pytest.mark.parametrize("kind", ["fork", "spawn", "SyncManager"])
def test_explorers_of_any_context_add_without_losing_a_row(cls, kind: str) -> None:
    context = mp.get_context("spawn" if kind == "SyncManager" else kind)
    manager = SyncManager(ctx=context) if kind == "SyncManager" else nullcontext(context)
    with manager as ctx:
        buffer = cls(5000, COUNTED, ctx=ctx)
    buffer.add(who=99, t=0)  # the parent holds the lane too
    explorers = [context.Process(target=explore, args=[buffer, who, 1000]) for who in range(2)]
    with running(*explorers):
        while any(one.is_alive() for one in explorers):
            sample = buffer.sample(32)
            assert set(sample["who"].ravel()) <= {0, 1, 99}
            if cls is MPPrioritizedReplayBuffer:
                buffer.update_priorities(sample["indexes"], np.ones(32))
    held = buffer.get_all_transitions()
    for who in range(2):
        np.testing.assert_array_equal(held["t"][held["who"] == who], np.arange(1000))
    assert buffer.get_stored_size() == 2001


WIDTH = 400
NURSERY = """
    import os, pickle, random, signal, sys, time
    import numpy as np
    from marlcore.compat import cpprb
    from marlcore.testing.rows import filled
    buffer, width, kills = pickle.loads(bytes.fromhex(sys.argv[1])), *map(int, sys.argv[2:])

    def explore(who):
        batches = filled(width, who + 2000 * np.arange(7 * 40).reshape(7, 40))
        while True:
            for x in batches:
                buffer.add(x=x)

    def fork(who):
        pid = os.fork()
        if not pid:
            explore(who)
        return pid

    inside = killed = 0
    random.seed(0)
    while killed < kills or inside < kills // 12:
        pids = [fork(random.randrange(2000)) for _ in range(2)]
        time.sleep(random.uniform(0.005, 0.03))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            killed += 1
        window = buffer._ring.window()
        inside += window.hi - window.lo < window.stored
    print("killed", killed, inside, flush=True)
"""


def learn(buffer, nursery) -> tuple[int, int]:
    """Samples until the nursery ended; batches drawn, and rows that were torn."""
    drawn = wrong = 0
    while nursery.running:
        if not buffer.get_stored_size():
            continue
        sample = buffer.sample(32)
        wrong += int(torn(sample["x"], 1).sum() + torn(buffer.get_all_transitions()["x"], 1).sum())
        if "weights" in sample:
            buffer.update_priorities(sample["indexes"], np.random.random_sample(32))
        drawn += 1
    return drawn, wrong


@pytest.mark.long
@pytest.mark.parametrize(("cls", "kills"), [(MPPrioritizedReplayBuffer, 36), (MPReplayBuffer, 120)])
def test_killed_explorers_block_nobody_and_tear_no_row(cls, kills: int, program: Callable) -> None:
    buffer = cls(200, {"x": {"shape": WIDTH, "dtype": "uint64"}})
    nursery = program(NURSERY, args=[pickle.dumps(buffer).hex(), WIDTH, kills])
    drawn, wrong = learn(buffer, nursery)
    killed, inside = map(int, nursery.finish().split()[1:])
    assert killed >= kills and inside >= kills // 12  # rounds that left an add half done
    assert drawn > 0 and wrong == 0
    buffer.add(x=np.arange(WIDTH))
    assert buffer.sample(4)["x"].shape == (4, WIDTH)


@pytest.mark.long
def test_without_validation_torn_rows_are_sampled(program: Callable) -> None:
    """The positive control of the test above."""
    buffer = MPReplayBuffer(200, {"x": {"shape": WIDTH, "dtype": "uint64"}})
    with trusting():
        assert learn(buffer, program(NURSERY, args=[pickle.dumps(buffer).hex(), WIDTH, 120]))[1] > 0
