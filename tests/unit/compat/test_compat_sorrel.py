"""marlcore.compat.sorrel against a plain NumPy ring with sorrel's rules, and in two processes."""

from __future__ import annotations

import multiprocessing as mp
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meanwhile import running

from marlcore import ClosedError, Field, LaneBusy, NotEnoughData
from marlcore.compat.sorrel import Buffer

OBS = (2, 3)


class Oracle:
    """sorrel's rules in arrays of one process: what is drawn, what a window holds, what counts."""

    def __init__(self, capacity: int, n_frames: int) -> None:
        self.capacity, self.n = capacity, n_frames
        self.clear()

    def clear(self) -> None:
        self.obs = np.zeros((self.capacity, *OBS), np.float32)
        self.action = np.zeros(self.capacity, np.int64)
        self.reward = np.zeros(self.capacity, np.float32)
        self.done = np.zeros(self.capacity, np.float32)
        self.idx = self.size = 0

    def put(self, obs, action, reward, done) -> None:
        self.obs[self.idx], self.action[self.idx], self.reward[self.idx] = obs, action, reward
        self.done[self.idx], self.idx = done, (self.idx + 1) % self.capacity

    def add(self, *row) -> None:
        self.put(*row)
        self.size = min(self.size + 1, self.capacity)

    def add_empty(self) -> None:
        for _ in range(self.n - 1):
            self.put(0, 0, 0, 0)
        self.size = min(self.size + (self.n > 1), self.capacity)

    def starts(self, batch: int):
        return np.random.choice(max(1, self.size - self.n - 1), batch, replace=False)

    def crosses(self, starts):
        """Whether the newest row and the oldest one both lie in a window."""
        return (starts < self.idx) & (self.idx <= starts + self.n)

    def batch(self, starts):
        at = starts[:, None] + np.arange(self.n)
        count = len(starts)
        return (
            self.obs[at].reshape(count, -1), self.action[at[:, -1:]], self.reward[at[:, -1:]],
            self.obs[at + 1].reshape(count, -1), self.done[at[:, -1:]],
            1.0 - self.done[at[:, :-1]].any(axis=1, keepdims=True),
        )  # fmt: skip

    def current_state(self):
        return np.roll(self.obs, -self.idx, axis=0)[self.capacity - self.n + 1 :]


def row(t: int):
    return np.full(OBS, t + 1, np.float32), t % 5, t / 2, t % 11 == 10


@pytest.mark.parametrize("n_frames", [1, 2, 4])
@pytest.mark.parametrize("steps", [30, 50, 51, 120, 333])
def test_one_seed_draws_what_sorrel_draws(n_frames: int, steps: int) -> None:
    """One seed draws what sorrel draws away from the write head."""
    buffer, oracle = Buffer(50, OBS, n_frames), Oracle(50, n_frames)
    for t in range(steps):
        for one in (buffer, oracle):
            if t % 11 == 0:
                one.add_empty()
            one.add(*row(t))
    assert (len(buffer), buffer.idx) == (oracle.size, oracle.idx)
    np.testing.assert_array_equal(buffer.current_state(), oracle.current_state())
    compared = 0
    for seed in range(40):
        np.random.seed(seed)
        starts = oracle.starts(8)
        np.random.seed(seed)
        got = buffer.sample(8)
        same = ~oracle.crosses(starts)
        if oracle.size < 50:
            same[:] = True
        compared += int(same.sum())
        for mine, theirs in zip(got, oracle.batch(starts), strict=True):
            assert mine.shape == theirs.shape
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine[same], theirs[same])
    assert compared > 200


def crossings(states: np.ndarray, next_states: np.ndarray, n_frames: int) -> int:
    """Windows whose observations, which count up, do not follow one another."""
    frames = np.concatenate([states.reshape(len(states), n_frames, -1)[..., 0],
                             next_states.reshape(len(states), n_frames, -1)[:, -1:, 0]], axis=1)  # fmt: skip
    return int((np.diff(frames, axis=1) != 1).any(axis=1).sum())


def test_all_windows_but_those_across_the_head_are_drawn() -> None:
    buffer, oracle = Buffer(30, OBS, 3), Oracle(30, 3)
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
        theirs = oracle.batch(oracle.starts(10))
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
    with pytest.raises(ValueError, match="batch_size: expected at most 9"):
        buffer.sample(10)


