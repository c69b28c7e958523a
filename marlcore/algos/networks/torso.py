"""The built-in first layers of a network, for any observation: an encoder for each space, then common layers."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces as gym
from torch import nn
from torch.nn import functional

from ...compiled import one_hot_places
from ...spaces import Spaces

Activation = Literal["tanh", "relu", "elu", "gelu", "silu"]
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}


def encoder_of(hyper: Any, space: gymnasium.Space, stack: int) -> "Flat | Image | OneHot":
    """Returns a space's encoder; its input is [B, stack, *shape] or, if the stack is 1, [B, *shape]."""
    if isinstance(space, (gym.Discrete, gym.MultiDiscrete)):
        return OneHot(space, stack)
    side = hyper.image_side
    if isinstance(space, gym.Box) and (_is_image(space.shape, side) or _has_channels_last(space.shape, side)):
        return Image(hyper, space, stack)
    return Flat(space, stack)


class Flat(nn.Module):
    """Flattens values to float32, without scaling."""

    def __init__(self, space: gymnasium.Space, stack: int) -> None:
        super().__init__()
        self.size = stack * math.prod(space.shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        return x if x.ndim == 2 else x.reshape(-1, self.size)


class OneHot(nn.Module):
    """Encodes each component as a one-hot vector, whose first place stands for the space's start."""

    component: torch.Tensor
    value: torch.Tensor

    def __init__(self, space: gym.Discrete | gym.MultiDiscrete, stack: int) -> None:
        super().__init__()
        component, value = one_hot_places(space)
        self.stack = stack
        self.size = stack * len(value)
        self.register_buffer("component", torch.from_numpy(component), persistent=False)
        self.register_buffer("value", torch.from_numpy(value), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]  # where len(x) would be a constant of an exported program
        components = x.reshape(rows, self.stack, -1)[..., self.component]
        return (components == self.value).flatten(1).float()


class Image(nn.Module):
    """Computes features of an image (H, W), (C, H, W) or (H, W, C), whose H and W are at least `image_side`.

    If both forms with channels fit, the image is taken as (C, H, W). The frames of a stack become channels, uint8 is
    divided by 255, and convolutions follow, each with a ReLU: by default the two of Mnih et al. 2013 (arXiv:1312.5602,
    section 4.1).

    Raises: ValueError: a kernel is larger than its input.
    """

    def __init__(self, hyper: Any, space: gym.Box, stack: int) -> None:
        super().__init__()
        self.channels_last = _has_channels_last(space.shape, hyper.image_side)
        shape = (space.shape[2], *space.shape[:2]) if self.channels_last else space.shape
        self.frame = shape[-2:]
        self.scale = 1 / 255 if space.dtype == np.uint8 else 1.0
        self.layers = nn.Sequential()
        inputs, sides = stack * math.prod(shape[:-2]), self.frame
        for channels, kernel, stride in zip(hyper.channels, hyper.kernels, hyper.strides, strict=True):
            if kernel > min(sides):
                image = " x ".join(map(str, self.frame))
                got = f"{hyper.kernels} with strides {hyper.strides}"
                raise ValueError(f"{hyper.owner} kernels: expected sizes that fit an image of {image}, got {got}")
            self.layers.extend([nn.Conv2d(inputs, channels, kernel, stride=stride), nn.ReLU()])
            inputs, sides = channels, tuple((side - kernel) // stride + 1 for side in sides)
        self.layers.append(nn.Flatten())
        self.size = inputs * math.prod(sides)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.channels_last:
            x = x.movedim(-1, -3)
        x = x.float()
        if self.scale != 1.0:
            x = x * self.scale
        features: torch.Tensor = self.layers(x.reshape(x.shape[0], -1, *self.frame))
        return features


def _is_image(shape: tuple[int, ...], side: int) -> bool:
    return len(shape) in (2, 3) and min(shape[-2:]) >= side


def _has_channels_last(shape: tuple[int, ...], side: int) -> bool:
    return len(shape) == 3 and not _is_image(shape, side) and _is_image(shape[:2], side)


class Dense(nn.Module):
    """Fully connected layers, each followed by an activation, from [..., inputs] to [..., size]."""

    def __init__(self, hyper: Any, inputs: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(dense_layer(hyper, *pair) for pair in pairwise((inputs, *sizes)))
        self.activation = ACTIVATIONS[hyper.activation]()
        self.size = (inputs, *sizes)[-1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.activation(layer(x))
        return x


def dense_layer(hyper: Any, inputs: int, outputs: int) -> nn.Module:
    """Makes a fully connected layer, normalized if the hyperparameters say so (Ba et al. 2016, arXiv:1607.06450)."""
    layer = nn.Linear(inputs, outputs)
    return nn.Sequential(layer, nn.LayerNorm(outputs)) if hyper.layer_norm else layer


class StackedLinear(nn.Module):
    """Fully connected layers of the same sizes, one for each network, initialized like nn.Linear."""

    def __init__(self, inputs: int, outputs: int, networks: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(networks, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(networks, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [count, B, inputs] to [count, B, outputs], through the first `count` layers."""
        return torch.baddbmm(self.bias[: len(x)], x, self.weight[: len(x)])


class StackedNorm(nn.Module):
    """Layer normalizations of the same size, one for each network (Ba et al. 2016, arXiv:1607.06450)."""

    def __init__(self, size: int, networks: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(networks, 1, size))
        self.bias = nn.Parameter(torch.zeros(networks, 1, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [count, B, size] to the same shape, through the first `count` layers."""
        return functional.layer_norm(x, x.shape[-1:]) * self.weight[: len(x)] + self.bias[: len(x)]


class Torso(nn.Module):
    """Maps observations to features [B, size]: an encoder for each part, then fully connected layers of sizes `hidden`.

    The layers see neither a mask in the observation nor the parts that `without` names.
    """

    def __init__(self, hyper: Any, spaces: Spaces, hidden: tuple[int, ...], without: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.spaces, self.without = spaces, without
        parts = [part for part in spaces.parts if part.name not in without]
        self.names = [part.name for part in parts] if isinstance(spaces.obs, dict) else None
        encoders = [encoder_of(hyper, part.space, spaces.stack) for part in parts]
        self.encoders = nn.ModuleList(encoders)
        self.dense = Dense(hyper, sum(encoder.size for encoder in encoders), hidden)
        self.size = self.dense.size

    def forward(self, obs: Any) -> torch.Tensor:
        if self.names is None:
            encoded = self.encoders[0](obs)
        else:
            encoders = zip(self.encoders, self.names, strict=True)
            encoded = torch.cat([encoder(obs[name]) for encoder, name in encoders], 1)
        features: torch.Tensor = self.dense(encoded)
        return features


def rows_in(obs: Any) -> int:
    return len(obs if isinstance(obs, torch.Tensor) else next(iter(obs.values())))
