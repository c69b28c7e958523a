"""Buffers of other libraries. Each gives functions that make an adding call, draw, and get a batch's fields."""

import logging
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import count
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

Library = Callable[[NDArray[Any], int, int], tuple[Callable[..., Callable[[], Any]], Callable[[int], Any], Any]]


def make_cpprb(kind: Any, obs: NDArray[Any], capacity: int) -> tuple[Any, Callable[..., Callable[[], Any]]]:
    """A buffer of the class `kind`, or of cpprb's class of that name, with next_obs beside obs; and what adds to it."""
    kind = getattr(import_module("cpprb"), kind) if isinstance(kind, str) else kind
    field = {"shape": obs.shape, "dtype": obs.dtype.name}
    scalars = {"action": {"dtype": "int64"}, "reward": {"dtype": "float32"}, "done": {"dtype": "bool"}}
    buffer = kind(capacity, {"obs": field, "next_obs": field, **scalars})

    def adding(obs: Any, action: Any, reward: Any, done: Any, next_obs: Any) -> Callable[[], Any]:
        return partial(buffer.add, obs=obs, action=action, reward=reward, next_obs=next_obs, done=done)

    return buffer, adding


def fields_of_cpprb(batch: dict[str, Any]) -> tuple[Any, ...]:
    """obs, action, reward, next_obs, done; scalars without the axis that cpprb gives them."""
    action, reward, done = (batch[name][:, 0] for name in ("action", "reward", "done"))
    return batch["obs"], action, reward, batch["next_obs"], done


def cpprb(obs: NDArray[Any], capacity: int, rows: int, kind: str) -> Any:
    """The drawing call includes `fields_of_cpprb`."""
    buffer, adding = make_cpprb(kind, obs, capacity)
    return adding, lambda batch: fields_of_cpprb(buffer.sample(batch)), tuple


def import_torchrl() -> None:
    """Imports TorchRL without its log, and without warnings of an extension that does not load and of old names."""
    logging.getLogger("torchrl").setLevel("WARNING")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchrl.collectors  # noqa: F401


def torchrl(obs: NDArray[Any], capacity: int, rows: int) -> Any:
    """The buffer for several processes, of transitions in the form of TorchRL's collectors."""
    import_torchrl()
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), shared=True)

    def adding(obs: Any, action: Any, reward: Any, done: Any, next_obs: Any) -> Callable[[], Any]:
        after = {"observation": next_obs, "reward": reward, "done": done}
        return partial(buffer.extend, TensorDict({"observation": obs, "action": action, "next": after}, [len(obs)]))

    def fields(batch: Any) -> Any:
        keys = "observation", "action", ("next", "reward"), ("next", "observation"), ("next", "done")
        return tuple(batch[key].numpy() for key in keys)

    return adding, buffer.sample, fields


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
        action, reward, done = (tensor[:, 0].numpy() for tensor in (batch.actions, batch.rewards, batch.dones))
        return batch.observations.numpy(), action, reward, batch.next_observations.numpy(), done

    return adding, buffer.sample, fields


LIBRARIES: dict[str, Library] = {
    "cpprb": partial(cpprb, kind="MPReplayBuffer"),
    # Of one process
    "cpprb single": partial(cpprb, kind="ReplayBuffer"),
    "rlox": rlox,
    "stable_baselines3": stable_baselines3,
}
