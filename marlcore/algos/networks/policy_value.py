"""Networks for a policy and for the value of observations, for algorithms that learn both."""

from typing import Any

import torch
from torch import nn

from ...spaces import Spaces
from .custom import CustomTorso, check_form, head_on, torso_of, tried, whole_network, zeros_of
from .distributions import distribution_of
from .initialization import initialize
from .recurrent import RecurrentTorso, State, Stepped, Windows, stepped
from .torso import Torso


class PolicyNetwork(nn.Module):
    """Maps observations to outputs [B, outputs], which give a distribution over actions."""

    def __init__(self, hyper: Any, spaces: Spaces, torso: Torso | CustomTorso | RecurrentTorso) -> None:
        super().__init__()
        self.spaces = spaces
        self.distribution = distribution_of(hyper.owner, spaces.action)
        self.torso = torso
        self.head = head_on(hyper, torso, self.distribution.outputs)
        initialize(hyper, self.torso)
        initialize(hyper, self.head, 0.01)  # nearly uniform at first

    def forward(self, obs: Any) -> Any:
        return self.head(self.torso(obs))

    def greedy(self, obs: Any, mask: torch.Tensor | None) -> torch.Tensor:
        """Returns the most probable actions [k, ...]."""
        return self.distribution.mode(self(obs), mask)


class OutputNetwork(nn.Module):
    """Maps observations to numbers [B, outputs]."""

    def __init__(self, hyper: Any, torso: Any, outputs: int) -> None:
        super().__init__()
        self.torso = torso
        self.head = head_on(hyper, torso, outputs)
        initialize(hyper, self.torso)
        initialize(hyper, self.head, 1.0)

    def forward(self, obs: Any) -> Any:
        return self.head(self.torso(obs))

    def stepped(self, obs: Any, state: State | None, windows: Windows | None = None) -> Stepped:
        """Returns the numbers and the next state of a network with memory; see `stepped` in recurrent.py."""
        features, after = stepped(self.torso, obs, state, windows)
        return self.head(features), after


class ValueNetwork(OutputNetwork):
    """Maps observations to their values [B]."""

    def __init__(self, hyper: Any, torso: Torso | CustomTorso) -> None:
        super().__init__(hyper, torso, 1)

    def forward(self, obs: Any) -> Any:
        return super().forward(obs).squeeze(1)


class PolicyValue(nn.Module):
    """Holds a policy, with which actors act, and a critic; only the critic sees the observation's parts `of_critic`.

    Policy and critic may be methods of a user's network. If it has a method `both`, one call computes shared layers.
    """

    def __init__(self, hyper: Any, spaces: Spaces, of_critic: tuple[str, ...] = ()) -> None:
        super().__init__()
        whole: Any = None if of_critic else whole_network(hyper, spaces, "policy", "value")
        self.acting = PolicyNetwork(hyper, spaces, torso_of(hyper, spaces, hyper.hidden, of_critic, whole, "policy"))
        self.critic = ValueNetwork(hyper, torso_of(hyper, spaces, hyper.hidden, (), whole, "value"))
        self.shares = hasattr(whole, "both") and self.acting.torso.network is whole
        if self.shares:
            label, zeros = f"{hyper.owner} network", zeros_of(spaces)
            result = tried(f"{label}: both", whole.both, zeros)
            check_form(f"{label}: both", result, (whole.policy(zeros), whole.value(zeros)))

    def forward(self, obs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the policy's outputs [B, outputs] and the values [B]."""
        if self.shares:
            torso: Any = self.acting.torso
            outputs, values = torso.network.both(torso.inputs(obs))
            return outputs, values.squeeze(1)
        return self.acting(obs), self.critic(obs)
