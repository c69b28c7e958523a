"""MATD3: members of a team act by what each sees, and learn by critics that see what all of them saw and did.

Ackermann et al. 2019, "Reducing overestimation bias in multi-agent domains using double centralized critics"
(arXiv:1910.01465), on Lowe et al. 2017, "Multi-agent actor-critic for mixed cooperative-competitive environments"
(arXiv:1706.02275). Discrete actions are the places of a one-hot vector, drawn with gradients by the Gumbel-softmax
(Jang et al. 2017, arXiv:1611.01144), as in the second paper.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces as gym
from torch import nn
from torch.nn import functional

from ..interfaces import MEMBER_REWARDS, Action, Algorithm, ReplaySource, Update
from ..spaces import Spaces
from ..spec import Field, TransitionSpec
from .base import Request
from .fast import faster
from .networks.actions import BoxActions
from .networks.critics import TwinCritics
from .networks.distributions import masked
from .networks.initialization import initialize
from .networks.members import Members, TeamSpaces
from .networks.own import torso_of
from .networks.policy_value import OutputNetwork
from .networks.torso import rows_in
from .td3 import TD3, DeterministicPolicy, TD3Trainer


@dataclass(frozen=True)
class MATD3(TD3):
    """Hyperparameters of MATD3; the agent is a team, see Config.teams.

    The noises and `target_noise` are of Box actions: Discrete ones are drawn from the policy.
    """

    wants_team = True

    shared: bool = True
    """Members with equal spaces share a policy network, which also sees which member it acts for; otherwise each has
    its own."""
    rewards: Literal["sum", "own"] = "sum"
    """What members learn from: the sum of their rewards, by one pair of critics; or each from its own reward, by its
    own pair, as published, also where they compete. With own rewards returns are of one step (`learner.n_step`)."""

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """A row, with what each member earned if it learns from that. Raises ValueError: no team; see BoxActions."""
        team = TeamSpaces(self.owner, spaces, self.shared)
        team_actions(self.owner, team)
        spec = Algorithm.transition(self, spaces)
        return spec if self.rewards == "sum" else replace(spec, extras={MEMBER_REWARDS: Field((team.count,))})

    def source(self, chosen: ReplaySource) -> ReplaySource:
        """The chosen one; with own rewards of one step, since the sampler sums no others than the team's."""
        return chosen if self.rewards == "sum" else replace(chosen, n_step=1)

    def make_model(self, spaces: Spaces) -> "TeamActorCritic":  # type: ignore[override]
        return TeamActorCritic(self, spaces, TeamCritics if self.rewards == "sum" else MemberCritics)

    def chosen(self, model: Any, obs: Any, request: Request) -> Action:
        """Box actions as TD3's; Discrete ones drawn from each member's policy, or uniform ones of the allowed."""
        if not isinstance(model.actions, OneHotActions):
            return super().chosen(model, obs, request)
        rows, size = rows_in(obs), model.actions.size
        uniform = request.generator.random((rows, 1)) < np.reshape(request.explore["epsilon"], (-1, 1))
        gumbel = request.generator.gumbel(size=(rows, size))
        outputs = faster(model)(obs).cpu().numpy()
        scores = np.where(uniform & (outputs > -np.inf), 0.0, outputs) + gumbel
        return Action(model.actions.decode(scores))

    def greedy(self, model: Any, obs: Any, state: Any, mask: torch.Tensor | None) -> Any:
        return model.actions.decoded(faster(model)(obs, mask)), None

    def make_trainer(self, model: Any) -> "MATD3Trainer":
        return MATD3Trainer(self, model, source=model)


class OneHotActions:
    """The Discrete actions of a team's members as one-hot vectors, one after another, [B, members * most]."""

    def __init__(self, team: TeamSpaces) -> None:
        self.members, self.most = team.count, max(team.choices)
        self.size = self.members * self.most

    def encode(self, action: torch.Tensor) -> torch.Tensor:
        """Actions [B, members] of rows as float32 [B, size]."""
        return functional.one_hot(action.long(), self.most).flatten(1).float()

    def decode(self, scores: Any) -> Any:
        """The actions [k, members] with the highest scores [k, size], of NumPy or torch."""
        return scores.reshape(-1, self.members, self.most).argmax(2)

    decoded = decode


def team_actions(owner: str, team: TeamSpaces) -> OneHotActions | BoxActions:
    """The encoding of a team's actions. Raises ValueError: see BoxActions."""
    return OneHotActions(team) if team.choices else BoxActions(owner, team.spaces.action)


def member_policy(hyper: Any, spaces: Spaces) -> nn.Module:
    """A member's observations to its action in [-1, 1] of a Box, or to a score of each Discrete one."""
    if isinstance(spaces.action, gym.Box):
        return DeterministicPolicy(hyper, spaces)
    return OutputNetwork(hyper, torso_of(hyper, spaces, hyper.hidden), int(spaces.action.n))


