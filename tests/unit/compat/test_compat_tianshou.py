"""Tianshou's buffers over lanes: the same indices, rows, draws and returns as its own, also under its collector."""

from __future__ import annotations

import pickle
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
from model import chi_square_limit
from refused import Refused, check_refused, refusals

from marlcore import ClosedError
from marlcore import ReplayBuffer as Replay

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what other packages say of one another while they are imported
    host = pytest.importorskip("tianshou.data", reason="needs tianshou 2.0.1: `python -m bench install tianshou`")
    from gymnasium import Env, spaces
    from tianshou.algorithm.algorithm_base import Algorithm, RandomActionPolicy
    from tianshou.data import Batch
    from tianshou.env import DummyVectorEnv

from marlcore.compat import replays
from marlcore.compat import tianshou as ours

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")

PRIORITIES = {"alpha": 0.6, "beta": 0.4}
SINGLE = [("ReplayBuffer", (9,), {}), ("PrioritizedReplayBuffer", (9,), PRIORITIES)]
VECTOR = [("VectorReplayBuffer", (25, 3), {}), ("PrioritizedVectorReplayBuffer", (25, 3), PRIORITIES)]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stacked": {"stack_num": 3, "ignore_obs_next": True},
    "available": {"stack_num": 2, "sample_avail": True},
    "last": {"save_only_last_obs": True},
}
Pair = tuple[Any, Any]


def pair(name: str, sizes: tuple[int, ...], options: dict[str, Any]) -> Pair:
    """A buffer of Tianshou, and one of the same name here."""
    return getattr(host, name)(*sizes, **options), getattr(ours, name)(*sizes, **options)


def rows(rng: np.random.Generator, count: int) -> Any:
    """Rows as a collector has them: nested, of several dtypes, with the last two of a stack of observations."""
    frames = rng.integers(0, 255, (count, 2, 4, 5), np.uint8)
    obs = {"image": frames, "depth": {"near": rng.random((count, 2)).astype(np.float32)}}
    return Batch(
        obs=obs, act=rng.integers(0, 9, (count, 2)), rew=rng.random(count), terminated=rng.random(count) < 0.1,
        truncated=rng.random(count) < 0.1, obs_next={"image": frames + 1, "depth": {"near": obs["depth"]["near"]}},
        info={"env_id": np.arange(count), "word": np.array(["a"] * count, object)}, policy=Batch(),
    )  # fmt: skip


