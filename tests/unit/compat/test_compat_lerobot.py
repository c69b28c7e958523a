"""LeRobot's replay buffer as a ring: the same rows and draws as its own, images as uint8, the right next states."""

from __future__ import annotations

import multiprocessing as mp
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from refused import Refused, refusals

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what other packages say of one another while they are imported
    host = pytest.importorskip("lerobot.rl.buffer", reason="needs lerobot: `python -m bench install lerobot`")
    from lerobot.rl.data_sources import OnlineOfflineMixer
    from lerobot.utils.constants import ACTION

from marlcore.compat import lerobot as ours

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

IMAGE, STATE = "observation.images.front", "observation.state"
OPTIONS: dict[str, Any] = {"device": "cpu", "state_keys": [IMAGE, STATE], "use_drq": False}
BOTH = pytest.mark.parametrize("optimize_memory", [False, True])


def steps(count: int, seed: int = 0, last: int = 7) -> Any:
    """Rows of episodes of up to `last` steps, the odd ones truncated; images are what a camera's uint8 gives."""
    rng = torch.Generator().manual_seed(seed)

    def state() -> dict[str, torch.Tensor]:
        levels = torch.randint(0, 256, (1, 3, 8, 8), generator=rng, dtype=torch.uint8)
        return {IMAGE: levels.float() / 255, STATE: torch.randn(1, 4, generator=rng)}

    now, age, episode = state(), 0, 0
    for t in range(count):
        following, age = state(), age + 1
        ended = age == last - episode % 3
        yield {
            "state": now,
            "action": torch.randn(1, 2, generator=rng),
            "reward": float(t),
            "next_state": following,
            "done": ended and episode % 2 == 0,
            "truncated": ended and episode % 2 == 1,
            "complementary_info": {"is_intervention": torch.tensor([t % 2]), "step": t},
        }
        now, age, episode = (state(), 0, episode + 1) if ended else (following, age, episode)


def pair(capacity: int, count: int, kind: Any = None, **options: Any) -> tuple[Any, Any]:
    buffers = host.ReplayBuffer(capacity, **OPTIONS), (kind or ours.ReplayBuffer)(capacity, **{**OPTIONS, **options})
    for row in steps(count):
        for buffer in buffers:
            buffer.add(**row)
    return buffers


def check_equal(mine: Any, theirs: Any) -> None:
    assert mine.keys() == theirs.keys()
    for name, part in theirs.items():
        for key in part if isinstance(part, dict) else ():
            assert torch.equal(mine[name][key], part[key]), (name, key)
        if isinstance(part, torch.Tensor):
            assert mine[name].dtype == part.dtype and torch.equal(mine[name], part), name


def drawn(buffer: Any, size: int = 64) -> Any:
    torch.manual_seed(size)
    return buffer.sample(size)


@BOTH
@pytest.mark.parametrize("kind", ["ReplayBuffer", "Uint8ReplayBuffer"])
@pytest.mark.parametrize("count", [1, 20, 75])
def test_rows_and_draws_are_those_of_lerobot(kind: str, optimize_memory: bool, count: int) -> None:
    """With LeRobot's own buffer in its plain form, also beyond a lap and with images in a quarter of the memory."""
    theirs, mine = pair(30, count, getattr(ours, kind), optimize_memory=optimize_memory)
    assert (len(mine), mine.position) == (len(theirs), theirs.position)
    check_equal(drawn(mine), drawn(theirs))
    held, same = slice(0, len(theirs)), torch.equal
    for name in ("states", "next_states", "complementary_info"):
        for key, column in getattr(theirs, name).items():
            assert same(getattr(mine, name)[key][held], column[held]), (name, key)
    for name in ("actions", "rewards", "dones", "truncateds"):
        column = getattr(mine, name)
        assert same(column[held], getattr(theirs, name)[held]) and same(column[0], getattr(theirs, name)[0])
        assert column.shape == getattr(theirs, name).shape and len(column) == 30
    mine.close()


