"""R2D2: Q-learning with memory, on windows of episodes whose recurrent state was stored and is burnt in.

Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning", ICLR 2019
(openreview.net/forum?id=r1lyTjAqYX).
"""

import dataclasses
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import torch
from torch.nn import functional

from ..declared import Number, Whole
from ..interfaces import Action, ReplaySource, Update
from ..observations import each
from ..spaces import Spaces
from ..spec import Sequence, TransitionSpec
from .base import AtLeast1, LearningRate, Positive, Request, Units, raw_reward
from .fast import faster
from .networks.qnetwork import QNetwork, best
from .networks.recurrent import Cell, RecurrentTorso, State, Stepped, Windows, rescaled, restored, state_fields
from .value_based import QLearning, QTrainer, random_actions

OF_STEPS = ("obs", "next_obs", "action", "reward", "discount", "valid", "mask")


@dataclass(frozen=True)
class WindowedQLearning(QLearning):
    """Hyperparameters of Q-learning with memory, whose batches are of `learner.batch_size` windows.

    So each update reads `length` times as many transitions as DQN's: ask for fewer updates.
    """

    units: Units = 64
    """Units of the recurrent layer, at least 1; rows store its state at intervals."""
    length: AtLeast1 = 40
    """Transitions of a window, those of its burn-in included."""
    burn_in: Annotated[int, Whole(0)] = 20
    """First transitions of a window that only warm up its stored state; less than length. A window that begins its
    episode has none."""
    period: Annotated[int, Whole(2)] = 20
    """Transitions from the start of one window to that of the next, at least 2; with length - burn_in, each transition
    is trained on once in a pass."""
    n_step: AtLeast1 = 5
    """Rewards in each return, at least 1, in place of `learner.n_step`; returns end with their window."""
    eta: Annotated[float, Number(0, 1)] = 0.9
    """A window's priority is eta times its largest error plus 1 - eta times its mean one; from 0 to 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.burn_in >= self.length:
            raise ValueError(f"{self.owner} burn_in: expected less than the length {self.length}, got {self.burn_in}")

    def source(self, chosen: ReplaySource) -> ReplaySource:
        """Windows of single steps, prioritized if that was chosen; the trainer makes the returns."""
        window = Sequence(self.length, self.burn_in, self.period)
        return dataclasses.replace(chosen, n_step=1, sequence=window)

    def window_priority(self, off: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """The priorities [B] of windows with the absolute errors `off` [B, T], 0 where `counts` [B, T] is.

        eta times the largest one plus 1 - eta times the mean (Kapturowski et al. 2019, section 2.3).
        """
        mean = off.sum(1) / counts.sum(1).clamp(min=1.0)
        return self.eta * off.amax(1) + (1.0 - self.eta) * mean


@dataclass(frozen=True)
class R2D2(WindowedQLearning):
    """Hyperparameters of R2D2; see WindowedQLearning."""

    cell: Cell = "lstm"
    """The recurrent layer before the last of the layers `hidden`: an lstm, a gru, which on a CPU takes twice the time,
    or your own, a function of inputs and units or its module:name; docs/guides/own-network.md says more."""
    learning_rate: LearningRate = 5e-4
    """Adam's step size, above 0; a number or a schedule."""
    rescale: bool = True
    """Learn values on the scale of `rescaled`, on which large returns differ less."""
    reward_scale: Positive = 1.0
    """Factor on rewards, above 0; errors beyond 1 count linearly."""

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """A row, and the recurrent state in each `period`-th row of an episode. Raises ValueError: see JointActions."""
        state = state_fields(self, spaces, self.period)
        return dataclasses.replace(super().transition(spaces), extras=state)

    def make_model(self, spaces: Spaces) -> "R2D2Network":
        return R2D2Network(self, spaces)

    def chosen(self, model: Any, obs: Any, request: Request) -> Action:
        """Epsilon-greedy actions; `explore` holds "epsilon"."""
        values, after = faster(model)(obs, request.state)
        allowed = model.actions.allowed(request.mask)
        random = random_actions(len(values), model.actions.count, allowed, request)
        action = model.actions.decode(np.where(*random, best(values, allowed).cpu().numpy()))
        return Action(action, state=model.torso.acted(after, action))

    def greedy(self, model: Any, obs: Any, state: State | None, mask: torch.Tensor | None) -> Any:
        values, after = faster(model)(obs, state)
        action = model.actions.decoded(best(values, model.actions.allowed(mask)))
        return action, model.torso.acted(after, action)

    def make_trainer(self, model: Any) -> "R2D2Trainer":
        return R2D2Trainer(self, model)


class R2D2Network(QNetwork):
    """Observations and a state to the values of joint actions, rescaled, in units of reward_scale times the reward."""

    def __init__(self, hyper: Any, spaces: Spaces) -> None:
        super().__init__(hyper, spaces, RecurrentTorso(hyper, spaces, hyper.hidden[:-1]))

    def forward(  # type: ignore[override]
        self, obs: Any, state: State | None, windows: Windows | None = None
    ) -> Stepped:
        """The values [k, actions] of k observations [k, ...], and the state after them; see RecurrentTorso.

        With `windows`, the values are [B, N, actions], of observations [B, N, ...] and the state [B, ...] before them.
        """
        if windows is None:
            features, after = self.torso(obs, state)
        else:
            assert state is not None
            flat = each(lambda part: part.flatten(0, 1), obs)
            before = self.torso.before_each(windows.action, windows.reward, state)
            features, after = self.torso(flat, before, windows.unroll)
        return self.head(features), after