def test_a_tuple_that_does_not_fit_its_field_is_refused() -> None:
    """Also where its first items fit, and were staged."""
    buffer = Buffer(4, OBS, positions=Field((2,), "int8"))
    for bad, error in (((7,), ValueError), ((7, 8, 9), ValueError), ((7, 300), ValueError), ((7, 8.5), TypeError)):
        with pytest.raises(error, match="positions: expected"):
            buffer.add(np.zeros(OBS), 1, 0.0, False, positions=bad)
    assert len(buffer) == 0
    buffer.add(np.zeros(OBS), 1, 0.0, False, positions=(np.int64(5), -6))
    buffer.add(np.zeros(OBS), 1, 0.0, False)
    np.testing.assert_array_equal(buffer.extra_data["positions"], [[5, -6], [0, 0], [0, 0], [0, 0]])


def test_a_tuple_goes_to_a_field_of_any_dtype_as_an_array_does() -> None:
    """Also of dtypes whose items no memoryview sets, or sets from anything."""
    buffer = Buffer(4, OBS, halves=Field((2,), "float16"), flags=Field((2,), "bool"))
    buffer.add(np.zeros(OBS), 1, 0.0, False, halves=(0.5, 2), flags=(True, False))
    assert buffer.extra_data["halves"][0].tolist() == [0.5, 2.0]
    assert buffer.extra_data["flags"][0].tolist() == [True, False]
    with pytest.raises((TypeError, ValueError), match="flags: expected"):
        buffer.add(np.zeros(OBS), 1, 0.0, False, flags=("yes", ""))


def test_attributes_are_copies_that_refuse_to_be_written() -> None:
    buffer = Buffer(4, OBS, positions=(2,), who=0)
    buffer.add(np.ones((1, *OBS)), 3, 0.5, True, positions=(7, 8))
    buffer.add(np.zeros(OBS), 1, 0, False, who=5)
    assert buffer.states.shape == (4, *OBS)
    assert buffer.states.dtype == np.float32
    np.testing.assert_array_equal(buffer.actions, [3, 1, 0, 0])
    np.testing.assert_array_equal(buffer.rewards, np.float32([0.5, 0, 0, 0]))
    np.testing.assert_array_equal(buffer.dones, np.float32([1, 0, 0, 0]))
    np.testing.assert_array_equal(buffer.extra_data["positions"], [[7, 8], [0, 0], [0, 0], [0, 0]])
    np.testing.assert_array_equal(buffer.extra_data["who"], [0, 5, 0, 0])
    with pytest.raises(ValueError, match="read-only"):
        buffer.rewards[0] = 1
    with pytest.raises(TypeError):
        buffer.extra_data["positions"] = np.zeros((4, 2))
    assert str(buffer) == repr(buffer) == "Buffer(capacity=4, obs_shape=(2, 3))"
    assert buffer[0][1] == 3
    assert buffer[0:2][2].shape == (2,)


def test_last_transition_counts_back_from_the_newest() -> None:
    buffer = Buffer(3, (1,))
    assert buffer.last_transition() is None
    for t in range(5):
        buffer.add([t], t, t / 2, t == 3)
    assert buffer.last_transition() == (4, 2.0, False)
    assert buffer.last_transition(1) == (3, 1.5, True)
    assert buffer.last_transition(3) is None