@BOTH
def test_entries_that_an_info_lacks_are_zero(optimize_memory: bool) -> None:
    """LeRobot takes such infos too, and leaves in its memory what was there."""
    buffer = ours.ReplayBuffer(4, **OPTIONS, optimize_memory=optimize_memory)
    infos = ({"pose": torch.ones(1, 3), "step": 2}, {"step": 3}, {}, None)
    for row, info in zip(steps(4), infos, strict=True):
        buffer.add(**{**row, "complementary_info": info})
    assert buffer.complementary_info["pose"][:].tolist() == [[1.0] * 3, *[[0.0] * 3] * 3]
    assert buffer.complementary_info["step"][:].tolist() == [2.0, 3.0, 0.0, 0.0]
    buffer.close()


def test_lerobots_optimize_memory_has_wrong_next_states_at_truncations() -> None:
    """The control of the test above: there they are the next episode's first states."""
    plain, _ = pair(40, 33)
    optimized = host.ReplayBuffer(40, **OPTIONS, optimize_memory=True)
    for row in steps(33):
        optimized.add(**row)
    ended = (plain.dones | plain.truncateds)[:32]
    wrong = (optimized.states[STATE][1:33] != plain.next_states[STATE][:32]).any(dim=1)
    assert ended.any() and torch.equal(wrong, ended)


@pytest.mark.parametrize("kind, share", [("ReplayBuffer", 1.0), ("Uint8ReplayBuffer", 0.25)])
def test_images_take_the_memory_that_they_must(kind: str, share: float) -> None:
    def nbytes(optimize_memory: bool) -> int:
        buffer = getattr(ours, kind)(100, **OPTIONS, optimize_memory=optimize_memory)
        image = torch.zeros(3, 64, 64)
        buffer.allocate({IMAGE: image}, torch.zeros(2))
        size: int = buffer._ring.lane.nbytes
        buffer.close()
        return size

    assert nbytes(False) == pytest.approx(2 * share * 100 * 3 * 64 * 64 * 4, rel=0.05)
    assert nbytes(True) == pytest.approx(nbytes(False) / 2, rel=0.05)


def test_a_column_is_indexed_like_an_array() -> None:
    theirs, mine = pair(40, 40)
    images, column = theirs.states[IMAGE].numpy(), mine.states[IMAGE]
    mask = np.arange(40) % 3 == 0
    for index in (
        3, -1, np.int64(2), slice(2, 30, 4), slice(9, 2, -3), [4, 1], mask, np.array([[1, 2], [3, 4]]), ..., (),
        (3, 0), (slice(1, 9), slice(None), 2), ([4, 1], 0), ([4, 1], [0, 2]), ([[4], [1]], [0, 2]), (mask, 1, 1, 1),
        (..., 0), (3, ..., 1), (None, 3), (slice(0, 0), 1), (3, slice(1, 3), [0, 1]),
    ):  # fmt: skip
        np.testing.assert_array_equal(column[index].numpy(), images[index], err_msg=repr(index))
    with pytest.raises(IndexError):
        column[3, 5]
    mine.close()


def test_images_are_rounded_to_the_nearest_level() -> None:
    buffer, row = ours.Uint8ReplayBuffer(5, **OPTIONS), next(steps(1))
    row["state"][IMAGE] = torch.rand(1, 3, 8, 8)
    buffer.add(**row)
    torch.testing.assert_close(buffer.states[IMAGE][0], row["state"][IMAGE][0], rtol=0, atol=0.501 / 255)
    buffer.close()


