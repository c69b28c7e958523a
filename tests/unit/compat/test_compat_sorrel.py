"""marlcore.compat.sorrel against a plain NumPy ring with sorrel's rules, and in two processes."""

import gc
import multiprocessing as mp
import pickle
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sorrel_double as double
from meanwhile import running
from refused import Refused, check_refused, each_bad, refusals
from tiers import long_but
from victims import at_instruction

from marlcore import ClosedError, Field, LaneBusy, NotEnoughData
from marlcore.compat.sorrel import Buffer
from marlcore.kernels import columns

OBS = (2, 3)


class Oracle(double.TransformerBuffer):
    """sorrel's buffer with rows of zeros from `add_empty`, where sorrel's own keeps what the ring held before."""

    def add_empty(self) -> None:
        size = self.size
        for _ in range(self.n_frames - 1):
            self.add(0, 0, 0, 0, **dict.fromkeys(self.extra_data, 0))
        self.size = min(size + (self.n_frames > 1), self.capacity)

    def starts(self, batch: int) -> np.ndarray:
        """The windows that the same generator's next sample draws."""
        state = np.random.get_state()
        starts = np.random.choice(max(1, self.size - self.n_frames - 1), batch, replace=False)
        np.random.set_state(state)
        return starts


def row(t: int):
    return np.full(OBS, t + 1, np.float32), t % 5, t / 2, t % 11 == 10


@pytest.mark.parametrize("n_frames", [1, 2, 4])
@pytest.mark.parametrize("steps", long_but([51, 333], [30, 50, 51, 120, 333]))
@pytest.mark.parametrize("sample", ["sample", "sample_transformer"])
@pytest.mark.parametrize("of_agents", [{}, {"agent_ids": ()}], ids=["", "agents"])
def test_one_seed_draws_what_sorrel_draws(n_frames: int, steps: int, sample: str, of_agents: dict[str, Any]) -> None:
    """Away from the write head."""
    buffer, oracle = Buffer(50, OBS, n_frames, **of_agents), Oracle(50, OBS, n_frames)
    oracle.extra_data = {name: np.zeros(50, np.int64) for name in of_agents}
    for t in range(steps):
        for one in (buffer, oracle):
            if t % 11 == 0:
                one.add_empty()
            one.add(*row(t), **dict.fromkeys(of_agents, t % 3))
    assert (len(buffer), buffer.idx) == (oracle.size, oracle.idx)
    np.testing.assert_array_equal(buffer.current_state(), oracle.current_state())
    compared = 0
    for seed in range(40):
        np.random.seed(seed)
        got = getattr(buffer, sample)(8)
        np.random.seed(seed)
        starts = oracle.starts(8)
        crosses = (starts < oracle.idx) & (oracle.idx <= starts + n_frames) & (oracle.size == 50)
        same = ~crosses
        compared += int(same.sum())
        for mine, theirs in zip(got, getattr(oracle, sample)(8), strict=True):
            if theirs is None:
                assert mine is None
                continue
            assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
            np.testing.assert_array_equal(mine[same], theirs[same])
    assert compared > 200


def crossings(states: np.ndarray, next_states: np.ndarray, n_frames: int) -> int:
    """Windows whose observations, which count up, do not follow one another."""
    frames = np.concatenate([states.reshape(len(states), n_frames, -1)[..., 0],
                             next_states.reshape(len(states), n_frames, -1)[:, -1:, 0]], axis=1)  # fmt: skip
    return int((np.diff(frames, axis=1) != 1).any(axis=1).sum())


def test_all_windows_but_those_across_the_head_are_drawn() -> None:
    buffer, oracle = Buffer(30, OBS, 3), Oracle(30, OBS, 3)
    for t in range(47):
        buffer.add(np.full(OBS, t), 0, 0.0, False)
        oracle.add(np.full(OBS, t), 0, 0.0, False)
    np.random.seed(0)
    drawn, crossed, control = set(), 0, 0
    for _ in range(300):
        states, _, _, next_states, _, valid = buffer.sample(10)
        assert valid.all()
        crossed += crossings(states, next_states, 3)
        drawn |= set(states[:, 0].astype(int))
        theirs = oracle.sample(10)
        control += crossings(theirs[0], theirs[3], 3)
    assert crossed == 0
    assert control > 0  # sorrel's own draws do cross it
    # Positions 0 to 25 can begin a window, those of 14 to 16 cross the head at 17.
    assert drawn == set(range(30, 44)) | set(range(17, 26))