def test_a_cleared_buffer_begins_at_position_0() -> None:
    """A cleared buffer begins at position 0 and returns nothing old."""
    buffer, oracle = Buffer(10, OBS, 3), Oracle(10, 3)
    for t in range(14):
        buffer.add(*row(t))
    buffer.clear()
    assert (len(buffer), buffer.getidx()) == (0, 0)
    assert not buffer.states.any()
    assert not buffer.current_state().any()
    with pytest.raises(NotEnoughData):
        buffer.sample(1)
    for t in range(13):
        buffer.add(*row(t))
        oracle.add(*row(t))
        assert (len(buffer), buffer.idx) == (oracle.size, oracle.idx)
        np.testing.assert_array_equal(buffer.states, oracle.obs)
        np.testing.assert_array_equal(buffer.current_state(), oracle.current_state())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"obs": np.zeros(5)}, ValueError, r"obs: expected float32 \(2, 3\), got shape \(5,\)"),
        ({"action": 0.5}, TypeError, "action: expected int64"),
        ({"reward": "much"}, TypeError, "reward: expected float32"),
        ({"done": "no"}, TypeError, "done: expected float32"),
        ({"other": 1}, ValueError, r"extra fields: expected the fields \['who'\]"),
    ],
)
def test_a_bad_row_is_refused_and_nothing_is_added(change, error, message) -> None:
    buffer = Buffer(4, OBS, who=0)
    good = {"obs": np.zeros(OBS), "action": 1, "reward": 0.5, "done": False}
    with pytest.raises(error, match=message):
        buffer.add(**{**good, **change})
    assert len(buffer) == 0


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    for arguments, error, said in (
        ((5, 4), TypeError, "obs_shape: expected a sequence of integers, got 4"),
        ((0, OBS), ValueError, "capacity: expected an integer of at least 1, got 0"),
        ((5, OBS, 0), ValueError, "n_frames: expected an integer of at least 1, got 0"),
    ):
        with pytest.raises(error, match=said):
            Buffer(*arguments)
    buffer = Buffer(9, OBS)
    for t in range(6):
        buffer.add(*row(t))
    for count in (-1, 0, "a"):
        with pytest.raises(ValueError, match=f"batch_size: expected an integer of at least 1, got {count!r}"):
            buffer.sample(count)
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match=r"input_file: expected one with \['actions', .*\], got \['a'\]"):
        Buffer.load(tmp_path / "other.npz")


def damaged(tmp_path: Path) -> bytes:
    np.savez(tmp_path / "whole.npz", states=np.zeros(300))
    return (tmp_path / "whole.npz").read_bytes().replace(bytes(800), bytes(799) + b"\1")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: np.save(path / "file", np.zeros((3, 2))), "it holds one array of shape"),
        (lambda path: (path / "file.npy").write_bytes(b""), "No data left in file"),
        (lambda path: (path / "file.npy").write_text("states"), "pickled"),
        (lambda path: (path / "file.npy").write_bytes(damaged(path)), "Bad CRC-32"),
        (lambda path: (path / "file.npy").write_bytes(damaged(path)[:500]), "File is not a zip file"),
    ],
)
def test_a_file_that_is_no_npz_is_refused_in_one_line(tmp_path: Path, make: Any, words: str) -> None:
    make(tmp_path)
    with pytest.raises(ValueError, match=r"input_file: expected an \.npz file, got '.*/file\.npy' \(") as caught:
        Buffer.load(tmp_path / "file.npy")
    assert words in str(caught.value) and "\n" not in str(caught.value)


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


def test_rows_of_another_buffer_are_added_in_its_order() -> None:
    games, buffer = Buffer(20, OBS, who=0), Buffer(5, OBS, who=0)
    for t in range(3):
        buffer.add(*row(t), who=t)
    games.add(*row(9))
    games.add_from_buffer(buffer)
    assert len(games) == 4
    np.testing.assert_array_equal(games.states[1:4], buffer.states[:3])
    np.testing.assert_array_equal(games.extra_data["who"][:4], [0, 0, 1, 2])
    with pytest.raises(ValueError, match="obs: expected observations"):
        games.add_from_buffer(Buffer(5, (1,)))


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
    with pytest.raises(LaneBusy, match="add: expected no other process to add until it released or closed the buffer"):
        other.add([2], 2, 2.0, False)
    buffer.release()
    other.add([3], 3, 3.0, False)
    assert buffer.last_transition() == (3, 3.0, False)
    with pytest.raises(LaneBusy):
        buffer.add([4], 4, 4.0, False)
    other.close()
    buffer.add([5], 5, 5.0, False)
    assert len(buffer) == 3


def test_a_filled_buffer_is_free_for_the_next_process(tmp_path: Path) -> None:
    buffer, games = Buffer(4, (1,)), Buffer(9, (1,))
    buffer.add([1], 1, 1.0, False)
    buffer.save(tmp_path / "games.npz")
    games.add_from_buffer(buffer)
    for one in (games, Buffer.load(tmp_path / "games.npz")):
        pickle.loads(pickle.dumps(one)).add([2], 2, 2.0, False)
        assert one.last_transition() == (2, 2.0, False)


def test_a_closed_buffer_takes_and_gives_nothing() -> None:
    buffer = Buffer(4, (1,), 2)
    buffer.add([1], 1, 1.0, False)
    buffer.close()
    for call in (buffer.current_state, buffer.last_transition, lambda: buffer.add([1], 1, 1.0, False)):
        with pytest.raises(ClosedError):
            call()
