"""COMA: a team's member learns how much its own action changes the team's value, with the others' actions fixed.

Foerster et al. 2018, "Counterfactual multi-agent policy gradients" (arXiv:1705.08926).
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from ..declared import Number
from ..interfaces import Action, QueueSource, ReplaySource, Update
from ..observations import rows_at
from ..spaces import Spaces
from ..spec import TransitionSpec
from .advantages import Steps, following_values, gae
from .bases.actor_critic import ActorCriticHyperparameters, ActorCriticTrainer
from .bases.hyperparameters import ActRequest, AtLeast0, AtLeast1
from .networks.actions import array_of
from .networks.actor_critic import ActorCritic
from .networks.custom import torso_of
from .networks.distributions import entropy_of
from .networks.initialization import initialize
from .networks.stand_in import faster
from .networks.teams import TeamPolicy, discrete_team
from .networks.torso import Dense


@dataclass(frozen=True)
class COMA(ActorCriticHyperparameters):
    """Hyperparameters of COMA; the agent is a team, see Config.teams.

    The critic sees all members' observations and, if the environment has a `state_space`, the environment's state.
    """

    wants_team = True
    wants_joint = True

    shared: bool = True
    """Members with equal spaces share a policy network, which also sees which member it acts for; otherwise each has
    its own."""
    batch_size: AtLeast1 = 200
    """Transitions of the team from one policy to the next, over all environment copies."""
    epochs: AtLeast1 = 4
    """The critic's passes over each batch; then the policies make one step."""
    minibatch_size: AtLeast1 = 100
    """Transitions of each of the critic's steps."""
    td_lambda: Annotated[float, Number(0, 1)] = 0.8
    """Weight of longer returns in the critic's targets, from 0 to 1."""
    entropy_coefficient: AtLeast0 = 0.01
    """Weight of the policies' entropy in their loss, at least 0."""

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """Returns a row's fields, without extras. Raises ValueError as `discrete_team` does."""
        discrete_team(self.owner, spaces, self.shared)
        return super().transition(spaces)

    def source(self, chosen: ReplaySource) -> QueueSource:
        """Returns a queue that delivers each transition once, in batches of batch_size."""
        return QueueSource(self.batch_size)

    def make_model(self, spaces: Spaces) -> ActorCritic:
        policy = TeamPolicy(self, spaces)
        return ActorCritic(self, policy, CounterfactualCritic(self, policy))

    def chosen(self, model: Any, obs: Any, request: ActRequest) -> Action:
        """Draws actions from each member's policy."""
        scores = faster(model)(obs).cpu().numpy()
        return Action(model.actions.decode(scores + request.generator.gumbel(size=scores.shape)))

    def make_trainer(self, model: Any) -> "COMATrainer":
        return COMATrainer(self, model, source=model.critics)


class CounterfactualCritic(nn.Module):
    """Estimates the team's value of each action of a member, given the others' actions (Foerster et al., figure 1c)."""

    def __init__(self, hyper: COMA, policy: TeamPolicy) -> None:
        super().__init__()
        self.team = policy.team
        self.encoder = torso_of(hyper, self.team.spaces, ())
        inputs = self.encoder.size + policy.actions.size + self.team.count
        self.layers = nn.ModuleList(
            [Dense(hyper, inputs, hyper.hidden), nn.Linear(hyper.hidden[-1], max(self.team.choices))]
        )
        initialize(hyper, self)
        initialize(hyper, self.layers[-1], 1.0)

    def forward(self, obs: Any, action: torch.Tensor) -> torch.Tensor:
        """Returns the values [B, members, most] of each member's actions, given the other members' actions.

        `action`, float32 [B, size], holds all members' actions, one-hot; `most` is the largest number of a member's
        actions.
        """
        count, number = self.team.count, torch.eye(self.team.count, device=action.device)
        acted = action.reshape(len(action), 1, count, -1) * self.team.alive(obs)[:, None, :, None]
        others = (acted * (1 - number)[..., None]).flatten(2)
        seen = self.encoder(obs)[:, None].expand(-1, count, -1)
        dense, output = self.layers
        values: torch.Tensor = output(dense(torch.cat([seen, others, number.expand(len(action), -1, -1)], 2)))
        return values