def test_a_batch_repeats_windows_only_where_few_are_there() -> None:
    buffer = Buffer(12, (1,), 2)
    for t in range(18):
        buffer.add([t], 0, 0.0, False)
    states = buffer.sample(9)[0]  # all 9 that sorrel draws from, of which 2 cross the head
    assert len(np.unique(states[:, 0])) == 7
    check_refused(lambda: buffer.sample(10), ValueError, "batch_size: expected at most 9")


def test_no_kernel_of_numba_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """To load the first one takes as long as the start of a whole experiment."""
    monkeypatch.setattr(columns, "gather", None)
    buffer = Buffer(50, OBS, 2)
    for t in range(70):
        buffer.add(*row(t))
    assert buffer.sample(4)[0].shape == (4, 12) and buffer.states.any()
    buffer.release()
    assert buffer.last_transition() == (4, 34.5, False) and buffer.current_state().shape == (1, *OBS)


def test_a_tuple_goes_to_a_field_of_any_dtype_as_an_array_does() -> None:
    """Also of dtypes whose items no memoryview sets, or sets from anything."""
    kinds = {"bytes": "int8", "halves": "float16", "flags": "bool", "floats": "float32"}
    buffer = Buffer(4, OBS, **{name: Field((2,), dtype) for name, dtype in kinds.items()})
    values = {"bytes": (np.int64(5), -6), "halves": (0.5, 2), "flags": (True, False), "floats": (-0.5, 1)}
    buffer.add(np.zeros(OBS), 1, 0.0, False, **values)
    buffer.add(np.zeros(OBS), 1, 0.0, False)
    for name, value in values.items():
        np.testing.assert_array_equal(buffer.extra_data[name], [value, (0, 0), (0, 0), (0, 0)])
    assert dict(buffer.extra_data).keys() == kinds.keys() and len(buffer.extra_data) == 4
    with pytest.raises(KeyError):
        buffer.extra_data["other"]


def test_attributes_are_copies_that_refuse_to_be_written() -> None:
    buffer = Buffer(4, OBS, positions=(2,), who=0)
    buffer.add(np.ones((1, *OBS)), 3, 0.5, True, positions=(7, 8))
    buffer.add(np.zeros(OBS), 1, 0, False, who=5)
    assert (buffer.states.shape, buffer.states.dtype) == ((4, *OBS), np.float32)
    assert buffer.actions.tolist() == [3, 1, 0, 0] and buffer.rewards.tolist() == [0.5, 0, 0, 0]
    assert (buffer.dones.tolist(), buffer.dones.dtype) == ([1, 0, 0, 0], np.float32)
    assert buffer.extra_data["positions"].tolist() == [[7, 8], [0, 0], [0, 0], [0, 0]]
    assert buffer.extra_data["who"].tolist() == [0, 5, 0, 0]
    with pytest.raises(ValueError, match="read-only"):
        buffer.rewards[0] = 1
    with pytest.raises(TypeError):
        buffer.extra_data["positions"] = np.zeros((4, 2))
    assert str(buffer) == repr(buffer) == "Buffer(capacity=4, obs_shape=(2, 3))"
    assert buffer[0][1] == 3
    assert buffer[0:2][2].shape == (2,)


def test_a_cleared_buffer_begins_at_position_0() -> None:
    buffer, oracle = Buffer(10, OBS, 3), Oracle(10, OBS, 3)
    for t in range(14):
        buffer.add(*row(t))
    buffer.clear()
    assert (len(buffer), buffer.getidx(), buffer.last_transition()) == (0, 0, None)
    assert not buffer.states.any() and not buffer.current_state().any()
    check_refused(lambda: buffer.sample(1), NotEnoughData, "expected")
    for t in range(13):
        for one in (buffer, oracle):
            if t % 3 == 0:
                one.add_empty()
            one.add(*row(t))
        assert (len(buffer), buffer.idx) == (oracle.size, oracle.idx)
        for back in (0, 1, 7, 10):
            assert buffer.last_transition(back) == oracle.last_transition(back)
        np.testing.assert_array_equal(buffer.states, oracle.states)
        np.testing.assert_array_equal(buffer.current_state(), oracle.current_state())


