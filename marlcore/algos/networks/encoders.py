"""Encoders: the values of one space to a row of numbers, for the layers that follow."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import torch
from gymnasium import spaces as gym
from torch import nn

IMAGE_SIDE = 32  # least rows and columns of an image


def encoder_of(space: gymnasium.Space, stack: int) -> Flat | Image | OneHot:
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
