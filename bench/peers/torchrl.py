"""TorchRL's replay buffer for several processes; needs `pip install torchrl`.

Uniform only: its prioritized sampler is a C++ extension, which torchrl 0.14 does not load beside torch 2.13
("SumSegmentTreeFp32 is not available").
"""

import logging
import warnings
from typing import Any

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that the extension does not load, among others
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

logging.getLogger("torchrl").setLevel(logging.WARNING)


def make_buffer(capacity: int, batch_size: int) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=batch_size, shared=True)


def extend(buffer: TensorDictReplayBuffer, obs: Any, action: Any, reward: Any, done: Any) -> None:
    """Adds transitions in the form of TorchRL's collectors."""
    after = {"observation": obs + 1, "reward": reward, "done": done}
    columns = {"observation": obs, "action": action}
    rows = {name: torch.from_numpy(array) for name, array in columns.items()}
    rows["next"] = {name: torch.from_numpy(array) for name, array in after.items()}
    buffer.extend(TensorDict(rows, [len(obs)]))


def fields(batch: Any) -> tuple[Any, ...]:
    """obs, action, reward, next_obs, done as arrays."""
    keys = "observation", "action", ("next", "reward"), ("next", "observation"), ("next", "done")
    return tuple(batch[key].numpy() for key in keys)
