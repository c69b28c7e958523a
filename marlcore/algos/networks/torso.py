"""The first layers of a network, for any observation: an encoder for each space; and pairs of critics on them."""

import math
from itertools import pairwise
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces as gym
from torch import nn

from ...spaces import Spaces

Activation = Literal["tanh", "relu"]
IMAGE_SIDE = 32  # least rows and columns of an image


def encoder_of(space: gymnasium.Space, stack: int) -> "Flat | Image | OneHot":
    """The encoder of a Box, Discrete, MultiDiscrete or MultiBinary, inputs [B, stack, *shape]; [B, *shape] for 1."""
    if isinstance(space, (gym.Discrete, gym.MultiDiscrete)):
        return OneHot(space, stack)
    if isinstance(space, gym.Box) and (_is_image(space.shape) or _has_channels_last(space.shape)):
        return Image(space, stack)
    return Flat(space, stack)


class Flat(nn.Module):
    """The values one after another as float32, without scaling."""

    def __init__(self, space: gymnasium.Space, stack: int) -> None:
        super().__init__()
        self.size = stack * math.prod(space.shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        return x if x.ndim == 2 else x.reshape(-1, self.size)


class OneHot(nn.Module):
    """For each component a 1 in the place of its value, counted from the space's start, and 0 elsewhere."""

    component: torch.Tensor
    value: torch.Tensor

    def __init__(self, space: gym.Discrete | gym.MultiDiscrete, stack: int) -> None:
        super().__init__()
        sizes = np.atleast_1d(space.nvec if isinstance(space, gym.MultiDiscrete) else space.n)
        starts = np.broadcast_to(space.start, sizes.shape)
        component = np.repeat(np.arange(len(sizes)), sizes)
        value = np.concatenate([start + np.arange(size) for start, size in zip(starts, sizes, strict=True)])
        self.stack = stack
        self.size = stack * len(value)
        self.register_buffer("component", torch.from_numpy(component), persistent=False)
        self.register_buffer("value", torch.from_numpy(value), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        components = x.reshape(len(x), self.stack, -1)[..., self.component]
        return (components == self.value).flatten(1).float()


class Image(nn.Module):
    """The features of an image (H, W), (C, H, W) or (H, W, C) with H and W of at least 32; (C, H, W) if C is so too.

    The frames of a stack become channels, uint8 is divided by 255, and the two convolutions of Mnih et al. 2013
    (arXiv:1312.5602, section 4.1) follow.
    """

    def __init__(self, space: gym.Box, stack: int) -> None:
        super().__init__()
        self.channels_last = _has_channels_last(space.shape)
        shape = (space.shape[2], *space.shape[:2]) if self.channels_last else space.shape
        self.frame = shape[-2:]
        self.scale = 1 / 255 if space.dtype == np.uint8 else 1.0
        side = [((extent - 8) // 4 + 1 - 4) // 2 + 1 for extent in self.frame]
        self.size = 32 * math.prod(side)
        self.layers = nn.Sequential(
            nn.Conv2d(stack * math.prod(shape[:-2]), 16, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, stride=2),
            nn.ReLU(),
            nn.Flatten(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.channels_last:
            x = x.movedim(-1, -3)
        x = x.float()
        if self.scale != 1.0:
            x = x * self.scale
        features: torch.Tensor = self.layers(x.reshape(len(x), -1, *self.frame))
        return features


def _is_image(shape: tuple[int, ...]) -> bool:
    return len(shape) in (2, 3) and min(shape[-2:]) >= IMAGE_SIDE


def _has_channels_last(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and not _is_image(shape) and _is_image(shape[:2])


class Dense(nn.Module):
    """Fully connected layers, each followed by an activation: [..., inputs] to [..., size]."""

    def __init__(self, inputs: int, sizes: tuple[int, ...], activation: Activation = "relu") -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise((inputs, *sizes)))
        self.activation = nn.ReLU() if activation == "relu" else nn.Tanh()
        self.size = (inputs, *sizes)[-1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.activation(layer(x))
        return x


class Torso(nn.Module):
    """Observations to features [B, size]: an encoder for each part, then fully connected layers of the sizes `hidden`.

    A mask in the observation is no input, nor are the parts that `without` names.
    """

    def __init__(
        self, spaces: Spaces, hidden: tuple[int, ...], activation: Activation = "relu", without: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        parts = [part for part in spaces.parts if part.name not in without]
        self.names = [part.name for part in parts] if isinstance(spaces.obs, dict) else None
        encoders = [encoder_of(part.space, spaces.stack) for part in parts]
        self.encoders = nn.ModuleList(encoders)
        self.dense = Dense(sum(encoder.size for encoder in encoders), hidden, activation)
        self.size = self.dense.size

    def forward(self, obs: Any) -> torch.Tensor:
        if self.names is None:
            encoded = self.encoders[0](obs)
        else:
            encoders = zip(self.encoders, self.names, strict=True)
            encoded = torch.cat([encoder(obs[name]) for encoder, name in encoders], 1)
        features: torch.Tensor = self.dense(encoded)
        return features


class TwinCritics(nn.Module):
    """Two networks from an observation and an action to a value, which share no fully connected layer.

    Encoders of images are shared. Each layer of both networks is one batched product: for small networks, torch's
    overhead for each operation is most of their time.
    """

    def __init__(self, spaces: Spaces, actions: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.encoder = Torso(spaces, ())
        widths = (self.encoder.size + actions, *hidden, 1)
        self.layers = nn.ModuleList(PairedLinear(*pair) for pair in pairwise(widths))

    def forward(self, obs: Any, action: torch.Tensor, count: int = 2) -> torch.Tensor:
        """The values [count, B] of actions [B, size] in [-1, 1], of the first network or of both."""
        x = torch.cat([self.encoder(obs), action], 1).expand(count, -1, -1)
        *inner, last = self.layers
        for layer in inner:
            x = torch.relu(layer(x))
        values: torch.Tensor = last(x)
        return values.squeeze(2)


class PairedLinear(nn.Module):
    """Two fully connected layers of the same sizes, initialized as nn.Linear is."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(2, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(2, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[count, B, inputs] to [count, B, outputs], through the first layer or both."""
        return torch.baddbmm(self.bias[: len(x)], x, self.weight[: len(x)])


def rows_in(obs: Any) -> int:
    return len(obs if isinstance(obs, torch.Tensor) else next(iter(obs.values())))