class TeamPolicy(nn.Module):
    """A team's observations to its members' actions [B, size]: in [-1, 1] of a Box, scores of Discrete ones."""

    def __init__(self, hyper: Any, spaces: Spaces) -> None:
        super().__init__()
        self.team = TeamSpaces(hyper.owner, spaces, hyper.shared)
        self.actions = team_actions(hyper.owner, self.team)
        self.members = Members(self.team, lambda own: member_policy(hyper, own))

    def forward(self, obs: Any, mask: torch.Tensor | None = None) -> torch.Tensor:
        """The outputs [B, size]; the mask is in the observation where none is given."""
        outputs: torch.Tensor = self.members(obs)
        if self.team.choices:
            allowed = self.team.allowed(self.team.mask_in(obs) if mask is None else mask, outputs)
            outputs = masked(outputs, allowed)
        return outputs.flatten(1)

    def noisy(self, outputs: torch.Tensor, noise: torch.Tensor, explore: Mapping[str, Any]) -> torch.Tensor:
        """Box actions with noise; see ContinuousPolicy.noisy."""
        action: torch.Tensor = outputs + explore["noise"] * noise
        return action

    def drawn(self, outputs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Actions [B, size] as critics take them, with gradients: one-hot vectors of Discrete ones are drawn."""
        if not self.team.choices:
            return outputs
        scores = outputs.reshape(-1, self.team.count, self.actions.size // self.team.count)
        uniform = torch.rand(scores.shape, generator=generator, device=scores.device).clamp_(1e-20)
        soft = torch.softmax(scores - torch.log(-torch.log(uniform)), -1)
        hard = functional.one_hot(soft.argmax(-1), scores.shape[-1]).float()
        drawn: torch.Tensor = (hard + (soft - soft.detach())).flatten(1)  # exactly one-hot
        return drawn


class TeamCritics(TwinCritics):
    """Two networks from what all members see and do to the team's value; actions of members that do not act are 0."""

    def __init__(self, hyper: MATD3, policy: TeamPolicy, pairs: int = 1) -> None:
        super().__init__(hyper, policy.team.spaces, policy.actions.size, pairs)
        self.team = policy.team

    def forward(self, obs: Any, action: torch.Tensor, count: int = 2) -> torch.Tensor:
        return super().forward(obs, self.of_living(obs, action), count)

    def of_living(self, obs: Any, action: torch.Tensor) -> torch.Tensor:
        """Actions [..., B, size], 0 for members that do not act."""
        of_members = action.reshape(*action.shape[:-1], self.team.count, -1)
        return (of_members * self.team.alive(obs)[..., None]).flatten(-2)

    def of_each(self, obs: Any, joint: torch.Tensor) -> torch.Tensor:
        """The values [members, B] by the first network, where for each member all do `joint` [members, B, size]."""
        return torch.cat([self(obs, action, 1) for action in joint])


class MemberCritics(TeamCritics):
    """A pair of networks for each member, to the values of its own rewards."""

    def __init__(self, hyper: MATD3, policy: TeamPolicy) -> None:
        super().__init__(hyper, policy, policy.team.count)

    def forward(self, obs: Any, action: torch.Tensor, count: int = 2) -> torch.Tensor:
        """The values [count, members, B] of actions [B, size]."""
        values = super().forward(obs, action, count * self.team.count)
        return values.reshape(count, self.team.count, -1)

    def of_each(self, obs: Any, joint: torch.Tensor) -> torch.Tensor:
        action, seen = self.of_living(obs, joint), self.encoder(obs)
        return self.through(torch.cat([seen.expand(len(joint), -1, -1), action], 2))


class TeamActorCritic(nn.Module):
    """The members' policies, which are all that actors need, and the team's critics, by default TeamCritics."""

    def __init__(self, hyper: Any, spaces: Spaces, critics: Any = TeamCritics) -> None:
        super().__init__()
        self.acting = TeamPolicy(hyper, spaces)
        self.critics = critics(hyper, self.acting)
        initialize(hyper, self.critics)
        initialize(hyper, self.critics.layers[-1], 1.0)


class MATD3Trainer(TD3Trainer):
    """TD3 whose policy gradient is that of each member's own action, beside what the others did."""

    def update(self, batch: Any) -> Update:
        """See TD3Trainer. With own rewards, those of members that act; a row's priority is the mean of all members'."""
        if self.hyper.rewards == "sum":
            return super().update(batch)
        team, batch = self.policy.team, copy.copy(batch)
        batch.reward = batch.extras[MEMBER_REWARDS].T
        batch.discount = batch.discount * team.alive(batch.next_obs).T
        batch.weight = batch.weight * (alive := team.alive(batch.obs).T)
        update = super().update(batch)
        assert update.priority is not None
        return replace(update, priority=(update.priority * alive).mean(0))

    def own_actions(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """All members' actions [B, size], and the values [members, B] where one of them acts anew.

        The others' actions are those of the rows (Lowe et al. 2017, equation 6). A member that does not act changes no
        value, and gets no gradient.
        """
        action = self.policy.drawn(faster(self.policy)(batch.obs), self.generator)
        taken = self.policy.actions.encode(batch.action)
        own, others = (each.reshape(len(each), self.policy.team.count, -1) for each in (action, taken))
        acts = torch.eye(own.shape[1], dtype=torch.bool, device=own.device)[:, None, :, None]
        return action, faster(self.critics).of_each(batch.obs, torch.where(acts, own, others).flatten(2))

    def smoothed(self, obs: Any) -> torch.Tensor:
        """See TD3Trainer; of Discrete actions those drawn from the target policy."""
        if not self.policy.team.choices:
            return super().smoothed(obs)
        policy = self.target.acting
        drawn: torch.Tensor = policy.drawn(faster(policy)(obs), self.generator)
        return drawn