def filled(buffers: Pair, seed: int = 0, adds: int = 40) -> Pair:
    """Adds the same rows to both, and compares what `add` returns."""
    rng, lanes = np.random.default_rng(seed), getattr(buffers[0], "buffer_num", 1)
    for _ in range(adds):
        which = [0] if lanes == 1 else np.sort(rng.permutation(lanes)[: rng.integers(1, lanes + 1)])
        batch = rows(rng, len(which))
        results = [buffer.add(batch, which) for buffer in buffers]
        for theirs, mine in zip(*results, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    return buffers


def check_equal(buffers: Pair, seed: int = 0) -> None:
    """Both have the same rows, links and draws; words of `info` are not stored here."""
    theirs, mine = buffers
    parts = zip(theirs._offset, theirs.buffers, strict=True) if hasattr(theirs, "buffers") else [(0, theirs)]
    index = np.concatenate([start + np.arange(len(part)) for start, part in parts])
    for method in ("prev", "next"):
        np.testing.assert_array_equal(getattr(mine, method)(index), getattr(theirs, method)(index))
    np.testing.assert_array_equal(mine.unfinished_index(), theirs.unfinished_index())
    for at in (slice(None), index[len(index) // 3 :], int(index[-1]), *[slice(1, 4)] * int(len(mine) == mine.maxsize)):
        check_batch(mine[at], theirs[at])
    for size in (0, 7, None):
        drawn = []
        for buffer in buffers:
            np.random.seed(seed)  # of prioritized draws
            drawn.append(buffer.sample(size))
        if size != 7 or not isinstance(theirs, host.VectorReplayBuffer):  # otherwise drawn independently
            np.testing.assert_array_equal(drawn[1][1], drawn[0][1])
        check_batch(drawn[1][0], theirs[drawn[1][1]])


def check_batch(mine: Any, theirs: Any) -> None:
    expected = Batch({key: part for key, part in theirs.items() if key != "info"})
    assert Batch({key: part for key, part in mine.items() if key != "info"}) == expected
    np.testing.assert_array_equal(mine.info.env_id, theirs.info.env_id)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    "name, sizes, given", [*SINGLE, *VECTOR], ids=lambda value: value if isinstance(value, str) else ""
)
def test_everything_is_what_tianshou_has(
    name: str, sizes: tuple[int, ...], given: dict[str, Any], options: str
) -> None:
    """Also after both were cleared, and filled anew, in part or for more than a lap."""
    both = pair(name, sizes, {**given, **OPTIONS[options]})
    for seed, adds in enumerate((40, 3, 40)):
        check_equal(filled(both, seed, adds), seed)
        if given:
            index = both[0].sample_indices(0)
            for buffer in both:
                buffer.update_weight(index, np.random.default_rng(seed).standard_normal(len(index)))
            check_equal(both, seed)
            both[0].weight[np.arange(both[0].maxsize)] = 0.0  # which Tianshou keeps of deleted rows
        for buffer in both:
            buffer.reset()
            assert len(buffer) == 0
    both[1].close()


def test_rows_of_all_lanes_are_drawn_independently_and_alike() -> None:
    """In Tianshou 2.0.1, lanes draw the same positions too often, since each has a generator with the same seed."""
    theirs, mine = pair("VectorReplayBuffer", (300, 3), {})
    for row in (rows(np.random.default_rng(t), 3) for t in range(90)):
        for buffer in (theirs, mine):
            buffer.add(row)
    held = mine.sample_indices(0)
    draws = np.bincount(np.concatenate([mine.sample_indices(500) for _ in range(60)]), minlength=300)
    assert draws.sum() == draws[held].sum() == 30_000
    expected = 30_000 / len(held)
    assert (((draws[held] - expected) ** 2) / expected).sum() < chi_square_limit(len(held) - 1)

    def same(buffer: Any) -> float:
        """The share of positions in the first lane that the second lane drew too."""
        shares = []
        for _ in range(50):
            index = buffer.sample_indices(40)
            first, second = (set(index[index // 100 == lane] % 100) for lane in (0, 1))
            shares.append(len(first & second) / len(first))
        return float(np.mean(shares))

    assert same(mine) < 0.16 and same(theirs) > 0.23


@pytest.mark.parametrize("name, sizes, given", [SINGLE[1], VECTOR[1]], ids=["single", "vector"])
def test_files_pickles_and_conversions_keep_everything(name: str, sizes: Any, given: Any, tmp_path: Any) -> None:
    """Files are Tianshou's own, in both directions; after each, both go on as one."""
    theirs, mine = filled(pair(name, sizes, given))
    kind, path = type(mine), str(tmp_path / "rows.hdf5")
    mine.save_hdf5(path)
    copies = [kind.load_hdf5(path), pickle.loads(pickle.dumps(mine)), kind.from_tianshou(theirs)]
    for copy in copies:
        again = type(theirs).load_hdf5(path)
        if again.__dict__.get("buffers") is not None:
            again._set_batch_for_children()  # which Tianshou leaves to its user
        check_equal(filled((again, copy), seed=3, adds=5))
    theirs.save_hdf5(path)
    check_equal((mine.to_tianshou(), kind.load_hdf5(path)))


def test_an_old_pickle_without_a_generator_draws(monkeypatch: Any) -> None:
    """Which Tianshou seeds by 42; and batches of more bytes than a dtype may have are copied field by field."""
    _, mine = filled(pair(*SINGLE[0]))
    state = mine.__getstate__()
    del state["_random_state"]
    old = type(mine).__new__(type(mine))
    old.__setstate__(state)
    expected = old[np.arange(5)]
    monkeypatch.setattr(replays, "MOST_BYTES", 8)
    old.__setstate__(state)
    np.testing.assert_equal(dict(old[np.arange(5)]), dict(expected))
    assert len(old.sample_indices(7)) == 7


def test_n_step_returns_are_those_of_tianshou() -> None:
    buffers = filled(pair(*VECTOR[0]), adds=60)

    def target(buffer: Any, indices: np.ndarray) -> Any:
        import torch

        return torch.from_numpy(buffer[indices].obs_next.depth.near)

    index = np.arange(0, 25, 2)
    returns = [
        Algorithm.compute_nstep_return(buffer[index], buffer, index, target, gamma=0.9, n_step=3).returns
        for buffer in buffers
    ]
    np.testing.assert_array_equal(returns[1], returns[0])


@pytest.mark.parametrize("name, sizes, given", [SINGLE[1], VECTOR[1]], ids=["single", "vector"])
def test_set_beta_changes_the_weights(name: str, sizes: Any, given: Any) -> None:
    """In Tianshou 2.0.1 it does so in the single buffer alone."""
    theirs, mine = filled(pair(name, sizes, given))
    index = np.arange(8)
    for buffer in (theirs, mine):
        buffer.update_weight(index, np.arange(1.0, 9.0))
    before = mine[index].weight
    np.testing.assert_array_equal(theirs[index].weight, before)
    for buffer in (theirs, mine):
        buffer.set_beta(0.9)
    assert (mine[index].weight != before).any()
    assert (theirs[index].weight != before).any() == (len(sizes) == 1)


class Count(Env):  # type: ignore[misc]
    """Observations and rewards count the steps; episodes end after 3 to 6 of them."""

    observation_space, action_space = spaces.Box(0, 100, (2,)), spaces.Discrete(2)

    def __init__(self, number: int) -> None:
        self.number, self.t = number, 0

    def reset(self, **_: Any) -> Any:
        self.t = 0
        return self._obs(), {}

    def step(self, action: int) -> Any:
        self.t += 1
        ended = {"late": self.t} if self.t == 3 + self.number else {}
        return (
            self._obs(),
            float(self.t),
            self.number % 2 == 0 and bool(ended),
            self.number % 2 == 1 and bool(ended),
            ended,
        )

    def _obs(self) -> Any:
        return np.array([self.number, self.t], np.float32)


def test_a_collector_fills_it_as_tianshous_own(caplog: Any) -> None:
    """Episodes, statistics and rows; numbers that only later infos have are left out, which is said once."""
    collected = []
    for kind in (host.VectorReplayBuffer, ours.VectorReplayBuffer):
        policy = RandomActionPolicy(Count.action_space)
        collector = host.Collector(policy, DummyVectorEnv([partial(Count, i) for i in range(4)]), kind(48, 4))
        collector.reset()
        np.random.seed(0)
        stats = collector.collect(n_step=60)
        collected.append((collector.buffer, stats))
    (theirs, their_stats), (mine, stats) = collected
    assert (stats.n_collected_steps, [*stats.lens]) == (60, [*their_stats.lens])
    for name in ("obs", "act", "rew", "terminated", "truncated", "obs_next"):
        np.testing.assert_array_equal(mine[:][name], theirs[:][name])
    assert "late" not in mine[:].info and mine.names.keys() > {"obs", "info.env_id"}


def test_arrays_that_a_host_puts_in_for_a_while_are_read() -> None:
    """As Tianshou's MultiAgentOffPolicyAlgorithm does with each agent's rewards."""
    buffer, index = filled(pair(*VECTOR[0]))[1], np.arange(5)
    kept = buffer.rew
    buffer._meta.rew = np.arange(float(buffer.maxsize))
    assert buffer[index].rew.tolist() == index.tolist()
    buffer._meta.rew = kept
    np.testing.assert_array_equal(buffer[index].rew, kept[index])


def test_another_process_may_sample_the_rows() -> None:
    buffer = filled(pair(*VECTOR[0]))[1]
    with Replay.attach(buffer.replay.handle) as replay:
        batch = replay.sampler(64, seed=0, min_size=1).sample()
        acts = {tuple(act) for act in batch.extras[buffer.names["act"]].tolist()}
    assert acts <= {tuple(act) for act in buffer[:].act.tolist()}


def added(**changed: Any) -> Any:
    buffer, batch = ours.VectorReplayBuffer(6, 2), rows(np.random.default_rng(0), 2)
    buffer.add(batch)
    before = len(buffer)
    try:
        buffer.add(Batch({**{key: part for key, part in batch.items() if key not in changed},
                          **{key: part for key, part in changed.items() if part is not None}}))  # fmt: skip
    finally:
        assert len(buffer) == before


REFUSED: dict[str, Refused] = {
    "no reward": (lambda: added(rew=None), ValueError, "batch: expected act, obs, rew, terminated, truncated, got obs"),
    "no next": (lambda: added(obs_next=None), ValueError, "batch: expected the fields ['act', 'done', 'info.env_id',"),
    "shape": (lambda: added(act=np.zeros((2, 3), int)), ValueError, "act: expected int64 (2, 2), got shape (2, 3)"),
    "kind": (lambda: added(act=np.zeros((2, 2))), TypeError, "act: expected int64 (2, 2), got dtype float64"),
    "objects": (lambda: added(act=np.array(["a", "b"], object)), ValueError, "act: expected int64"),
    "new": (
        lambda: added(obs={"image": np.zeros((2, 2, 4, 5), np.uint8), "new": np.zeros(2)}),
        TypeError,
        "obs.new: expected the first row's arrays of numbers, got",
    ),
    "rows": (lambda: ours.ReplayBuffer(3).add(rows(np.random.default_rng(0), 2), [0]), ValueError, "buffer_ids: exp"),
    "replay": (lambda: ours.ReplayBuffer(3).replay, ClosedError, "replay: expected a buffer with rows, got an empty"),
    "set_batch": (lambda: ours.ReplayBuffer(3).set_batch(Batch()), TypeError, "set_batch, set_array_at_key, dropnull:"),
    "class": (lambda: ours.ReplayBuffer.from_tianshou(host.VectorReplayBuffer(4, 2)), TypeError, "plain: expected a"),
}
test_refuses = refusals(REFUSED)


def test_a_closed_buffer_begins_anew() -> None:
    buffer = filled(pair(*SINGLE[0]))[1]
    handle = buffer.replay.handle
    buffer.close()
    check_refused(lambda: buffer.replay, ClosedError, "replay: expected a buffer with rows")
    with pytest.raises(Exception, match=r"."):
        Replay.attach(handle)
