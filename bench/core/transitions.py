"""The data of the table's rows on replays: transitions of a few floats, and of frames; and how a result is checked.

Row t of a ring to sample from holds t + VECTOR, or a frame of the shade t mod SHADES; its action is t.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marlcore import Field, ReplayBuffer, TransitionSpec

BATCH = 256
STACK = 4
CHUNK = 500
SHADES = 251

VECTOR = np.arange(4, dtype=np.float32)
FRAME = (np.arange(84 * 84) % SHADES).astype(np.uint8).reshape(84, 84)
SCALARS_NBYTES = 8 + 4 + 1  # action, reward, done

Fields = tuple[NDArray[Any], ...]


def spec_of(obs: NDArray[Any]) -> TransitionSpec:
    return TransitionSpec(Field(obs.shape, obs.dtype.name), Field((), "int64"))


def fields_of(batch: Any) -> Fields:
    """obs, action, reward, next_obs, done of a marlcore batch."""
    return batch.obs, batch.action, batch.reward, batch.next_obs, batch.terminated


def fill(obs: NDArray[Any], rows: int, add_batch: Callable[..., Any]) -> None:
    """Adds rows 0 to rows - 1, by add_batch(obs, action, reward, done)."""
    for first in range(0, rows, CHUNK):
        t = np.arange(first, min(first + CHUNK, rows))
        if obs is FRAME:
            filled = np.repeat((t % SHADES).astype(np.uint8), FRAME.size).reshape(-1, *FRAME.shape)
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


def check_draw(obs: NDArray[Any], fields: Fields) -> None:
    """Asserts that sampled fields are those of rows that `fill` added."""
    observed, action, reward, next_observed, done = fields[:5]
    assert len(np.unique(action)) > BATCH // 2 and not done.any()
    assert (reward == action % 7).all()
    for rows, newest in ((observed, action), (next_observed, action + 1)):
        if obs is VECTOR:
            assert (rows == (newest[:, None] + VECTOR).astype(np.float32)).all()
        else:
            shades = np.maximum(newest[:, None] - np.arange(STACK)[::-1], 0) % SHADES
            assert rows.shape == (BATCH, STACK, *FRAME.shape) and (rows == shades[:, :, None, None]).all()
