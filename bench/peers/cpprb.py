"""cpprb's replay buffer for several processes; needs `pip install cpprb`."""

from __future__ import annotations

from typing import Any

from cpprb import MPReplayBuffer

__all__ = ["fields", "make_buffer"]


def make_buffer(capacity: int, shape: tuple[int, ...], dtype: str) -> MPReplayBuffer:
    """The transitions of LockedRing, with next_obs stored beside obs."""
    obs = {"shape": shape, "dtype": dtype}
    scalars = {"action": {"dtype": "int64"}, "reward": {"dtype": "float32"}, "done": {"dtype": "bool"}}
    return MPReplayBuffer(capacity, {"obs": obs, "next_obs": obs, **scalars})


def fields(batch: dict[str, Any]) -> tuple[Any, ...]:
    """obs, action, reward, next_obs, done; scalars without the axis that cpprb gives them."""
    action, reward, done = (batch[name][:, 0] for name in ("action", "reward", "done"))
    return batch["obs"], action, reward, batch["next_obs"], done
