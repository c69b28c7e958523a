"""The data of the table's rows on replays: transitions of a few floats, and of frames; and how a result is checked.

Row t of a ring to sample from holds t + VECTOR, or a frame of the shade t mod SHADES; its action is t.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marlcore import Field, ReplayBuffer, TransitionSpec

from ..peers.ring import LockedRing
from .work import Open, Scale

BATCH = 256
STACK = 4
CHUNK = 500
SHADES = 251
FRAME_SHAPE = (84, 84)

VECTOR = np.arange(4, dtype=np.float32)
FRAME = (np.arange(84 * 84) % SHADES).astype(np.uint8).reshape(FRAME_SHAPE)
SCALARS_NBYTES = 8 + 4 + 1  # action, reward, done

Fields = tuple[NDArray[Any], ...]


def installed(libraries: Mapping[str, Open]) -> dict[str, Open]:
    """Returns the libraries whose package is installed; the first word of "cpprb single" names one."""
    missing = {package for package in ("cpprb", "torchrl", "rlox", "stable_baselines3") if find_spec(package) is None}
    return {name: open_work for name, open_work in libraries.items() if name.split()[0] not in missing}


def spec_of(obs: NDArray[Any]) -> TransitionSpec:
    return TransitionSpec(Field(obs.shape, obs.dtype.name), Field((), "int64"))


def rows_of(obs: NDArray[Any], scale: Scale) -> int:
    return scale.frames if obs is FRAME else scale.vectors


def fields_of(batch: Any) -> Fields:
    """obs, action, reward, next_obs, done of a marlcore batch."""
    return batch.obs, batch.action, batch.reward, batch.next_obs, batch.terminated


def fill(obs: NDArray[Any], rows: int, add_batch: Callable[..., Any]) -> None:
    """Adds rows 0 to rows - 1, by add_batch(obs, action, reward, done)."""
    for first in range(0, rows, CHUNK):
        t = np.arange(first, min(first + CHUNK, rows))
        if obs is FRAME:
            filled = np.repeat((t % SHADES).astype(np.uint8), FRAME.size).reshape(-1, *FRAME_SHAPE)
        else:
            filled = (t[:, None] + VECTOR).astype(np.float32)
        add_batch(filled, t, (t % 7).astype(np.float32), np.zeros(len(t), np.bool_))


@contextmanager
def filled_replay(obs: NDArray[Any], rows: int, lanes: int = 1, path: Path | None = None) -> Iterator[ReplayBuffer]:
    with ReplayBuffer.create(spec_of(obs), rows, lanes, path=path) as replay:
        for lane in range(lanes):
            with replay.writer(lane) as writer:
                fill(obs, replay.capacity // lanes, writer.add_batch)
        yield replay


def filled_ring(obs: NDArray[Any], rows: int) -> LockedRing:
    ring = LockedRing(rows, obs.shape, obs.dtype.name)
    fill(obs, ring.capacity, ring.add_batch)
    return ring


def check_sample(obs: NDArray[Any]) -> Callable[[Fields], None]:
    """A function that asserts that sampled fields are those of rows that `fill` added."""

    def check(fields: Fields) -> None:
        observed, action, reward, next_observed, done = fields[:5]
        assert len(np.unique(action)) > BATCH // 2 and not done.any()
        assert (reward == action % 7).all()
        for rows, newest in ((observed, action), (next_observed, action + 1)):
            if obs is VECTOR:
                assert (rows == (newest[:, None] + VECTOR).astype(np.float32)).all()
            else:
                shades = np.maximum(newest[:, None] - np.arange(STACK)[::-1], 0) % SHADES
                assert rows.shape == (BATCH, STACK, *FRAME_SHAPE) and (rows == shades[:, :, None, None]).all()

    return check
