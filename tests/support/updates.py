"""What tests of learning algorithms share: spaces, random batches, trainers whose target differs, resumption."""

import copy
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces as gym

from marlcore.interfaces import Algorithm
from marlcore.observations import by_name, in_form
from marlcore.spaces import MASK, Spaces


def box_spaces(shape: tuple[int, ...] = (3,), actions: int = 2, dtype: Any = np.float32, **options: Any) -> Spaces:
    """An observation of one Box, with a Discrete of `actions`."""
    return Spaces(gym.Box(0, 100, shape, dtype), gym.Discrete(actions), **options)


def continuous_spaces(action: gym.Box | None = None, **options: Any) -> Spaces:
    """An observation of three numbers, with a Box of 2 x 3 components, no two of which have the same bounds."""
    low = np.array([[-1, 0, -5], [2, -0.5, -3]], np.float32)
    high = np.array([[1, 4, -1], [2.5, 0, 9]], np.float32)
    return Spaces(gym.Box(-10, 10, (3,), np.float32), action or gym.Box(low, high), **options)


def made_obs(spaces: Spaces, rows: int, rng: np.random.Generator) -> Any:
    """Random observations in the form of a network's input; masks allow each action with probability 0.6."""
    lead = (rows,) if spaces.stack == 1 else (rows, spaces.stack)
    obs = {}
    for name, field in by_name(spaces.obs).items():
        shape = (*lead, *field.shape)
        array = rng.random(shape) < 0.6 if name == MASK else rng.normal(size=shape)
        obs[name] = torch.from_numpy(np.asarray(array)).to(getattr(torch, field.dtype))
    return in_form(obs, spaces.obs)


def made_action(spaces: Spaces, rows: int, rng: np.random.Generator) -> torch.Tensor:
    """Random actions as rows hold them."""
    space = spaces.action
    if isinstance(space, gym.Box):
        return torch.from_numpy(rng.uniform(space.low, space.high, (rows, *space.shape)).astype(space.dtype))
    high = {gym.Discrete: "n", gym.MultiDiscrete: "nvec"}.get(type(space))
    limit = getattr(space, high) if high else 2
    return torch.from_numpy(rng.integers(limit, size=(rows, *space.shape)).astype(space.dtype))


def made_batch(spaces: Spaces | None = None, rows: int = 6, seed: int = 0, **replaced: Any) -> SimpleNamespace:
    """A batch of random transitions, as `Batch.torch` returns one."""
    spaces = spaces or box_spaces()
    rng = np.random.default_rng(seed)
    fields = {
        "obs": made_obs(spaces, rows, rng),
        "next_obs": made_obs(spaces, rows, rng),
        "action": made_action(spaces, rows, rng),
        "reward": torch.from_numpy(rng.normal(scale=10, size=rows).astype(np.float32)),
        "discount": torch.from_numpy(rng.choice([0.0, 0.9, 0.99], size=rows).astype(np.float32)),
        "weight": torch.from_numpy(rng.uniform(0.1, 1, size=rows).astype(np.float32)),
    }
    return SimpleNamespace(**{**fields, **replaced})


def made_trainer(hyper: Algorithm, spaces: Spaces | None = None) -> tuple[Any, Any]:
    """A model, and a trainer whose target differs from it."""
    model = hyper.make_model(spaces or box_spaces())
    trainer: Any = hyper.make_trainer(model)
    with torch.no_grad():
        for parameter in trainer.target.parameters():
            parameter.add_(torch.randn_like(parameter))
    return model, trainer


def flattened(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Makes the tensors views of one flat tensor, as those of a published model are, and returns it."""
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    offset = 0
    for tensor in tensors:
        tensor.data = flat[offset : offset + tensor.numel()].view_as(tensor)
        offset += tensor.numel()
    return flat


def check_resumption(
    hyper: Algorithm, spaces: Spaces, model: Any, trainer: Any, before: Iterable[Any], after: Iterable[Any]
) -> None:
    """Asserts that a trainer resumed between these batches makes the updates of this one, which learns from all."""
    for batch in before:
        trainer.update(copy.copy(batch))
    saved = copy.deepcopy((model.state_dict(), trainer.state_dict()))
    other = hyper.make_model(spaces)
    resumed: Any = hyper.make_trainer(other)
    other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    for batch in after:
        first, second = (one.update(copy.copy(batch)) for one in (trainer, resumed))
        assert first.metrics == second.metrics
        assert first.priority is second.priority is None or torch.equal(first.priority, second.priority)
    pairs = [(model, other)]
    if hasattr(trainer, "target"):
        pairs.append((trainer.target, resumed.target))
    for one, twin in pairs:
        assert all(map(torch.equal, one.state_dict().values(), twin.state_dict().values()))
