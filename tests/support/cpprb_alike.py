"""Buffers of cpprb and of marlcore.compat.cpprb side by side: the same calls have the same results."""

from collections.abc import Iterator
from copy import deepcopy
from itertools import product
from typing import Any

import numpy as np
import pytest

from marlcore.compat import cpprb as compat

ENV = {
    "obs": {"shape": (2, 3)}, "act": {"dtype": np.int32}, "rew": {}, "done": {"dtype": bool},
    "next obs": {"shape": 4, "dtype": "float64"},
}  # fmt: skip
FRAMES = {"obs": {"shape": (2, 3)}, "act": {"dtype": "int32"}, "rew": {}, "done": {}}
NEXT = {**FRAMES, "next_obs": {"shape": (2, 3)}}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {}, "next_of": {"next_of": "obs"}, "stack": {"stack_compress": ["obs"]},
    "both": {"next_of": ["obs"], "stack_compress": "obs"},
}  # fmt: skip
ALIKE = ["plain", "next_of", "stack"]  # with both, cpprb reads next stacks from rows that were overwritten


def summed(n: int) -> dict[str, Any]:
    return {"Nstep": {"size": n, "rew": "rew", "gamma": 0.9, "next": "next_obs"}}


def fields_of(way: str) -> dict[str, Any]:
    return FRAMES if "next_of" in WAYS.get(way, {}) else NEXT


