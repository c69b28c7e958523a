"""Value networks with and without memory, their head, and the choice of the best allowed action."""

import math
from functools import partial
from typing import Any

import torch
from torch import nn

from ...spaces import Spaces
from .actions import JointActions
from .custom import head_on, torso_of, whole_network
from .initialization import initialize
from .recurrent import RecurrentTorso, State, Stepped, Windows, stepped
from .torso import ACTIVATIONS, dense_layer

FEW = 64  # actions; for more, the product with a square matrix takes longer than a slice and a sum


class QNetwork(nn.Module):
    """Maps observations to the joint actions' values [B, actions.count], learnt from rewards times reward_scale."""

    def __init__(self, hyper: Any, spaces: Spaces, torso: Any = None) -> None:
        """Makes the network on the first layers `torso`; None: on the layers of the hyperparameters (`torso_of`)."""
        super().__init__()
        self.spaces = spaces
        self.actions = JointActions(hyper.owner, spaces.action)
        if torso is None:
            whole = whole_network(hyper, spaces, "values")
            torso = torso_of(hyper, spaces, hyper.hidden[:-1], (), whole, "values")
        self.torso = torso
        self.head = head_on(hyper, torso, self.actions.count, partial(Head, hyper))
        initialize(hyper, self)
        if isinstance(self.head, Head):
            initialize(hyper, self.head.output, 1.0)

    def forward(self, obs: Any) -> Any:
        return self.head(self.torso(obs))

    def greedy(self, obs: Any, mask: torch.Tensor | None) -> torch.Tensor:
        """Returns the actions [k, ...] with the highest values."""
        return self.actions.decoded(best(self(obs), self.actions.allowed(mask)))

    def allowed(self, obs: Any, values: torch.Tensor | None = None) -> torch.Tensor | None:
        """Returns the joint actions that masks allow, bool [B, actions.count]; None without masks. Ignores `values`."""
        allowed: torch.Tensor | None = self.actions.allowed(self.spaces.mask_in(obs))
        return allowed


class RecurrentQNetwork(QNetwork):
    """Maps observations and a state to values [B, actions.count] of joint actions; R2D2 rescales the values."""

    def __init__(self, hyper: Any, spaces: Spaces) -> None:
        super().__init__(hyper, spaces, RecurrentTorso(hyper, spaces, hyper.hidden[:-1]))

    def forward(  # type: ignore[override]
        self, obs: Any, state: State | None, windows: Windows | None = None
    ) -> Stepped:
        """Returns the values [k, actions] of k observations [k, ...], and the next state; see RecurrentTorso.

        With `windows`, values are [B, N, actions], for observations [B, N, ...] and the state [B, ...] before them.
        """
        features, after = stepped(self.torso, obs, state, windows)
        return self.head(features), after

    def stepped(self, obs: Any, state: State | None, windows: Windows | None = None) -> Stepped:
        return self(obs, state, windows)  # type: ignore[no-any-return]


class Head(nn.Module):
    """Maps features [..., inputs] to action values [..., actions]: the last of the layers `hidden` and an output layer.

    With `dueling`, an action's value is the state's value plus the action's advantage minus the mean advantage (Wang et
    al. 2016, arXiv:1511.06581, equation 9). All are outputs of one layer, so dueling costs little.
    """

    aggregate: torch.Tensor

    def __init__(self, hyper: Any, inputs: int, actions: int) -> None:
        super().__init__()
        self.dueling = hyper.dueling
        self.few = actions <= FEW
        self.hidden = dense_layer(hyper, inputs, hyper.hidden[-1])
        self.activation = ACTIVATIONS[hyper.activation]()
        self.output = nn.Linear(hyper.hidden[-1], actions + hyper.dueling)
        # The outputs times this matrix are the value minus the mean advantage; for few actions, plus each advantage.
        rest = torch.cat([torch.full((actions, 1), -1 / actions), torch.ones(1, 1)])
        whole = rest + torch.eye(actions + 1, actions) if self.few else rest
        self.register_buffer("aggregate", whole, persistent=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.combined(self.output(self.activation(self.hidden(features))))

    def combined(self, outputs: torch.Tensor) -> torch.Tensor:
        """Returns the values [..., actions], given the last layer's outputs."""
        if not self.dueling:
            return outputs
        values = torch.matmul(outputs, self.aggregate)
        return values if self.few else outputs[..., :-1] + values


def best(values: torch.Tensor, allowed: torch.Tensor | None) -> torch.Tensor:
    """Returns the numbers, int64 [...], of the actions with the highest `values` [..., actions].

    `allowed`, bool [..., actions], is False for excluded actions; None: all are allowed.
    """
    return values.argmax(-1) if allowed is None else values.masked_fill(~allowed, -math.inf).argmax(-1)
