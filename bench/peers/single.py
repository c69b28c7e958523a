"""Buffers of one process. Each library gives functions that make an adding call, draw, and get a batch's fields."""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

Library = Callable[[NDArray[Any], int, int], tuple[Callable[..., Callable[[], Any]], Callable[[int], Any], Any]]


def rlox(obs: NDArray[Any], capacity: int, rows: int) -> Any:
    """Draws `rows` rows at once, like the others."""
    from rlox import ReplayBuffer

    buffer, seeds = ReplayBuffer(capacity, obs.size, 1), count()

    def adding(obs: Any, action: Any, reward: Any, done: Any, next_obs: Any) -> Callable[[], Any]:
        if rows == 1:
            return partial(buffer.push, obs, np.float32([action]), reward, done, False, next_obs)
        flat = obs.ravel(), next_obs.ravel(), action.astype("float32"), reward, done.astype("uint8")
        return partial(buffer.push_batch, *flat, np.zeros(rows, "uint8"))

    def fields(batch: Any) -> Any:
        return tuple(batch[name] for name in ("obs", "actions", "rewards", "next_obs", "terminated"))

    return adding, lambda batch: buffer.sample(batch, next(seeds)), fields


def stable_baselines3(obs: NDArray[Any], capacity: int, rows: int) -> Any:
    from stable_baselines3.common.buffers import ReplayBuffer

    spaces = gymnasium.spaces.Box(-np.inf, np.inf, obs.shape), gymnasium.spaces.Discrete(10**9)
    buffer = ReplayBuffer(capacity, *spaces, "cpu", n_envs=rows, handle_timeout_termination=False)

    def adding(obs: Any, action: Any, reward: Any, done: Any, next_obs: Any) -> Callable[[], Any]:
        one = (np.atleast_1d(action), np.atleast_1d(reward), np.atleast_1d(done))
        return partial(buffer.add, obs, next_obs, *one, [{}] * rows)

    def fields(batch: Any) -> Any:
        scalars = (tensor[:, 0].numpy() for tensor in (batch.actions, batch.rewards, batch.dones))
        action, reward, done = scalars
        return batch.observations.numpy(), action, reward, batch.next_observations.numpy(), done

    return adding, buffer.sample, fields


LIBRARIES: dict[str, Library] = {"rlox": rlox, "stable_baselines3": stable_baselines3}
