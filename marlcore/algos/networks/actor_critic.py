"""Policies of continuous actions, and critics of them: networks from an observation and an action to a value."""

from abc import abstractmethod
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import nn

from ...spaces import Spaces
from .actions import BoxActions
from .custom import TRIED, CustomTorso, head_on, torso_of, whole_network
from .initialization import initialize
from .torso import ACTIVATIONS, StackedLinear, StackedNorm


class Critics(nn.Module):
    """`networks` networks from an observation and an action to a value, which share no fully connected layer.

    Encoders of images are shared, and so is a network of the user's. A layer of all networks is one batched product:
    for small networks, torch's overhead for each operation is most of their time.
    """

    def __init__(self, hyper: Any, spaces: Spaces, actions: int, networks: int = 2) -> None:
        super().__init__()
        self.networks = networks
        self.encoder = torso_of(hyper, spaces, ())
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
        """The values [count, B] of actions [B, size] in [-1, 1], of the first `count` networks; None: of all."""
        return self.through(torch.cat([self.encoder(obs), action], 1).expand(count or self.networks, -1, -1))

    def through(self, x: torch.Tensor) -> torch.Tensor:
        """The values [n, B] by the first n networks, each of its own inputs [n, B, inputs]."""
        *inner, last = self.layers
        for layer in inner:
            x = self.activation(layer(x))
        values: torch.Tensor = last(x)
        return values.squeeze(2)


class CustomCritics(nn.Module):
    """The two critics that a whole model of the user's has as its module `critics`."""

    def __init__(self, hyper: Any, spaces: Spaces, actions: int, network: nn.Module) -> None:
        super().__init__()
        self.critics = CustomTorso(hyper, spaces, network, called="critics", beside=(torch.zeros(TRIED, actions),))

    def forward(self, obs: Any, action: torch.Tensor, count: int | None = None) -> torch.Tensor:
        """See `Critics.forward`."""
        values: torch.Tensor = self.critics(obs, action)[:count]
        return values


class ContinuousPolicy(nn.Module):
    """Base of policies: observations to a distribution of Box actions, by `outputs` numbers for each component."""

    outputs: ClassVar[int]

    def __init__(self, hyper: Any, spaces: Spaces, whole: nn.Module | None = None) -> None:
        super().__init__()
        self.actions = BoxActions(hyper.owner, spaces.action)
        self.torso = torso_of(hyper, spaces, hyper.hidden, (), whole, "policy")
        self.output = head_on(hyper, self.torso, self.outputs * self.actions.size)
        initialize(hyper, self.torso)
        initialize(hyper, self.output, 1.0)

    def forward(self, obs: Any) -> Any:
        return self.distribution(self.output(self.torso(obs)))

    @abstractmethod
    def distribution(self, outputs: torch.Tensor) -> Any:
        """The distribution of actions by the last layer's outputs [B, outputs * size]; the result of a call."""

    def greedy(self, obs: Any, mask: None = None) -> torch.Tensor:
        """The actions [k, ...] without exploration; by default the distribution is one of them alone, in [-1, 1]."""
        return self.actions.decoded(self(obs))

    @abstractmethod
    def noisy(self, distribution: Any, noise: torch.Tensor, explore: Mapping[str, Any]) -> torch.Tensor:
        """Actions [B, size], given standard normal noise [B, size]; beyond [-1, 1] they count as its ends."""


class DeterministicPolicy(ContinuousPolicy):
    """Observations to actions [B, size] in [-1, 1]."""

    outputs = 1

    def distribution(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.tanh()

    def noisy(self, distribution: torch.Tensor, noise: torch.Tensor, explore: Mapping[str, Any]) -> torch.Tensor:
        action: torch.Tensor = distribution + explore["noise"] * noise
        return action


class ActorCritic(nn.Module):
    """A policy, which is all that actors need, and its critics.

    Raises: ValueError: these share parameters, of which each optimizer needs its own.
    """

    def __init__(self, hyper: Any, policy: nn.Module, critics: nn.Module) -> None:
        super().__init__()
        self.acting, self.critics = policy, critics
        if {*policy.parameters()} & {*critics.parameters()}:
            expected = "modules policy and critics without common parameters"
            raise ValueError(f"{hyper.owner} network: expected {expected}, got common ones")


def continuous_actor_critic(hyper: Any, spaces: Spaces, kind: type[ContinuousPolicy]) -> ActorCritic:
    """A policy of this kind and two critics; a whole model of the user's has both as modules."""
    whole = whole_network(hyper, spaces, "policy", "critics")
    policy = kind(hyper, spaces, whole)
    size = policy.actions.size
    critics = Critics(hyper, spaces, size) if whole is None else CustomCritics(hyper, spaces, size, whole)
    return ActorCritic(hyper, policy, critics)
