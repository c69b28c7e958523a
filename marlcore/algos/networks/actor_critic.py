"""Policies of continuous actions, and their critics: networks from an observation and an action to a value."""

from abc import abstractmethod
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import nn

from ...spaces import Spaces
from .actions import BoxActions
from .custom import TRIED, CustomTorso, head_on, whole_network
from .initialization import initialize
from .recurrent import CriticTorso, RecurrentTorso, State, Windows, first_layers, seen_by, stepped
from .torso import ACTIVATIONS, StackedLinear, StackedNorm


class Critics(nn.Module):
    """Several networks, each of which maps an observation and an action to a value.

    The networks share encoders of images, a recurrent layer, or a user's own network, but no fully connected layer.
    One batched matrix product computes a layer of all networks, since torch's overhead takes most of a small network's
    time.
    """

    def __init__(self, hyper: Any, spaces: Spaces, actions: int, networks: int = 2) -> None:
        super().__init__()
        self.networks = networks
        self.encoder = first_layers(hyper, spaces, (), CriticTorso)
        *inner, last = pairwise((self.encoder.size + actions, *hyper.hidden, 1))
        self.layers = nn.ModuleList()
        for inputs, outputs in inner:
            layer = StackedLinear(inputs, outputs, networks)
            self.layers.append(nn.Sequential(layer, StackedNorm(outputs, networks)) if hyper.layer_norm else layer)
        self.layers.append(StackedLinear(*last, networks))
        self.activation = ACTIVATIONS[hyper.activation]()
        initialize(hyper, self)
        initialize(hyper, self.layers[-1], 1.0)

    def forward(self, obs: Any, action: torch.Tensor, count: int | None = None) -> torch.Tensor:
        """Returns the values [count, B] of actions [B, size] in [-1, 1] by the first `count` networks; None: by all."""
        seen = torch.cat([seen_by(self.encoder, obs), action], 1)
        return self.through(seen.expand(count or self.networks, -1, -1))

    def through(self, x: torch.Tensor) -> torch.Tensor:
        """Returns values [n, B] by the first n networks; x, [n, B, inputs], holds each network's own inputs."""
        *inner, last = self.layers
        for layer in inner:
            x = self.activation(layer(x))
        values: torch.Tensor = last(x)
        return values.squeeze(2)


class CustomCritics(nn.Module):
    """Computes the values of both critics by the module or method `critics` of a user's whole model."""

    def __init__(self, hyper: Any, spaces: Spaces, actions: int, network: nn.Module) -> None:
        super().__init__()
        self.critics = CustomTorso(hyper, spaces, network, called="critics", beside=(torch.zeros(TRIED, actions),))

    def forward(self, obs: Any, action: torch.Tensor, count: int | None = None) -> torch.Tensor:
        values: torch.Tensor = self.critics(obs, action)[:count]
        return values


class ContinuousPolicy(nn.Module):
    """Base of policies for Box actions; a distribution has `outputs` numbers for each component of an action."""

    outputs: ClassVar[int]

    def __init__(self, hyper: Any, spaces: Spaces, whole: nn.Module | None = None) -> None:
        super().__init__()
        self.actions = BoxActions(hyper.owner, spaces.action)
        self.torso = first_layers(hyper, spaces, hyper.hidden, RecurrentTorso, whole=whole, called="policy")
        self.output = head_on(hyper, self.torso, self.outputs * self.actions.size)
        initialize(hyper, self.torso)
        initialize(hyper, self.output, 1.0)

    def forward(self, obs: Any) -> Any:
        return self.distribution(self.output(seen_by(self.torso, obs)))

    def stepped(self, obs: Any, state: State | None, windows: Windows | None = None, mask: None = None) -> Any:
        """Returns, with memory, the distribution for observations and a state, and the next state."""
        features, after = stepped(self.torso, obs, state, windows)
        return self.distribution(self.output(features)), after

    def acted(self, state: State, action: Any) -> State:
        """Adds the chosen actions [k, ...] to the state that `stepped` returned, and returns the result."""
        return self.torso.acted(state, action)  # type: ignore[no-any-return]

    @abstractmethod
    def distribution(self, outputs: torch.Tensor) -> Any:
        """Returns the result of `forward`, given the last layer's outputs [B, outputs * size]."""

    def greedy(self, obs: Any, mask: None = None) -> torch.Tensor:
        """Returns the actions [k, ...] without exploration."""
        return self.actions.decoded(self.mode(self(obs)))

    def mode(self, distribution: Any) -> torch.Tensor:
        """Returns actions [B, size] in [-1, 1] without exploration; by default, the distribution itself."""
        return distribution  # type: ignore[no-any-return]

    @abstractmethod
    def noisy(self, distribution: Any, noise: torch.Tensor, explore: Mapping[str, Any]) -> torch.Tensor:
        """Returns actions [B, size], given standard normal noise [B, size]; the caller clips them to [-1, 1]."""


class DeterministicPolicy(ContinuousPolicy):
    """Maps observations to actions [B, size] in [-1, 1]."""

    outputs = 1

    def distribution(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.tanh()

    def noisy(self, distribution: torch.Tensor, noise: torch.Tensor, explore: Mapping[str, Any]) -> torch.Tensor:
        action: torch.Tensor = distribution + explore["noise"] * noise
        return action


class ActorCritic(nn.Module):
    """Holds a policy, with which actors act, and its critics.

    Raises: ValueError: policy and critics share parameters, but a parameter can have only one optimizer.
    """

    def __init__(self, hyper: Any, policy: nn.Module, critics: nn.Module) -> None:
        super().__init__()
        self.acting, self.critics = policy, critics
        if {*policy.parameters()} & {*critics.parameters()}:
            expected = "modules policy and critics without common parameters"
            raise ValueError(f"{hyper.owner} network: expected {expected}, got common ones")


def continuous_actor_critic(hyper: Any, spaces: Spaces, kind: type[ContinuousPolicy]) -> ActorCritic:
    """Makes a policy of this kind and two critics, or takes both from a user's whole model if there is one."""
    whole = None if hyper.cell is not None else whole_network(hyper, spaces, "policy", "critics")
    policy = kind(hyper, spaces, whole)
    size = policy.actions.size
    critics = Critics(hyper, spaces, size) if whole is None else CustomCritics(hyper, spaces, size, whole)
    return ActorCritic(hyper, policy, critics)
