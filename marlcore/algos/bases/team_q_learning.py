"""Q-learning of a team: a mixer turns the values of the members' actions into a value of their joint action.

The team's reward trains the mixed value, but each member acts by its own values. If the mixed value grows with each
member's value, the members' best actions form the team's best joint action (Rashid et al. 2018, arXiv:1803.11485,
section 4). Members may have memory.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ...compiled import explore, of_members
from ...interfaces import Action, Algorithm
from ...spaces import Spaces
from ...spec import TransitionSpec
from ..networks.actions import array_of
from ..networks.initialization import initialize
from ..networks.qnetwork import QNetwork, RecurrentQNetwork, best
from ..networks.recurrent import Cell, State
from ..networks.teams import MemberNetworks, TeamSpaces, discrete_team
from .hyperparameters import ActRequest, Layers, LearningRate
from .q_learning import QLearning, QTrainer, WindowTrainer
from .windows import Windowed


@dataclass(frozen=True)
class TeamQLearning(Windowed, QLearning):
    """Hyperparameters of all algorithms that decompose a team's value; the agent is a team, see Config.teams.

    The fields from `units` to `eta` configure windows, which only members with memory have. Members without memory use
    `learner.n_step`.
    """

    wants_team = True

    learning_rate: LearningRate = 5e-4
    """Adam's step size, above 0; a number or a schedule."""
    hidden: Layers = (64, 64)
    """Units in each fully connected layer of a member's network, at least one layer; the head has the last."""
    dueling: bool = False
    """Estimate a member's state value and its actions' advantages separately (Wang et al. 2016)."""
    cell: Cell | None = None
    """The recurrent layer of a member's network: lstm, gru (as in the paper) or your own; None: no memory."""
    shared: bool = True
    """Members with equal spaces share a network, which also sees which member it acts for; otherwise each has its
    own."""

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """Returns a row's fields; see `state_fields`. Raises ValueError as discrete_team does."""
        discrete_team(self.owner, spaces, self.shared)
        return replace(Algorithm.transition(self, spaces), extras=self.state_fields(spaces))

    def make_model(self, spaces: Spaces) -> "TeamNetwork":
        return TeamNetwork(self, spaces)

    @abstractmethod
    def mixer(self, team: TeamSpaces) -> nn.Module:
        """Returns a module that maps the members' values [..., members] and the team's observations to one value [...].

        The value of a member that does not act is 0. The mixed value must grow with each member's value.
        """

    def member_network(self, spaces: Spaces) -> nn.Module:
        """Returns the network of members with these spaces."""
        return QNetwork(self, spaces) if self.cell is None else RecurrentQNetwork(self, spaces)

    def chosen(self, model: Any, obs: Any, request: ActRequest) -> Action:
        """Returns each member's epsilon-greedy action; `explore` holds "epsilon"."""
        values, after = (model(obs), None) if self.cell is None else model.stepped(obs, request.state)
        allowed = model.team.allowed(request.mask, values)
        rows, members, most = values.shape
        action = array_of(best(values, allowed).flatten())
        of_rows = array_of(None if allowed is None else allowed.flatten(0, 1))
        epsilon = of_members(request.explore["epsilon"], rows, members)
        explore(action, most, of_rows, epsilon, request.generator)
        action = action.reshape(rows, members)
        return Action(action, state=after and model.acted(after, action))

    def greedy(self, model: Any, obs: Any, state: State | None, mask: torch.Tensor | None) -> Any:
        values, after = (model(obs), None) if self.cell is None else model.stepped(obs, state)
        action = best(values, model.team.allowed(mask, values))
        return action, after and model.acted(after, action)

    def make_trainer(self, model: Any) -> "TeamTrainer":
        return TeamTrainer(self, model) if self.cell is None else TeamWindowTrainer(self, model)


class TeamNetwork(nn.Module):
    """Holds the members' networks, with which actors act, and the mixer of their values."""

    def __init__(self, hyper: TeamQLearning, spaces: Spaces) -> None:
        super().__init__()
        self.team = discrete_team(hyper.owner, spaces, hyper.shared)
        self.acting = MemberNetworks(self.team, hyper.member_network)
        self.mixer = hyper.mixer(self.team)
        initialize(hyper, self.mixer)

    def forward(self, obs: Any, *window: Any) -> Any:
        """Returns members' values [B, members, actions]; for windows also the state, see `MemberNetworks.stepped`."""
        return self.acting.stepped(obs, *window) if window else self.acting(obs)

    def mixed(self, values: torch.Tensor, obs: Any) -> torch.Tensor:
        """Mixes members' values [..., members] into team values [...]; the value of a dead member counts as 0."""
        total: torch.Tensor = self.mixer(values * self.team.alive(obs), obs)
        return total

    def allowed(self, obs: Any, values: torch.Tensor) -> torch.Tensor | None:
        return self.team.allowed(self.team.spaces.mask_in(obs), values)


class TeamTrainer(QTrainer):
    """Trains the mixed value by Q-learning towards a target network, with the Huber loss."""

    def action_index(self, batch: Any) -> Any:
        return batch.action.long()

    def value_of(self, network: Any, values: torch.Tensor, action: torch.Tensor, obs: Any) -> torch.Tensor:
        """Returns the mixed values [...] of the members' actions [..., members]."""
        mixed: torch.Tensor = network.mixed(super().value_of(network, values, action, obs), obs)
        return mixed


class TeamWindowTrainer(WindowTrainer, TeamTrainer):
    """Trains the mixed value by Q-learning on windows of episodes, as R2D2 does."""