def steps(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    return {
        "obs": rng.random((count, 2, 3)), "act": rng.integers(0, 9, count), "rew": rng.random(count),
        "done": rng.random(count) < 0.5, "next obs": rng.random((count, 4)),
    }  # fmt: skip


def episode(rng: np.random.Generator, length: int) -> dict[str, np.ndarray]:
    """Steps whose observations are stacks of the last three frames."""
    frames = rng.random((length + 3, 2), np.float32)
    stacks = np.stack([frames[i : i + length + 1] for i in range(3)], axis=-1)
    done = np.zeros(length, np.float32)
    done[-1] = 1
    return {"obs": stacks[:-1], "next_obs": stacks[1:], "act": rng.integers(0, 9, length),
            "rew": rng.random(length, np.float32), "done": done}  # fmt: skip


def pieces(rng: np.random.Generator, steps: dict[str, np.ndarray], most: int) -> Iterator[dict[str, np.ndarray]]:
    end = 0
    while (start := end) < len(steps["done"]):
        end += int(rng.integers(1, most + 1))
        yield {name: values[start:end] for name, values in steps.items()}


def assert_equal(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert (array.shape, array.dtype) == (theirs[name].shape, theirs[name].dtype), name
        np.testing.assert_allclose(array, theirs[name], rtol=1e-5, err_msg=name)


def sizes(buffer: Any) -> tuple[int, int, int, bool]:
    return buffer.get_stored_size(), buffer.get_next_index(), buffer.get_buffer_size(), buffer.is_Nstep()


def compare_calls(theirs: type, mine: type) -> None:
    """Single rows and blocks, draws, everything that is held, and clears, in random order."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        size = int(rng.integers(5, 40))
        real, ours = theirs(size, ENV), mine(size, ENV)
        first = {name: array[0] for name, array in steps(rng, 1).items()}
        assert ours.add(**first) == real.add(**first) == 0
        for turn in range(400):
            choice = rng.integers(0, 12)
            if choice < 5:
                rows = steps(rng, int(rng.choice([1, 2, 3, size])))
                assert ours.add(**rows, unknown=1) == real.add(**rows, unknown=1)
            elif choice < 11:
                found = []
                for one in (ours, real):
                    np.random.seed(turn)
                    drawn = choice < 9 and real.get_stored_size()
                    found.append(one.sample(int(turn % 20)) if drawn else one.get_all_transitions(turn % 2 == 0))
                assert_equal(*found)
            elif turn % 3 == 0:
                ours.clear()
                real.clear()
            ours.on_episode_end()
            assert sizes(ours) == sizes(real)


def compare_ways(theirs: type, ours: type) -> None:
    """Episodes in pieces, compressed or as sums of several steps."""
    for seed, (way, n) in enumerate([*product(ALIKE, [None]), *product(["plain", "stack"], [2, 4])]):
        rng = np.random.default_rng(seed)
        size = int(rng.integers(8, 30))
        options, fields = {**WAYS[way], **(summed(n) if n else {})}, fields_of(way)
        real, mine = theirs(size, deepcopy(fields), **options), ours(size, fields, **options)
        for turn in range(40):
            for piece in pieces(rng, episode(rng, int(rng.integers(1, 12))), 3):
                assert mine.add(**piece) == real.add(**deepcopy(piece))  # cpprb may write to what it gets
                check_alike(mine, real, turn, n)
            assert mine.get_current_episode_len() == real.get_current_episode_len()
            mine.on_episode_end()
            real.on_episode_end()
            check_alike(mine, real, turn, n)
            if turn % 15 == 14:
                mine.clear()
                real.clear()


def check_alike(mine: Any, real: Any, seed: int, n: int | None) -> None:
    assert sizes(mine) == sizes(real)
    if real.get_stored_size():
        samples = []
        for buffer in (mine, real):
            np.random.seed(seed)
            samples.append({**buffer.get_all_transitions(), **{f"{k} drawn": v for k, v in buffer.sample(9).items()}})
        for sample in samples if n is not None else ():
            sample["done"] = np.minimum(sample["done"], 1)  # cpprb counts the ends within n steps
            for suffix in ("", " drawn"):  # the next values of steps that an episode's end cuts short are any
                sample[f"next_obs{suffix}"][sample[f"done{suffix}"].ravel() > 0] = 0
        assert_equal(*samples)


def compare_priorities(theirs: type, ours: type, **options: Any) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        size = int(rng.integers(5, 30))
        real, mine = (make(size, ENV, alpha=0.7, **options) for make in (theirs, ours))
        for turn in range(150):
            rows = steps(rng, int(rng.integers(1, 4)))
            count = len(rows["rew"])
            # Where an add wraps, cpprb gives the rows behind the wrap the priorities of the first ones again.
            given = rng.random(count) * 3 if turn % 2 and real.get_next_index() + count <= size else None
            assert mine.add(**rows, priorities=given) == real.add(**rows, priorities=given)
            beta = float(rng.random())
            weights = np.full((2, size), np.nan)
            for row, one in zip(weights, (mine, real), strict=True):
                sample = one.sample(60 * size, beta)
                assert (sample["weights"].dtype, sample["indexes"].dtype) == (np.float32, np.uint64)
                at = sample["indexes"].astype(int)
                row[at] = sample["weights"]
                held = one.get_all_transitions()
                assert_equal({name: sample[name] for name in ENV}, {name: held[name][at] for name in ENV})
            seen = ~np.isnan(weights).any(axis=0)  # the least likely rows may be missing from one of them
            assert seen.sum() > 0.6 * real.get_stored_size()
            np.testing.assert_allclose(weights[0, seen], weights[1, seen], rtol=3e-3)
            if turn % 3 == 0:  # rows that came since the sample keep their priorities, or with some options do not
                late = steps(rng, 2)
                assert mine.add(**late) == real.add(**late)
            indexes, new = rng.permutation(real.get_stored_size())[:4], rng.random(4) * 4
            for one in (mine, real):
                one.update_priorities(indexes, new[: len(indexes)])
            np.testing.assert_allclose(mine.get_max_priority(), real.get_max_priority(), rtol=1e-6)
            if turn % 40 == 39:
                mine.clear()
                real.clear()
                assert mine.get_max_priority() == real.get_max_priority() == 1.0
            assert sizes(mine) == sizes(real)


def compare_overwritten() -> None:
    """Any number of adds between two samples; weights are those of cpprb, and the greatest priority is."""
    import cpprb

    for seed in range(5):
        rng = np.random.default_rng(seed)
        size = int(rng.integers(3, 9))
        real, mine = (
            make(size, {"t": {}}, alpha=1.0, eps=0.0)
            for make in (cpprb.PrioritizedReplayBuffer, compat.PrioritizedReplayBuffer)
        )
        for turn in range(60):
            for _ in range(int(rng.integers(1, 30))):
                # Where an add wraps, cpprb gives the rows behind the wrap the priorities of the first ones again.
                count = int(rng.integers(1, size - real.get_next_index() + 1))
                given = 10 * rng.random(count) ** 8 + 0.5 if rng.random() < 0.5 else None
                for one in (real, mine):
                    one.add(t=np.zeros(count), priorities=given)
            np.testing.assert_allclose(mine.get_max_priority(), real.get_max_priority(), rtol=1e-6)
            samples = [one.sample(2000, 1.0) for one in (real, mine)]
            theirs, ours = (dict(zip(drawn["indexes"], drawn["weights"], strict=True)) for drawn in samples)
            assert ours == {at: pytest.approx(weight, rel=1e-4) for at, weight in theirs.items()}
            for one in (real, mine):
                one.clear() if turn % 20 == 19 else one.update_priorities([0, 1], [1.0 + turn % 20, 0.5])


def compare() -> None:
    import cpprb

    compare_overwritten()
    compare_calls(cpprb.MPReplayBuffer, compat.MPReplayBuffer)
    compare_ways(cpprb.ReplayBuffer, compat.ReplayBuffer)
    compare_priorities(cpprb.MPPrioritizedReplayBuffer, compat.MPPrioritizedReplayBuffer)
    for check in (False, True):
        options = {"check_for_update": check}
        compare_priorities(cpprb.PrioritizedReplayBuffer, compat.PrioritizedReplayBuffer, **options)