ROW = {"obs": np.zeros(OBS), "action": 1, "reward": 0.5, "done": False}
POSITIONS = {"positions": Field((2,), "int8")}
FLAGS = {"flags": Field((2,), "bool")}
FLOATS = {"floats": Field((2,), "float32")}
HUGE = np.full(OBS, 1e300)
RANGE = "expected values in float32's range, got 1e+300"
BAD_ROWS: list[tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = [
    ({}, {"obs": np.zeros(5)}, ValueError, "obs: expected float32 (2, 3), got shape (5,)"),
    ({}, {"action": 0.5}, TypeError, "action: expected int64"),
    ({}, {"reward": "much"}, TypeError, "reward: expected float32"),
    ({}, {"done": "no"}, TypeError, "done: expected float32"),
    ({"who": 0}, {"other": 1}, ValueError, "extra fields: expected the fields ['who']"),
    *((POSITIONS, {"positions": bad}, ValueError, "positions: expected") for bad in ((7,), (7, 8, 9), (7, 300))),
    (POSITIONS, {"positions": (7, 8.5)}, TypeError, "positions: expected"),
    (FLAGS, {"flags": ("yes", "")}, TypeError, "flags: expected"),
    *(({}, {"obs": bad}, ValueError, f"obs: {RANGE}") for bad in (HUGE, HUGE[np.newaxis], HUGE.tolist())),
    *(({}, {"reward": bad}, ValueError, f"reward: {RANGE}") for bad in (1e300, np.float64(1e300))),
    (FLOATS, {"floats": (1e300, 0.0)}, ValueError, f"floats: {RANGE}"),
]


def test_refuses_a_bad_row_and_adds_nothing() -> None:
    for extras, change, error, says in BAD_ROWS:
        buffer = Buffer(4, OBS, **extras)
        check_refused(partial(buffer.add, **{**ROW, **change}), error, says)
        assert len(buffer) == 0


def filled(rows: int, **extras: Any) -> Buffer:
    buffer = Buffer(9, OBS, **extras)
    for t in range(rows):
        buffer.add(*row(t))
    return buffer


REFUSED: list[Refused] = [
    (lambda: Buffer(5, 4), TypeError, "obs_shape: expected a sequence of integers, got 4"),
    *each_bad(partial(Buffer, 5, OBS), "an integer of at least 1", n_frames=[0]),
    *each_bad(partial(Buffer, obs_shape=OBS), "an integer of at least 1", capacity=[0]),
    (lambda: Buffer(3, OBS, 5), ValueError, "capacity: expected an integer of at least 5, got 3"),
    *each_bad(lambda batch_size: filled(6).sample(batch_size), "an integer of at least 1", batch_size=[-1, 0, "a"]),
    (lambda: Buffer(5, OBS, done=0), ValueError, "extra_fields: 'done' is the name of a field"),
    (lambda: filled(6).sample(5), ValueError, "batch_size: expected at most 4 while 6 rows are held"),
    (lambda: Buffer(9, (1,)).add_from_buffer(filled(1)), ValueError, "obs: expected observations (1,)"),
    (lambda: Buffer(9, OBS).add_from_buffer(filled(1, who=0)), ValueError, "extra fields: expected"),
]
test_refuses = refusals(REFUSED)


def test_refuses_a_file_of_other_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "file.npz", a=np.zeros(3))
    says = "input_file: expected arrays ['actions', 'dones', 'idx', 'n_frames', 'rewards', 'states'], got ['a']"
    check_refused(lambda: Buffer.load(tmp_path / "file.npz"), ValueError, says)


def check_free(buffer: Buffer) -> None:
    """Another process may add."""
    pickle.loads(pickle.dumps(buffer)).add(*row(2))
    assert buffer.last_transition() == (2, 1.0, False)


def test_a_saved_buffer_is_loaded_with_each_row_at_its_position(tmp_path: Path) -> None:
    buffer = Buffer(6, OBS, 2, who=0)
    for t in range(9):
        buffer.add(*row(t), who=t)
    buffer.save(tmp_path / "games.npz")
    again = Buffer.load(tmp_path / "games.npz")
    assert (again.capacity, again.n_frames, again.idx, len(again)) == (6, 2, 3, 6)
    for mine, saved in zip(again[:], buffer[:], strict=True):
        np.testing.assert_array_equal(mine, saved)
    np.testing.assert_array_equal(again.extra_data["who"], buffer.extra_data["who"])
    check_free(again)


