"""Bases of actor-critic algorithms that explore by noise, and of their trainers, for one agent or a team.

A deterministic policy learns to maximize the value of its actions, and learns less often than its critics (Fujimoto et
al. 2018, arXiv:1802.09477). In a team, each member acts on its own observation, and critics see all observations and
actions (Lowe et al. 2017, arXiv:1706.02275). Discrete actions become one-hot vectors, drawn with gradients by the
Gumbel-softmax (Jang et al. 2017, arXiv:1611.01144).
"""

import copy
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import nn

from ...compiled import noisy_actions
from ...interfaces import MEMBER_REWARDS, Action, Algorithm, ReplaySource, Update
from ...spaces import Spaces
from ...spec import Field, TransitionSpec
from ..networks.actions import BoxActions, array_of
from ..networks.actor_critic import ActorCritic, DeterministicPolicy, continuous_actor_critic
from ..networks.recurrent import State, with_state
from ..networks.stand_in import faster
from ..networks.teams import MemberCritics, OneHotActions, TeamCritics, TeamPolicy, TeamSpaces, team_actions
from ..networks.torso import rows_in
from .adam import ClippedAdam
from .hyperparameters import ActRequest, AtLeast0, AtLeast1, Hyperparameters, Layers, LearningRate, Positive, Share
from .trainers import TargetTrainer, seeded_generator
from .windows import Windowed, WindowRows


@dataclass(frozen=True)
class ActorCriticHyperparameters(Hyperparameters):
    """Hyperparameters of all algorithms with a policy and critics."""

    learning_rate: LearningRate = 1e-3
    """Adam's step size, for the policy, the critics and a learned temperature, above 0, usually 1e-4 to 1e-3; a number
    or a schedule."""
    hidden: Layers = (64, 64)
    """Units in each fully connected layer of the policy and of each critic, at least one layer; usually 64 to 256."""
    tau: Share = 0.01
    """Fraction of the networks mixed into their targets when these move, in (0, 1]; usually 0.005 to 0.02."""
    max_grad_norm: Positive = 10.0
    """Larger gradients are scaled down to this norm; above 0, usually 0.5 to 10."""
    reward_scale: Positive = 0.1
    """Factor on rewards, above 0; usually 0.01 to 1."""


@dataclass(frozen=True)
class NoisyPolicy(Windowed, ActorCriticHyperparameters):
    """Hyperparameters for Box actions: actors act uniformly until the first update, then add noise to their actions.

    With memory (Ni et al. 2022, "Recurrent model-free RL can be a strong baseline for many POMDPs", arXiv:2110.05038),
    policy and critics have a recurrent layer each. Updates are the same, but networks see each row with its history.
    """

    n_step: AtLeast1 = 1
    """With memory: rewards in each return, at least 1, in place of `learner.n_step`; returns end with their window."""

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """Returns a row's fields; see `Windowed.transition`. Raises ValueError as BoxActions does."""
        BoxActions(self.owner, spaces.action)
        return super().transition(spaces)

    def schedules(self) -> Mapping[str, Any]:
        """Returns a schedule by which actors draw uniformly until the first update, as in the papers of TD3 and SAC."""
        return {"epsilon": "linear(1, 0, 1, of=updates)", **super().schedules()}

    def chosen(self, model: Any, obs: Any, request: ActRequest) -> Action:
        """Returns the policy's actions plus noise or, with probability `explore["epsilon"]`, uniform actions.

        The generator draws the same numbers for every epsilon. Without memory, the network runs only if some action is
        not uniform.
        """
        explore, actions = request.explore, model.actions
        stepped = None if self.cell is None else faster(model).stepped(obs, request.state)

        def noisy(noise: Any) -> Any:
            distribution = faster(model)(obs) if stepped is None else stepped[0]
            return array_of(model.noisy(distribution, torch.from_numpy(noise).to(actions.reach.device), explore))

        action = noisy_actions(rows_in(obs), actions, noisy, explore["epsilon"], request.generator)
        return Action(action, state=stepped and model.acted(stepped[1], action))

    def greedy(self, model: Any, obs: Any, state: State | None, mask: torch.Tensor | None) -> Any:
        if self.cell is None:
            return super().greedy(model, obs, state, mask)
        distribution, after = faster(model).stepped(obs, state, mask=mask)
        action = model.actions.decoded(model.mode(distribution))
        return action, model.acted(after, action)


