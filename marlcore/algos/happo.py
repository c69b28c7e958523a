"""HAPPO: team members improve their policies in turn; each one's update accounts for the updates before it.

Kuba et al. 2022, "Trust region policy optimisation in multi-agent reinforcement learning" (arXiv:2109.11251).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from ..interfaces import Action, Update
from ..spaces import Spaces
from ..spec import TransitionSpec
from .bases.clipped_policy import BONUS, LOG_PROB, METRICS, ClippedPolicy, ClippedPolicyTrainer, Evaluated, Minibatch
from .bases.hyperparameters import ActRequest
from .networks.custom import torso_of
from .networks.policy_value import PolicyNetwork, ValueNetwork
from .networks.stand_in import faster
from .networks.teams import MemberNetworks, TeamSpaces


@dataclass(frozen=True)
class HAPPO(ClippedPolicy):
    """Hyperparameters of HAPPO: those of PPO; the agent is a team, see Config.teams.

    Each member has its own policy network, as the proof of improvement demands. The critic sees all members'
    observations and, if the environment has a `state_space`, the environment's state.
    """

    wants_team = True
    wants_joint = True

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """Returns a row's fields, with the joint action's log-probability. Raises ValueError as TeamSpaces does."""
        TeamSpaces(self.owner, spaces, shared=False)
        return super().transition(spaces)

    def make_model(self, spaces: Spaces) -> "TeamPolicyValue":
        return TeamPolicyValue(self, spaces)

    def chosen(self, model: Any, obs: Any, request: ActRequest) -> Action:
        """Draws actions from each member's policy."""
        drawn = [
            distribution.sample(output, allowed, request.generator)
            for distribution, output, allowed in model.each(obs, request.mask)
        ]
        log_prob = np.stack([log_prob for _, log_prob, _ in drawn], 1) * model.team.alive(obs).numpy(force=True)
        extras = {name: np.stack([extras[name] for *_, extras in drawn], 1) for name in drawn[0][2]}
        action = np.stack([action for action, *_ in drawn], 1)
        return Action(action, {LOG_PROB: log_prob.sum(1), **extras})

    def make_trainer(self, model: Any) -> "HAPPOTrainer":
        return HAPPOTrainer(self, model)


class TeamPolicies(nn.Module):
    """The members' policies; each member has its own network."""

    def __init__(self, hyper: HAPPO, spaces: Spaces) -> None:
        super().__init__()
        self.team = TeamSpaces(hyper.owner, spaces, shared=False)
        self.members = MemberNetworks(
            self.team, lambda spaces: PolicyNetwork(hyper, spaces, torso_of(hyper, spaces, hyper.hidden))
        )

    def forward(self, obs: Any) -> Any:
        """Returns the outputs of each member's policy, [k, members, outputs]."""
        return self.members(obs)

    def greedy(self, obs: Any, mask: torch.Tensor | None) -> torch.Tensor:
        """Returns the most probable actions [k, members, ...]."""
        return torch.stack([distribution.mode(*outputs) for distribution, *outputs in self.each(obs, mask)], 1)

    def each(self, obs: Any, mask: torch.Tensor | None) -> Iterator[tuple[Any, torch.Tensor, torch.Tensor | None]]:
        """Yields each member's distribution, outputs [k, outputs] and allowed choices."""
        outputs = self(obs)
        allowed = self.team.allowed(mask, outputs) if self.team.choices else None
        for member, network in enumerate(self.members.networks):
            yield network.distribution, outputs[:, member], None if allowed is None else allowed[:, member]


class TeamPolicyValue(nn.Module):
    """Holds the members' policies, with which actors act, and a critic that sees the team's whole observation."""

    def __init__(self, hyper: HAPPO, spaces: Spaces) -> None:
        super().__init__()
        self.acting = TeamPolicies(hyper, spaces)
        self.critic = ValueNetwork(hyper, torso_of(hyper, spaces, hyper.hidden))


