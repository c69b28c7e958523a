"""cpprb's buffers, or any with their interface; they hold LockedRing's transitions, with next_obs beside obs."""

from typing import Any

from numpy.typing import NDArray


def make_buffer(kind: Any, obs: NDArray[Any], capacity: int) -> Any:
    """A buffer of the class `kind`, or of cpprb's class of that name, for observations like `obs`."""
    kind = getattr(__import__("cpprb"), kind) if isinstance(kind, str) else kind
    field = {"shape": obs.shape, "dtype": obs.dtype.name}
    scalars = {"action": {"dtype": "int64"}, "reward": {"dtype": "float32"}, "done": {"dtype": "bool"}}
    return kind(capacity, {"obs": field, "next_obs": field, **scalars})


def add_batch(buffer: Any, obs: Any, action: Any, reward: Any, done: Any) -> None:
    buffer.add(obs=obs, action=action, reward=reward, next_obs=obs + 1, done=done)


def fields(batch: dict[str, Any]) -> tuple[Any, ...]:
    """obs, action, reward, next_obs, done; scalars without the axis that cpprb gives them."""
    action, reward, done = (batch[name][:, 0] for name in ("action", "reward", "done"))
    return batch["obs"], action, reward, batch["next_obs"], done