@dataclass(frozen=True)
class DelayedPolicy(NoisyPolicy):
    """Hyperparameters of deterministic policies; the unit of noise is half the range of an action's component."""

    noise: AtLeast0 = 0.1
    """Standard deviation of the noise of exploration, at least 0, usually 0.1 to 0.3; the schedule `noise` of
    exploration.schedules, if there is one, replaces it."""
    target_noise: AtLeast0 = 0.2
    """Standard deviation of the noise on the target policy's actions, at least 0."""
    target_noise_clip: AtLeast0 = 0.5
    """The noise on the target policy's actions is clipped to this absolute size; at least 0."""
    policy_delay: AtLeast1 = 2
    """Updates of the critics for each update of the policy and the targets, d in the paper, at least 1."""

    def schedules(self) -> Mapping[str, Any]:
        return {**super().schedules(), "noise": self.noise}

    def make_model(self, spaces: Spaces) -> Any:
        return continuous_actor_critic(self, spaces, DeterministicPolicy)


@dataclass(frozen=True)
class TeamDelayedPolicy(DelayedPolicy):
    """Hyperparameters of a team's policies. Only Box actions get noise; Discrete actions are drawn from the policy."""

    critics: ClassVar[int]  # networks for each value; the smallest of their results counts
    wants_team = True

    shared: bool = True
    """Members with equal spaces share a policy network, which also sees which member it acts for; otherwise each has
    its own."""
    rewards: Literal["sum", "own"] = "sum"
    """With "sum", critics of the team learn from the sum of the members' rewards. With "own", as published, each
    member's own critics learn from its own reward, so members may compete; returns are then of one step, whatever
    `learner.n_step` is. A member that leaves before its team ends has no later value, even if it was truncated."""

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """Returns a row's fields; if members learn from their own rewards, rows also store these.

        Raises: ValueError: the agent is no team, or BoxActions refuses the action space.
        """
        team = TeamSpaces(self.owner, spaces, self.shared)
        team_actions(self.owner, team)
        extras = {} if self.rewards == "sum" else {MEMBER_REWARDS: Field((team.count,))}
        return replace(Algorithm.transition(self, spaces), extras=with_state(self, extras, self.state_fields(spaces)))

    def source(self, chosen: ReplaySource) -> ReplaySource:
        """Returns NoisyPolicy's source, but with one-step returns if members learn from their own rewards.

        Samplers cannot sum members' rewards over several steps.
        """
        chosen = super().source(chosen)
        return chosen if self.rewards == "sum" else replace(chosen, n_step=1)

    def make_model(self, spaces: Spaces) -> ActorCritic:
        policy = TeamPolicy(self, spaces)
        return ActorCritic(self, policy, (TeamCritics if self.rewards == "sum" else MemberCritics)(self, policy))

    def chosen(self, model: Any, obs: Any, request: ActRequest) -> Action:
        """Returns Box actions as NoisyPolicy does; draws Discrete actions from the members' policies.

        With probability epsilon, Discrete actions are uniform among the allowed actions instead.
        """
        if not isinstance(model.actions, OneHotActions):
            return super().chosen(model, obs, request)
        rows, size = rows_in(obs), model.actions.size
        uniform = request.generator.random((rows, 1)) < np.reshape(request.explore["epsilon"], (-1, 1))
        gumbel = request.generator.gumbel(size=(rows, size))
        stepped = (faster(model)(obs), None) if self.cell is None else faster(model).stepped(obs, request.state)
        outputs, after = stepped[0].cpu().numpy(), stepped[1]
        action = model.actions.decode(np.where(uniform & (outputs > -np.inf), 0.0, outputs) + gumbel)
        return Action(action, state=after and model.acted(after, action))

    def make_trainer(self, model: Any) -> "TeamDelayedPolicyTrainer":
        return TeamDelayedPolicyTrainer(self, model)


class ActorCriticTrainer(TargetTrainer):
    """Holds the optimizers of a model's policy and critics, and a target copy of `source` (None: of the model)."""

    saved: ClassVar[tuple[str, ...]] = ("target", "policy_optimizer", "critics_optimizer", "updates", "generator")

    def __init__(self, hyper: ActorCriticHyperparameters, model: Any, source: nn.Module | None = None) -> None:
        super().__init__(hyper, model if source is None else source)
        self.policy, self.critics = model.acting, model.critics
        self.policy_optimizer = self.adam(self.policy.parameters())
        self.critics_optimizer = self.adam(self.critics.parameters())
        self.generator = seeded_generator(self.device)

    def descend(self, optimizer: ClippedAdam, loss: torch.Tensor) -> torch.Tensor:
        """Makes AdamTrainer's step with gradients of this optimizer's parameters only, which takes 15 us more."""
        optimizer.zero_grad()
        torch.autograd.backward(loss, inputs=[tensor for tensor in optimizer.tensors if tensor.requires_grad])
        return optimizer.clip_and_step(self.hyper.max_grad_norm)