class WindowTrainer(QTrainer):
    """Base of trainers whose batches are of windows."""

    def step_on_windows(self, batch: Any, taken: torch.Tensor, targets: torch.Tensor) -> Update:
        """One step of values [B, T] towards targets [B, T], of the transitions for which `mask` is True.

        The loss is the mean Huber loss over these, each weighted by its window's `weight`; see `window_priority`.
        """
        counts = batch.mask.float()
        errors = functional.huber_loss(taken, targets, reduction="none") * counts
        number = counts.sum().clamp(min=1.0)
        loss = (batch.weight[:, None] * errors).sum() / number
        grad_norm = self.step(loss)
        taken = taken.detach()
        q_mean = (self.unscaled(taken) * counts).sum() / (number * self.hyper.reward_scale)
        metrics = {"loss": loss.detach(), "q_mean": q_mean, "grad_norm": grad_norm}
        return Update(metrics, priority=self.hyper.window_priority((targets - taken).abs() * counts, counts))

    def unscaled(self, values: torch.Tensor) -> torch.Tensor:
        """Values in units of reward_scale times the reward."""
        return values


class R2D2Trainer(WindowTrainer):
    """Q-learning on windows towards a target network, with the Huber loss."""

    def update(self, batch: Any) -> Update:
        """One step on a batch of B windows of T transitions, of which those count where `mask` is True.

        The batch is as for DQN with an axis T after B, and has `mask` bool [B, T], `valid`, and in `extras` the state.
        """
        self.follow_schedules(batch)
        batch = shortened(batch)
        window = window_of(batch, self.hyper.burn_in)
        values, _ = faster(self.network)(*window)
        action = self.network.actions.encode(batch.action.flatten(0, 1)).view(batch.reward.shape)
        taken = values[:, :-1].gather(2, action[..., None]).squeeze(2)
        return self.step_on_windows(batch, taken, self.targets(batch, window, values.detach()))

    def unscaled(self, values: torch.Tensor) -> torch.Tensor:
        return restored(values) if self.hyper.rescale else values

    @torch.no_grad()
    def targets(self, batch: Any, window: tuple[Any, ...], values: torch.Tensor) -> torch.Tensor:
        """The returns that the target network's values complete, float32 [B, T]; rescaled as the network's values are.

        The network returned `values` [B, T + 1, actions], by which `double` chooses, for the arguments `window`.
        """
        slow, _ = faster(self.target)(*window)
        allowed = self.network.allowed(each(lambda part: part.flatten(0, 1), window[0]))
        chooser = (values if self.hyper.double else slow).flatten(0, 1)
        action = best(chooser, allowed).view(slow.shape[:2])
        value = slow.gather(2, action[..., None]).squeeze(2)
        reward, held = self.hyper.reward_scale * batch.reward, batch.valid[..., -1]
        returns = window_returns(reward, batch.discount, self.unscaled(value), held, self.hyper.n_step)
        return rescaled(returns) if self.hyper.rescale else returns


def window_of(batch: Any, burn_in: int) -> tuple[Any, State, Windows]:
    """A network's arguments for a batch: the first observation of each window, and the next one of each step."""
    obs = each(lambda obs, after: torch.cat([obs[:, :1], after], 1), batch.obs, batch.next_obs)
    return obs, batch.extras, Windows(batch.action, raw_reward(batch), burn_in, batch.mask[:, 0])


def window_returns(
    reward: torch.Tensor, discount: torch.Tensor, value: torch.Tensor, held: torch.Tensor, n_step: int
) -> torch.Tensor:
    """The n-step returns [B, T] within windows; shorter where the episode or the window ends before.

    Args:
        reward: [B, T], of each step.
        discount: [B, T], of one step; 0 where the episode terminated.
        value: [B, T + 1], of each observation, the last one's after the window's last step.
        held: bool [B, T], the steps that the window has; True up to its end.
        n_step: at least 1.
    """
    after = value[:, 1:]
    continues = torch.cat([held[:, 1:], torch.zeros_like(held[:, :1])], 1)
    returns = reward + discount * after
    for _ in range(n_step - 1):
        later = torch.cat([returns[:, 1:], after[:, -1:]], 1)
        returns = reward + discount * torch.where(continues, later, after)
    return returns


def shortened(batch: Any) -> SimpleNamespace:
    """The windows without the last places, if none of them is filled in any window."""
    steps = int(batch.valid[..., -1].any(0).sum())
    fields = {name: each(lambda values: values[:, :steps], getattr(batch, name)) for name in OF_STEPS}
    raw = raw_reward(batch)[:, :steps]
    return SimpleNamespace(**fields, raw_reward=raw, weight=batch.weight, extras=batch.extras)