def test_rows_of_another_buffer_are_added_in_its_order() -> None:
    games, buffer = Buffer(20, OBS, who=0), Buffer(5, OBS, who=0)
    for t in range(3):
        buffer.add(*row(t), who=t)
    games.add(*row(9))
    games.add_from_buffer(buffer)
    assert len(games) == 4
    np.testing.assert_array_equal(games.states[1:4], buffer.states[:3])
    np.testing.assert_array_equal(games.extra_data["who"][:4], [0, 0, 1, 2])
    check_free(games)


def act(buffer: Buffer, steps: int) -> None:
    for t in range(steps):
        buffer.add(np.full(OBS, t), t, t, False)


@pytest.mark.long
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_actor_process_fills_what_a_learner_samples(method: str) -> None:
    buffer = Buffer(64, OBS, 3)
    actor = mp.get_context(method).Process(target=act, args=(buffer, 2000))
    sampled = 0
    with running(actor):
        while actor.is_alive():
            if len(buffer) == 64:
                states, actions, rewards, next_states, _, _ = buffer.sample(16)
                assert crossings(states, next_states, 3) == 0
                np.testing.assert_array_equal(actions[:, 0], states.reshape(16, 3, -1)[:, 2, 0])
                np.testing.assert_array_equal(actions, rewards)
                sampled += 1
    assert buffer.last_transition() == (1999, 1999.0, False)
    assert sampled or method == "spawn"
    act(buffer, 1)  # the actor's end freed the ring for the next writer
    assert buffer.idx == 2001 % 64


def look(buffer: Buffer) -> list[Any]:
    """What a process can see of a buffer."""
    found: list[Any] = [len(buffer), buffer.idx, buffer.current_state()]
    found += [buffer.last_transition(back) for back in (0, 1, 7)]
    if len(buffer) > 6:
        np.random.seed(len(buffer) + buffer.idx)
        found += buffer.sample(3)
    return found


@pytest.mark.parametrize("n_frames", [1, 3])
@pytest.mark.parametrize("shape", [(2,), (150,)], ids=["in the record", "in a column"])
def test_the_process_that_adds_sees_what_every_other_one_sees(n_frames: int, shape: tuple[int]) -> None:
    """It reads its rows where they lie, the others copy and validate them."""
    buffer = Buffer(11, shape, n_frames, who=0)
    other = pickle.loads(pickle.dumps(buffer))
    for t in range(120):
        if t in (30, 77):
            (buffer if t == 30 else other).clear()
        if t in (12, 50):
            buffer.add_empty()
        if t == 60:
            buffer.release()
        for mine, theirs in zip(look(buffer), look(other), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        buffer.add(np.full((1, *shape), t, np.float64), t % 5, t / 2, t % 11 == 10, who=t)


def test_one_process_adds_until_it_releases_the_buffer() -> None:
    buffer = Buffer(8, (1,))
    other = pickle.loads(pickle.dumps(buffer))
    buffer.add([1], 1, 1.0, False)
    says = "add: another process adds to this buffer; it must first release or close it"
    check_refused(lambda: other.add([2], 2, 2.0, False), LaneBusy, says)
    buffer.release()
    other.add([3], 3, 3.0, False)
    assert buffer.last_transition() == (3, 3.0, False)
    check_refused(lambda: buffer.add([4], 4, 4.0, False), LaneBusy, says)
    other.close()
    buffer.add([5], 5, 5.0, False)
    assert len(buffer) == 3


def test_an_interrupted_add_counts_its_row() -> None:
    buffer, came, number = Buffer(1000, (1,)), True, 0
    buffer.add([1], 1, 1.0, False)
    while came:
        number += 1
        came, _ = at_instruction(lambda: buffer.add([1], 1, 1.0, False), number, lambda file: "sorrel" in file)
        assert len(buffer) == buffer.window().stored
    assert number > 20


def test_the_last_reference_gives_the_memory_back() -> None:
    """At once: nothing that the buffer holds refers to it."""
    buffer = Buffer(4, OBS, 2, who=0)
    buffer.add(*row(0), who=1)
    assert buffer.extra_data["who"][0] == 1 and len(buffer.current_state()) == 1
    gone = weakref.ref(buffer)
    gc.disable()
    del buffer
    gc.enable()
    assert gone() is None


def test_a_closed_buffer_takes_and_gives_nothing() -> None:
    buffer = Buffer(4, (1,), 2)
    buffer.add([1], 1, 1.0, False)
    buffer.close()
    for call in (buffer.current_state, buffer.last_transition, lambda: buffer.add([1], 1, 1.0, False)):
        check_refused(call, ClosedError, "closed")