class NoisyPolicyTrainer(ActorCriticTrainer):
    """Makes steps on batches of rows; with memory, the rows are the windows' transitions, with their histories."""

    def update(self, batch: Any) -> Update:
        """Makes one `step` on B transitions or, with memory, on the WindowRows of B windows."""
        self.follow_schedules(batch)
        if self.hyper.cell is None:
            return self.step(batch)
        rows = WindowRows(self.hyper, batch)
        return rows.of_windows(self.step(rows))

    @abstractmethod
    def step(self, batch: Any) -> Update:
        """Makes one step on a batch of B transitions."""

    def improve_critics(self, batch: Any, targets: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Makes one step of the critics towards the targets [..., B], on squared errors weighted by `batch.weight`.

        Returns the metrics and the rows' priorities [..., B]: the mean over critics of the absolute error.
        """
        values = faster(self.critics)(batch.obs, self.policy.actions.encode(batch.action))
        errors = targets - values
        loss = (batch.weight * errors.square()).mean(-1).sum()
        grad_norm = self.descend(self.critics_optimizer, loss)
        return self.metrics(loss, values, grad_norm), errors.detach().abs().mean(0)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self.device, generator=self.generator)


class DelayedPolicyTrainer(NoisyPolicyTrainer):
    """Trains the critics at each update, and the policy at every `policy_delay`-th; both have target copies."""

    def __init__(self, hyper: Any, model: Any) -> None:
        super().__init__(hyper, model)
        self.period = hyper.policy_delay

    def step(self, batch: Any) -> Update:
        """Makes one step on a batch of B transitions (Fujimoto et al. 2018, Algorithm 1); see `improve_critics`."""
        metrics, priority = self.improve_critics(batch, self.targets(batch))
        self.updates += 1
        if self.updates % self.period == 0:
            loss = self.policy_loss(batch, *self.policy_actions(batch))
            self.descend(self.policy_optimizer, loss)
            metrics["policy_loss"] = loss.detach()
            self.soft_update(self.hyper.tau)
        return Update(metrics, priority)

    def policy_actions(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the policy's actions [B, size] in [-1, 1] and the first critic's values [1, B], with gradients."""
        action = faster(self.policy)(batch.obs)
        return action, faster(self.critics)(batch.obs, action, count=1)

    def policy_loss(self, batch: Any, action: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Returns the policy's loss, given its actions [B, size] in [-1, 1] and the first critic's values [1, B]."""
        return -value.mean()

    @torch.no_grad()
    def targets(self, batch: Any) -> torch.Tensor:
        """Returns scaled rewards plus discounted next values, float32 [..., B].

        A next value is the minimum over the target critics of the value of the smoothed next action.
        """
        values = faster(self.target.critics)(batch.next_obs, self.smoothed(batch.next_obs))
        return self.bootstrapped(batch, values.amin(0))

    def smoothed(self, obs: Any) -> torch.Tensor:
        """Returns the target policy's actions plus clipped noise, [B, size] in [-1, 1]."""
        action: torch.Tensor = faster(self.target.acting)(obs)
        clip = self.hyper.target_noise_clip
        noise = (self.hyper.target_noise * self.normal(*action.shape)).clamp_(-clip, clip)
        return action.add(noise).clamp_(-1.0, 1.0)


class TeamDelayedPolicyTrainer(DelayedPolicyTrainer):
    """Makes TD3's steps. A member's policy gets gradients through its own action; other actions are the batch's."""

    def step(self, batch: Any) -> Update:
        """Makes DelayedPolicyTrainer's step.

        With members' own rewards, a row's priority is the mean of the members' errors; a dead member's is 0.
        """
        if self.hyper.rewards == "sum":
            return super().step(batch)
        team, batch = self.policy.team, copy.copy(batch)
        batch.reward = batch.extras[MEMBER_REWARDS].T
        batch.discount = batch.discount * team.alive(batch.next_obs).T
        batch.weight = batch.weight * (alive := team.alive(batch.obs).T)
        update = super().step(batch)
        assert update.priority is not None
        return replace(update, priority=(update.priority * alive).mean(0))

    def policy_actions(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns all members' new actions [B, size], and the values [members, B] of each member's own new action.

        The other members' actions come from the rows (Lowe et al. 2017, equation 6). A dead member gets no gradient.
        """
        action = self.policy.drawn(faster(self.policy)(batch.obs), self.generator)
        in_rows = self.policy.actions.encode(batch.action)
        anew, others = (each.reshape(len(each), self.policy.team.count, -1) for each in (action, in_rows))
        acts = torch.eye(anew.shape[1], dtype=torch.bool, device=anew.device)[:, None, :, None]
        return action, faster(self.critics).of_each(batch.obs, torch.where(acts, anew, others).flatten(2))

    def smoothed(self, obs: Any) -> torch.Tensor:
        """Returns Box actions as DelayedPolicyTrainer does; draws Discrete actions from the target policy."""
        if not self.policy.team.choices:
            return super().smoothed(obs)
        policy = self.target.acting
        drawn: torch.Tensor = policy.drawn(faster(policy)(obs), self.generator)
        return drawn
