"""The common parts of value-based algorithms: torso, head, epsilon-greedy actions, and a step with a target network."""

from __future__ import annotations

import copy
import math
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..checks import check_whole
from ..spec import Field
from .adam import ClippedAdam

__all__ = [
    "Head",
    "Hyperparameters",
    "QNetwork",
    "TargetTrainer",
    "Torso",
    "check_hyperparameters",
    "check_positive",
    "epsilon_greedy",
]

IMAGE_SIDE = 32  # least rows and columns of an image


class Hyperparameters(Protocol):
    """The hyperparameters that the common parts read; the algorithms' dataclasses document them."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def hidden(self) -> tuple[int, ...]: ...
    @property
    def tau(self) -> float: ...
    @property
    def target_update_freq(self) -> int: ...
    @property
    def max_grad_norm(self) -> float: ...
    @property
    def reward_scale(self) -> float: ...


def check_hyperparameters(given: Hyperparameters) -> None:
    """Raise ValueError, naming the field, unless every common hyperparameter is in its range."""
    owner = type(given).__name__
    check_positive(
        owner,
        learning_rate=given.learning_rate,
        tau=given.tau,
        max_grad_norm=given.max_grad_norm,
        reward_scale=given.reward_scale,
    )
    if given.tau > 1:
        raise ValueError(f"{owner} tau: expected a number in (0, 1], got {given.tau!r}")
    check_whole(f"{owner} target_update_freq", given.target_update_freq, 0)
    if not isinstance(given.hidden, tuple) or not given.hidden:
        raise ValueError(f"{owner} hidden: expected a tuple of at least one size, got {given.hidden!r}")
    for size in given.hidden:
        check_whole(f"{owner} hidden", size)


def check_positive(owner: str, **values: float) -> None:
    """Raise ValueError, naming the field, unless every value is a finite number above 0."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise ValueError(f"{owner} {name}: expected a finite number above 0, got {value!r}")


def _is_image(height: int, width: int) -> bool:
    return height >= IMAGE_SIDE and width >= IMAGE_SIDE


class Torso(nn.Module):
    """Observations [B, *shape], or [B, stack, *shape] when stack > 1, of a real dtype, to features [B, size].

    An image is (H, W), (C, H, W) or (H, W, C) with H and W of at least 32. For images, the frames of a stack become
    channels, uint8 is divided by 255, and the two convolutions of Mnih et al. 2013 (arXiv:1312.5602, section 4.1)
    come first. Other observations are flattened without scaling. Fully connected layers of the sizes `hidden` follow.
    """

    def __init__(self, observation: Field, stack: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        shape = observation.shape
        self.channels_last = len(shape) == 3 and not _is_image(*shape[1:]) and _is_image(*shape[:2])
        if self.channels_last:
            shape = (shape[2], *shape[:2])
        self.image = len(shape) in (2, 3) and _is_image(*shape[-2:])
        self.frame = shape[-2:]
        self.scale = 1 / 255 if self.image and observation.dtype == "uint8" else 1.0
        width = stack * math.prod(shape)
        layers: list[nn.Module] = []
        if self.image:
            side = [((extent - 8) // 4 + 1 - 4) // 2 + 1 for extent in self.frame]
            layers += [nn.Conv2d(width // math.prod(self.frame), 16, 8, stride=4), nn.ReLU()]
            layers += [nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.Flatten()]
            width = 32 * math.prod(side)
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU()]
            width = size
        self.layers = nn.Sequential(*layers)
        self.size = width

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        if self.channels_last:
            obs = obs.movedim(-1, -3)
        x = obs.float()
        if self.scale != 1.0:
            x = x * self.scale
        features: torch.Tensor = self.layers(x.reshape(len(x), -1, *(self.frame if self.image else ())))
        return features


class Head(nn.Module):
    """Features [..., inputs] to one value per action [..., actions], through a layer of `hidden` units.

    With `dueling`, that layer feeds the state's value and the actions' advantages, minus their mean (Wang et al. 2016,
    arXiv:1511.06581, equation 9). Both share the layer, so dueling costs little.
    """

    aggregate: torch.Tensor

    def __init__(self, inputs: int, hidden: int, actions: int, dueling: bool) -> None:
        super().__init__()
        self.dueling = dueling
        self.hidden = nn.Linear(inputs, hidden)
        self.output = nn.Linear(hidden, actions + dueling)
        # Rows: each advantage minus the mean, then the value for all; one product is faster than slices and means.
        centred = torch.eye(actions) - 1 / actions
        self.register_buffer("aggregate", torch.cat([centred, torch.ones(1, actions)]), persistent=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.output(torch.relu(self.hidden(features)))
        return values @ self.aggregate if self.dueling else values


class QNetwork(nn.Module):
    """Base of networks whose forward pass returns action values [B, actions]."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.actions = actions


def epsilon_greedy(network: QNetwork, obs: torch.Tensor, epsilon: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Actions [B]: each row's greedy action, or with probability `epsilon` a uniformly random one.

    The draws from `rng` do not depend on epsilon; the network runs only if some row is greedy.
    """
    explores = rng.random(len(obs)) < epsilon
    choice = rng.integers(network.actions, size=len(obs))
    if explores.all():
        return choice
    with torch.inference_mode():
        greedy: NDArray[np.int64] = network(obs).argmax(1).cpu().numpy()
    return np.where(explores, choice, greedy)


class TargetTrainer:
    """A network's optimizer and its target network."""

    def __init__(self, network: nn.Module, hyper: Hyperparameters) -> None:
        self.network = network
        self.hyper = hyper
        self.parameters: list[torch.Tensor] = list(network.parameters())
        self.device = self.parameters[0].device
        self.target = _independent_copy(network)
        self.followers: list[torch.Tensor] = list(self.target.parameters())
        self.optimizer = ClippedAdam(self.parameters, lr=hyper.learning_rate)
        self.updates = 0

    def step(self, loss: torch.Tensor) -> torch.Tensor:
        """One gradient step on `loss`, then the target's update; returns the gradient's norm before clipping."""
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        grad_norm = self.optimizer.clip_and_step(self.hyper.max_grad_norm)
        self.updates += 1
        self._update_target()
        return grad_norm

    def _update_target(self) -> None:
        every = self.hyper.target_update_freq
        if every and self.updates % every:
            return
        with torch.no_grad():  # one call for all tensors; a share of 1 copies exactly
            torch._foreach_lerp_(self.followers, self.parameters, 1.0 if every else self.hyper.tau)

    def state_dict(self) -> dict[str, Any]:
        """The state besides the network that resuming needs; live tensors, so save before the next update."""
        return {
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict`; the caller restores the network's weights."""
        self.target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]


def _independent_copy(network: nn.Module) -> nn.Module:
    twin = copy.deepcopy(network).requires_grad_(False)
    # A deep copy preserves shared storage, and a published network is views of one flat tensor.
    for tensor in chain(twin.parameters(), twin.buffers()):
        tensor.data = tensor.data.clone()
    return twin
