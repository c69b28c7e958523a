"""The first layers of a recurrent network: what an agent observed, did and earned so far, as features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import gymnasium
import torch
from gymnasium import spaces as gym
from numpy.typing import NDArray
from torch import nn

from ..checks import check_whole
from ..interfaces import PREVIOUS_REWARD
from ..spaces import Spaces
from ..spec import Field
from .dense import Activation
from .encoders import Flat, OneHot
from .recurrent import KINDS, Recurrent, State, parts_of
from .rescaling import rescaled
from .torso import Torso

__all__ = ["RecurrentTorso", "check_memory", "flat", "state_fields"]

PREVIOUS_ACTION = "previous_action"  # the part of the state that holds the last action, encoded; zeros: none


def check_memory(owner: str, cell: str, units: int) -> None:
    """Raise ValueError, naming the hyperparameter, unless there is such a recurrent layer."""
    if cell not in KINDS:
        raise ValueError(f"{owner} cell: expected {' or '.join(KINDS)}, got {cell!r}")
    check_whole(f"{owner} units", units)


def state_fields(spaces: Spaces, cell: Literal["lstm", "gru"], units: int, every: int) -> dict[str, Field]:
    """The parts of a RecurrentTorso's state as extras of a row, stored at intervals of `every` rows."""
    layer = dict.fromkeys(parts_of(cell), (units,))
    parts = {**layer, PREVIOUS_ACTION: (_encoder(spaces.action).size,), PREVIOUS_REWARD: ()}
    return {name: Field(shape, "float32", every) for name, shape in parts.items()}


class RecurrentTorso(nn.Module):
    """Observations, each with the action and the reward before it, to features [..., size], through a recurrent layer.

    Both are inputs as in Kapturowski et al. 2019, section 2.3, the reward as `rescaled` makes it (see rescaling.py).

    Args:
        spaces: of the agent.
        hidden: sizes of the layers before the recurrent one.
        cell: "lstm" or "gru".
        units: of the recurrent layer.
        activation: after each of the layers before it.

    Attributes:
        size: the units.
    """

    def __init__(
        self,
        spaces: Spaces,
        hidden: tuple[int, ...],
        cell: Literal["lstm", "gru"],
        units: int,
        activation: Activation = torch.relu_,
    ) -> None:
        super().__init__()
        self.torso = Torso(spaces, hidden, activation)
        self.actions = _encoder(spaces.action)
        self.core = Recurrent(cell, self.torso.size + self.actions.size + 1, units)
        self.size = units

    def step(self, obs: Any, state: State | None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The features [k, size] of k observations, and the state after them; the actions are still to be put in it.

        Args:
            obs: [k, ...].
            state: the parts of `state_fields`, each [k, ...]; None: every row begins an episode.
        """
        if state is None:
            state = self._zeros(obs)
        return self.core.step(self.row_inputs(obs, state), state)

    def row_inputs(self, obs: Any, state: State) -> torch.Tensor:
        """What the recurrent layer takes for observations [B, ...] and their previous actions and rewards, [B, inputs].

        Args:
            state: of which the parts [B, ...] for these are read.
        """
        reward = rescaled(state[PREVIOUS_REWARD])[:, None]
        return torch.cat([self.torso.forward(obs), state[PREVIOUS_ACTION], reward], 1)

    def acted(self, state: State, action: torch.Tensor | NDArray[Any]) -> dict[str, torch.Tensor]:
        """The state after `step` with the actions [k, ...] that were chosen, as rows hold them."""
        encoded = self.actions.forward(torch.as_tensor(action, device=state["hidden"].device))
        return {**state, PREVIOUS_ACTION: encoded, PREVIOUS_REWARD: encoded.new_zeros(len(encoded))}

    def inputs(self, obs: Any, action: torch.Tensor, reward: torch.Tensor, state: State) -> torch.Tensor:
        """What the recurrent layer takes for windows of N observations, [B, N, inputs].

        Args:
            obs: [B, N, ...].
            action, reward: [B, N - 1, ...], between the observations.
            state: before the windows, the parts of `state_fields`, each [B, ...].
        """
        rows, length = action.shape[0], action.shape[1] + 1
        encoded = self.actions.forward(action.flatten(0, 1)).view(rows, length - 1, -1)
        actions = torch.cat([state[PREVIOUS_ACTION][:, None], encoded], 1)
        rewards = torch.cat([state[PREVIOUS_REWARD][:, None], reward], 1)
        features = self.torso.forward(flat(obs)).view(rows, length, -1)
        return torch.cat([features, actions, rescaled(rewards)[..., None]], 2)

    def _zeros(self, obs: Any) -> dict[str, torch.Tensor]:
        rows = len(next(iter(obs.values()))) if isinstance(obs, Mapping) else len(obs)
        sizes = {**dict.fromkeys(self.core.parts, self.size), PREVIOUS_ACTION: self.actions.size}
        some = next(self.core.parameters())
        zeros = {name: some.new_zeros(rows, size) for name, size in sizes.items()}
        return {**zeros, PREVIOUS_REWARD: some.new_zeros(rows)}


def flat(obs: Any) -> Any:
    """Observations [B, N, ...] as [B * N, ...]."""
    return {name: one.flatten(0, 1) for name, one in obs.items()} if isinstance(obs, Mapping) else obs.flatten(0, 1)


def _encoder(space: gymnasium.Space) -> Flat | OneHot:
    """The encoder of actions as rows hold them: those of a Discrete or MultiDiscrete count from 0."""
    if isinstance(space, gym.Discrete):
        return OneHot(gym.Discrete(space.n), 1)
    return OneHot(gym.MultiDiscrete(space.nvec), 1) if isinstance(space, gym.MultiDiscrete) else Flat(space, 1)