class HAPPOTrainer(ClippedPolicyTrainer):
    """Trains the members' policies on each batch, one after another in a new order, and then the critic."""

    saved: ClassVar[tuple[str, ...]] = (*ClippedPolicyTrainer.saved, "members")

    def __init__(self, hyper: HAPPO, model: TeamPolicyValue) -> None:
        super().__init__(hyper, model, trained=model.critic)
        self.team = model.acting.team
        self.members = [self.adam(network.parameters()) for network in model.acting.members.networks]

    def update(self, batch: Any) -> Update:
        """Makes each member's steps on one batch, then the critic's (Kuba et al. 2022, Algorithm 4).

        A member's advantages are the batch's advantages times the probability ratios of the members that learned before
        it. Returns the metrics of ClippedPolicyTrainer.update.
        """
        self.follow_schedules(batch)
        with torch.no_grad():
            alive = self.team.alive(batch.obs)
            old = torch.stack([self.judged(member, batch)[0] for member in range(self.team.count)], 1)
            value = faster(self.model.critic)(batch.obs)
        rows, explained = self.prepare(batch, Evaluated((old * alive).sum(1), value, value))
        advantage, steps = rows.advantage, []
        for member in torch.randperm(self.team.count, generator=self.generator).tolist():
            of_member = rows._replace(log_prob=old[:, member], advantage=advantage)
            steps += self._passes(of_member, partial(self._member_step, member, bonus=batch.numbers[BONUS]), kl=2)
            with torch.no_grad():
                ratio = torch.exp(self.judged(member, batch)[0] - old[:, member])
            advantage = advantage * torch.where(alive[:, member] > 0, ratio, 1.0)
        of_critic = [self._critic_step(part) for _ in range(self.hyper.epochs) for part in self.minibatches(rows)]
        policy_loss, entropy, kl, clipped, grad_norm = torch.stack(steps).mean(0)
        value_loss = torch.stack(of_critic).mean()
        loss = policy_loss + self.hyper.value_coefficient * value_loss - batch.numbers[BONUS] * entropy
        means = dict(zip(METRICS, (loss, policy_loss, value_loss, entropy, kl, clipped, grad_norm), strict=True))
        return Update({**means, "explained_variance": explained}, updates=len(steps) + len(of_critic))

    def judged(self, member: int, rows: Any) -> Any:
        """Returns the log-probabilities [B] of a member's actions, and the entropies [B] of its policy."""
        policies = self.model.acting
        network, group = policies.members.networks[member], self.team.groups[member]
        output = faster(network)(policies.members.seen(group, rows.obs))
        allowed = self.team.allowed(self.team.spaces.mask_in(rows.obs), output[:, None]) if self.team.choices else None
        extras = {name: extra[:, member] for name, extra in rows.extras.items() if extra.ndim > 1}
        of_member = SimpleNamespace(action=rows.action[:, member], extras=extras)
        return network.distribution(output, None if allowed is None else allowed[:, member], of_member)

    def _member_step(self, member: int, rows: Minibatch, bonus: float) -> torch.Tensor:
        """Makes one gradient step of a member; returns policy_loss, entropy, approx_kl, clip_fraction and grad_norm."""
        alive = self.team.alive(rows.obs)[:, member]
        share = alive / alive.sum().clamp(min=1.0)
        log_prob, entropy = self.judged(member, rows)
        loss, kl, clipped = self._policy_loss(log_prob, rows, lambda values: (values * share).sum())
        mean_entropy = (entropy * share).sum()
        grad_norm = self.descend(self.members[member], loss - bonus * mean_entropy)
        with torch.no_grad():
            return torch.stack([loss, mean_entropy, kl, clipped, grad_norm])

    def _critic_step(self, rows: Minibatch) -> torch.Tensor:
        """Makes one gradient step of the critic; returns its loss."""
        loss = self._value_loss(faster(self.model.critic)(rows.obs), rows)
        self.descend(self.optimizer, self.hyper.value_coefficient * loss)
        return loss.detach()