def add_all(buffer: Any, seed: int) -> None:
    for row in steps(20, seed):
        buffer.add(**row)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_add_to_one_buffer(method: str) -> None:
    buffer = ours.ReplayBuffer(100, **OPTIONS)
    first = next(steps(1))
    buffer.allocate(first["state"], first["action"], first["complementary_info"])
    processes = [mp.get_context(method).Process(target=add_all, args=(buffer, seed)) for seed in (1, 2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert len(buffer) == 40
    expected = {tuple(row["action"][0].tolist()) for seed in (1, 2) for row in steps(20, seed)}
    assert {tuple(action.tolist()) for action in buffer.actions[:40]} == expected
    buffer.close()


def test_images_are_augmented_in_one_call_as_in_lerobot() -> None:
    def noisy(images: torch.Tensor) -> torch.Tensor:
        return images + torch.arange(len(images)).reshape(-1, 1, 1, 1)

    options = {"use_drq": True, "image_augmentation_function": noisy}
    theirs, mine = host.ReplayBuffer(30, **{**OPTIONS, **options}), ours.ReplayBuffer(30, **{**OPTIONS, **options})
    for row in steps(30):
        for state in (row["state"], row["next_state"]):
            state["observation.images.wrist"] = state[IMAGE].flip(-1)
        for buffer in (theirs, mine):
            buffer.add(**row)
    check_equal(drawn(mine, 8), drawn(theirs, 8))
    mine.close()


def test_iterators_and_mixtures_are_lerobots_own() -> None:
    theirs, mine = pair(30, 30)
    mixed = []
    for buffer in (theirs, mine):
        torch.manual_seed(1)
        mixed.append(OnlineOfflineMixer(buffer, buffer, online_ratio=0.5).sample(10))
    check_equal(mixed[1], mixed[0])
    for asynchronous in (False, True):
        iterator = mine.get_iterator(batch_size=5, async_prefetch=asynchronous)
        assert next(iterator)["state"][STATE].shape == (5, 4)
        iterator.close()
    mine.close()


@pytest.mark.long
@BOTH
def test_datasets_go_and_come_as_in_lerobot(optimize_memory: bool, tmp_path: Any) -> None:
    buffers = pair(30, 20, optimize_memory=optimize_memory)
    returned = []
    for name, buffer in zip(("theirs", "mine"), buffers, strict=True):
        dataset = buffer.to_lerobot_dataset("user/rows", root=tmp_path / name)
        returned.append(type(buffer).from_lerobot_dataset(dataset, **OPTIONS, capacity=25))
        assert dataset.num_frames == 20
    check_equal(drawn(returned[1]), drawn(returned[0]))
    assert returned[1].next_states[STATE][0].shape == (4,) and ACTION == "action"
    for buffer in (buffers[1], returned[1]):
        buffer.close()


def added(kind: Any = ours.ReplayBuffer, **changed: Any) -> None:
    buffer = kind(5, **OPTIONS)
    buffer.add(**next(steps(1)))
    try:
        buffer.add(**{**next(steps(1, seed=1)), **changed})
    finally:
        assert len(buffer) == 1
        buffer.close()


def optimized(capacity: int, **options: Any) -> Any:
    return ours.ReplayBuffer(capacity, **options, optimize_memory=True)


BRIGHT = {IMAGE: torch.full((3, 8, 8), 1.5), STATE: torch.zeros(4)}
REFUSED: dict[str, Refused] = {
    "device": (lambda: ours.ReplayBuffer(5, storage_device="cuda:0"), ValueError, "storage_device: expected 'cpu'"),
    "key": (lambda: added(state={STATE: torch.zeros(4)}), ValueError, "state: expected the fields ['observation.imag"),
    "next": (lambda: added(next_state=None), ValueError, "next_state: expected the fields ['observation.images.front"),
    "shape": (lambda: added(action=torch.zeros(3)), ValueError, "action: expected float32 (2,), got shape (3,)"),
    "order": (lambda: added(state={IMAGE: torch.zeros(8, 8, 3), STATE: torch.zeros(4)}), ValueError,
        "state.observation.images.front: expected float32 (3, 8, 8), got shape (8, 8, 3)"),
    "not done": (lambda: added(optimized, next_state=None, truncated=True), ValueError, "next_state: expected the fi"),
    "levels": (lambda: added(ours.Uint8ReplayBuffer, state=BRIGHT), ValueError,
        "state.observation.images.front: expected values from 0 to 1, got 1.5 to 1.5"),
    "empty": (lambda: pickle.dumps(ours.ReplayBuffer(5, **OPTIONS)), TypeError, "a buffer without memory cannot be p"),
    "one process": (lambda: optimized_pickle(), TypeError, "expected no buffer of one process; use"),
}  # fmt: skip
test_refuses = refusals(REFUSED)


def optimized_pickle() -> None:
    buffer = optimized(5, **OPTIONS)
    buffer.add(**next(steps(1)))
    pickle.dumps(buffer)


def test_an_empty_buffer_is_lerobots_error() -> None:
    with pytest.raises(RuntimeError, match="Cannot sample from an empty buffer"):
        ours.ReplayBuffer(5, **OPTIONS).sample(1)
    assert np.isscalar(len(ours.ReplayBuffer(5, **OPTIONS)))
