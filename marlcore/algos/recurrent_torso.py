"""The first layers of a recurrent network: what an agent observed, did and earned so far, as features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import gymnasium
import torch
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..checks import check_whole
from ..interfaces import PREVIOUS_REWARD
from ..spaces import Spaces
from ..spec import Field
from .dense import Activation
from .encoders import Flat, OneHot
from .network import Network, Operation, call_of
from .recurrent import KINDS, Recurrent, State, parts_of
from .rescaling import rescaled
from .torso import Torso

__all__ = ["RecurrentTorso", "Unroll", "check_memory", "flat", "state_fields"]

Unroll = Callable[[Operation, torch.Tensor, State], tuple[torch.Tensor, dict[str, torch.Tensor]]]

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


class RecurrentTorso(Network):
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
        activation: Activation = torch.relu,
    ) -> None:
        super().__init__()
        self.torso = Torso(spaces, hidden, activation)
        self.actions = _encoder(spaces.action)
        self.core = Recurrent(cell, self.torso.size + self.actions.size + 1, units)
        self.size = units
        self._sizes = {**dict.fromkeys(self.core.parts, units), PREVIOUS_ACTION: self.actions.size}

    def forward(
        self, obs: Any, state: State | None, unroll: Unroll | None = None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The features [k, size] of k observations, and the state after them; the actions are still to be put in it.

        Args:
            obs: [k, ...].
            state: the parts of `state_fields`, [k, ...] those of previous actions and rewards; None: every row begins
                an episode.
            unroll: what to call with the recurrent layer, its inputs [k, inputs] and the state; None: each row is a
                step of its own, and the layer is called with these.
        """
        return self._by(self.torso, self.core, obs, state, unroll)

    def operations(self) -> list[Operation]:
        return [partial(self._by, call_of(self.torso), call_of(self.core))]

    def _by(
        self, torso: Operation, core: Operation, obs: Any, state: State | None, unroll: Unroll | None = None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        if state is None:
            state = self._zeros(obs)
        reward = rescaled(state[PREVIOUS_REWARD])[:, None]
        inputs = torch.cat([torso(obs), state[PREVIOUS_ACTION], reward], 1)
        return core(inputs, state) if unroll is None else unroll(core, inputs, state)

    def acted(self, state: State, action: torch.Tensor | NDArray[Any]) -> dict[str, torch.Tensor]:
        """The state after `forward` with the actions [k, ...] that were chosen, as rows hold them."""
        encoded = self.actions(torch.as_tensor(action, device=state["hidden"].device))
        return {**state, PREVIOUS_ACTION: encoded, PREVIOUS_REWARD: encoded.new_zeros(len(encoded))}

    def before_each(self, action: torch.Tensor, reward: torch.Tensor, state: State) -> State:
        """The state before windows of N observations, with the action and reward before each one, [B * N, ...].

        Args:
            action, reward: [B, N - 1, ...], between the observations.
            state: before the windows, the parts of `state_fields`, each [B, ...].
        """
        encoded = self.actions(action.flatten(0, 1)).view(*action.shape[:2], -1)
        actions = torch.cat([state[PREVIOUS_ACTION][:, None], encoded], 1)
        rewards = torch.cat([state[PREVIOUS_REWARD][:, None], reward], 1)
        return {**state, PREVIOUS_ACTION: actions.flatten(0, 1), PREVIOUS_REWARD: rewards.flatten()}

    def _zeros(self, obs: Any) -> dict[str, torch.Tensor]:
        rows = len(next(iter(obs.values()))) if isinstance(obs, Mapping) else len(obs)
        some = next(self.parameters())
        zeros = {name: some.new_zeros(rows, size) for name, size in self._sizes.items()}
        return {**zeros, PREVIOUS_REWARD: some.new_zeros(rows)}


def flat(obs: Any) -> Any:
    """Observations [B, N, ...] as [B * N, ...]."""
    return {name: one.flatten(0, 1) for name, one in obs.items()} if isinstance(obs, Mapping) else obs.flatten(0, 1)


def _encoder(space: gymnasium.Space) -> Flat | OneHot:
    """The encoder of actions as rows hold them: those of a Discrete or MultiDiscrete count from 0."""
    if isinstance(space, gym.Discrete):
        return OneHot(gym.Discrete(space.n), 1)
    return OneHot(gym.MultiDiscrete(space.nvec), 1) if isinstance(space, gym.MultiDiscrete) else Flat(space, 1)