class COMATrainer(ActorCriticTrainer):
    """Makes the critic's passes over each batch, then a step of the policies by counterfactual advantages."""

    def update(self, batch: Any) -> Update:
        """Trains on one batch (Foerster et al. 2018, Algorithm 1); loss and grad_norm are of the critic's last step."""
        self.follow_schedules(batch)
        action = self.policy.actions.encode(batch.action)
        targets, steps = self.targets(batch, action), 0
        for _ in range(self.hyper.epochs):
            order = torch.randperm(len(action), generator=self.generator, device=self.device)
            for first in range(0, len(order), self.hyper.minibatch_size):
                part = order[first : first + self.hyper.minibatch_size]
                obs = rows_at(batch.obs, part)
                taken, share = self.taken(self.critics, obs, action[part]), self.shares(obs)
                loss = 0.5 * ((taken - targets[part]).square() * share).sum()
                grad_norm = self.descend(self.critics_optimizer, loss)
                self.soft_update(self.hyper.tau)
                steps += 1
        metrics = self.metrics(loss, (taken * share).sum(), grad_norm) | self._improve_policies(batch, action)
        return Update(metrics, updates=steps + 1)

    def shares(self, obs: Any) -> torch.Tensor:
        """Returns the share of each row's members [B, members] in a mean over all that are alive; the others' is 0."""
        alive: torch.Tensor = self.policy.team.alive(obs)
        return alive / alive.sum().clamp(min=1.0)

    def taken(self, critics: Any, obs: Any, action: torch.Tensor) -> torch.Tensor:
        """Returns the values [B, members] that the critics give to the taken actions, one-hot [B, size]."""
        values: torch.Tensor = faster(critics)(obs, action)
        return (values * action.view_as(values)).sum(-1)

    @torch.no_grad()
    def targets(self, batch: Any, action: torch.Tensor) -> torch.Tensor:
        """Returns TD(lambda) returns [B, members], computed with the target critic's values.

        Where the next row is not the next transition, the present policies draw the next actions. A dead member's value
        learns nothing: the living members' mean, which estimates the same return of the team, takes its place.
        """

        def valued(obs: Any, action: torch.Tensor) -> torch.Tensor:
            taken, alive = self.taken(self.target, obs, action), self.policy.team.alive(obs)
            of_living = (taken * alive).sum(1, keepdim=True) / alive.sum(1, keepdim=True).clamp(min=1.0)
            return torch.where(alive > 0, taken, of_living)

        def of_next(which: NDArray[np.int64]) -> Any:
            obs = rows_at(batch.next_obs, torch.from_numpy(which).to(self.device))
            return array_of(valued(obs, self.policy.drawn(faster(self.policy)(obs), self.generator)))

        value = valued(batch.obs, action)

        reward, discount, continues = map(array_of, (batch.reward, batch.discount, batch.continues))
        rows = SimpleNamespace(discount=discount, continues=continues)
        values, reward = array_of(value), np.float32(self.hyper.reward_scale) * reward
        pairs = zip(values.T.copy(), following_values(rows, values, of_next).T.copy(), strict=True)
        targets = [gae(Steps(reward, discount, *pair, continues), self.hyper.td_lambda)[1] for pair in pairs]
        return torch.from_numpy(np.stack(targets, 1)).to(value.device)

    def _improve_policies(self, batch: Any, action: torch.Tensor) -> dict[str, torch.Tensor]:
        """Makes one step of the policies; an advantage is an action's value minus the policy's mean (equation 4)."""
        with torch.no_grad():
            values = faster(self.critics)(batch.obs, action)
        log_probs = functional.log_softmax(faster(self.policy)(batch.obs).view_as(values), -1)
        advantage = (values * (action.view_as(values) - log_probs.detach().exp())).sum(-1)
        taken = log_probs.gather(-1, batch.action.long()[..., None]).squeeze(-1)
        share = self.shares(batch.obs)
        policy_loss = -(advantage * taken * share).sum()
        entropy = (entropy_of(log_probs) * share).sum()
        self.descend(self.policy_optimizer, policy_loss - self.hyper.entropy_coefficient * entropy)
        return {"policy_loss": policy_loss.detach(), "entropy": entropy.detach()}
