"""R2D2: Q-learning with memory, on windows of episodes whose recurrent state was stored and is burnt in.

Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning", ICLR 2019
(openreview.net/forum?id=r1lyTjAqYX).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch.nn import functional

from ..checks import check_whole
from ..interfaces import Action, Algorithm, ReplaySource, Update
from ..spaces import Spaces
from ..spec import Sequence, TransitionSpec
from .exploration import explored
from .head import Head
from .hyperparameters import check_hyperparameters
from .joint import JointActions
from .network import Operation, call_of
from .qnetwork import QNetwork, best
from .recurrent import State, unroll_burnt_in
from .recurrent_torso import RecurrentTorso, check_memory, flat, state_fields
from .rescaling import rescaled, restored
from .target import TargetTrainer

__all__ = ["R2D2", "R2D2Network", "R2D2Trainer", "window_returns"]

OF_STEPS = ("obs", "next_obs", "action", "reward", "discount", "valid", "mask")


@dataclass(frozen=True)
class R2D2(Algorithm):
    """Hyperparameters of R2D2.

    A batch is of `learner.batch_size` windows, so each update reads `length` times as many transitions as DQN's: ask
    for fewer updates.
    """

    learning_rate: float = 5e-4
    """Adam's step size, above 0."""
    hidden: tuple[int, ...] = (128, 64)
    """Units in each fully connected layer, at least one layer; the recurrent layer lies before the last."""
    cell: Literal["lstm", "gru"] = "lstm"
    """The recurrent layer: an LSTM, or a GRU, which on a CPU takes twice the time."""
    units: int = 64
    """Units of the recurrent layer, at least 1; rows store its state at intervals."""
    length: int = 40
    """Transitions of a window, those of its burn-in included."""
    burn_in: int = 20
    """First transitions of a window that only warm up its stored state; less than length. A window that begins its
    episode has none."""
    period: int = 20
    """Transitions from the start of one window to that of the next, at least 2; with length - burn_in, each transition
    is trained on once in a pass."""
    n_step: int = 5
    """Rewards in each return, at least 1, in place of `learner.n_step`; returns end with their window."""
    double: bool = True
    """Choose the next action by the network, evaluate it by the target network (van Hasselt et al. 2016)."""
    dueling: bool = True
    """Estimate the state's value and the actions' advantages separately (Wang et al. 2016)."""
    rescale: bool = True
    """Learn values on the scale of rescaling.py, on which large returns differ less."""
    eta: float = 0.9
    """A window's priority is eta times its largest error plus 1 - eta times its mean one; from 0 to 1."""
    tau: float = 0.02
    """Fraction of the network mixed into the target after each update, in (0, 1]; used if target_update_freq is 0."""
    target_update_freq: int = 0
    """Updates between copies of the network to the target; 0 moves the target by tau after each update."""
    max_grad_norm: float = 10.0
    """Larger gradients are scaled down to this norm; above 0."""
    reward_scale: float = 1.0
    """Factor on rewards, above 0; errors beyond 1 count linearly."""

    def __post_init__(self) -> None:
        check_hyperparameters(self)
        check_memory("R2D2", self.cell, self.units)
        for name, least in {"length": 1, "burn_in": 0, "period": 2, "n_step": 1}.items():
            check_whole(f"R2D2 {name}", getattr(self, name), least)
        if self.burn_in >= self.length:
            raise ValueError(f"R2D2 burn_in: expected less than the length {self.length}, got {self.burn_in}")
        if isinstance(self.eta, bool) or not isinstance(self.eta, (int, float)) or not 0 <= self.eta <= 1:
            raise ValueError(f"R2D2 eta: expected a number from 0 to 1, got {self.eta!r}")

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """A row, and the recurrent state in each `period`-th row of an episode. Raises ValueError: see JointActions."""
        JointActions("R2D2", spaces.action)
        state = state_fields(spaces, self.cell, self.units, self.period)
        return dataclasses.replace(super().transition(spaces), extras=state)

    def source(self, chosen: ReplaySource) -> ReplaySource:
        """Windows of single steps, prioritized if that was chosen; the trainer makes the returns."""
        window = Sequence(self.length, self.burn_in, self.period)
        return dataclasses.replace(chosen, n_step=1, sequence=window)

    def make_model(self, spaces: Spaces) -> R2D2Network:
        """An untrained network. Raises ValueError: see JointActions."""
        return R2D2Network(self, spaces)

    def act(
        self,
        model: torch.nn.Module,
        obs: Any,
        *,
        explore: Mapping[str, Any] | None,
        state: Mapping[str, torch.Tensor] | None,
        mask: torch.Tensor | None,
        generator: np.random.Generator,
    ) -> Action:
        """Epsilon-greedy actions; `explore` holds "epsilon"."""
        network = cast(R2D2Network, model)
        with torch.inference_mode():
            values, after = network(obs, state)
            allowed = None if mask is None else network.actions.allowed(mask)
            action = network.actions.decode(explored(values, allowed, explore, generator))
            return Action(action, state=network.torso.acted(after, action))

    def make_trainer(self, model: torch.nn.Module) -> R2D2Trainer:
        """A trainer that updates `model` in place, on its device."""
        return R2D2Trainer(self, cast(R2D2Network, model))


class Windows(NamedTuple):
    """What happened in windows of N observations, beside these.

    Attributes:
        action, reward: [B, N - 1, ...], between the observations.
        burn_in, known: see `unroll_burnt_in`.
    """

    action: torch.Tensor
    reward: torch.Tensor
    burn_in: int
    known: torch.Tensor


class R2D2Network(QNetwork):
    """Observations and a state to the values of joint actions, rescaled, in units of reward_scale times the reward."""

    def __init__(self, hyper: R2D2, spaces: Spaces) -> None:
        super().__init__("R2D2", spaces)
        self.torso = RecurrentTorso(spaces, hyper.hidden[:-1], hyper.cell, hyper.units)
        self.head = Head(hyper.units, hyper.hidden[-1], self.actions.count, hyper.dueling)

    def forward(
        self, obs: Any, state: State | None, windows: Windows | None = None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The values [k, actions] of k observations [k, ...], and the state after them; see RecurrentTorso.

        With `windows`, the values are [B, N, actions], of observations [B, N, ...] and the state [B, ...] before them.
        """
        return self._by(self.torso, self.head, obs, state, windows)

    def operations(self) -> list[Operation]:
        return [partial(self._by, call_of(self.torso), call_of(self.head))]

    def _by(
        self, torso: Operation, head: Operation, obs: Any, state: State | None, windows: Windows | None = None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        if windows is None:
            features, after = torso(obs, state)
        else:
            assert state is not None
            before = self.torso.before_each(windows.action, windows.reward, state)
            features, after = torso(flat(obs), before, partial(_unrolled, windows))
        return head(features), after


class R2D2Trainer(TargetTrainer[R2D2Network]):
    """Q-learning on windows towards a target network, with the Huber loss."""

    def __init__(self, hyper: R2D2, network: R2D2Network) -> None:
        super().__init__(network, hyper)
        self.r2d2 = hyper

    def update(self, batch: Any) -> Update:
        """One step on a batch of B windows of T transitions, of which those count where `mask` is True.

        Args:
            batch: as for DQN with an axis T after B, and `mask` bool [B, T], `valid`, and in `extras` the state.

        Returns: the loss, the mean over these transitions, each weighted by its window's `weight`; q_mean, the mean
            value of their actions, in units of the reward; grad_norm, before clipping. A window's priority is eta times
            its largest absolute error plus 1 - eta times its mean one (Kapturowski et al. 2019, section 2.3).
        """
        batch = _shortened(batch)
        counts = batch.mask.float()
        window = self._window(batch)
        values, _ = self.network(*window)
        taken = values[:, :-1].gather(2, self._action(batch)[..., None]).squeeze(2)
        targets = self.targets(batch, window, values.detach())
        errors = functional.huber_loss(taken, targets, reduction="none") * counts
        number = counts.sum().clamp(min=1.0)
        loss = (batch.weight[:, None] * errors).sum() / number
        grad_norm = self.step(loss)
        taken = taken.detach()
        values_taken = restored(taken) if self.r2d2.rescale else taken
        q_mean = (values_taken * counts).sum() / (number * self.r2d2.reward_scale)
        off = (targets - taken).abs() * counts
        mean = off.sum(1) / counts.sum(1).clamp(min=1.0)
        priority = self.r2d2.eta * off.amax(1) + (1.0 - self.r2d2.eta) * mean
        return Update({"loss": loss.detach(), "q_mean": q_mean, "grad_norm": grad_norm}, priority=priority)

    @torch.no_grad()
    def targets(self, batch: Any, window: tuple[Any, ...], values: torch.Tensor) -> torch.Tensor:
        """The returns that the target network's values complete, float32 [B, T]; rescaled as the network's values are.

        Args:
            window: the network's arguments for the batch.
            values: [B, T + 1, actions] that it returned, by which `double` chooses.
        """
        slow, _ = self.target(*window)
        allowed = self.network.allowed(flat(window[0]))
        chooser = (values if self.r2d2.double else slow).flatten(0, 1)
        action = best(chooser, allowed).view(slow.shape[:2])
        value = slow.gather(2, action[..., None]).squeeze(2)
        if self.r2d2.rescale:
            value = restored(value)
        returns = window_returns(
            self.r2d2.reward_scale * batch.reward, batch.discount, value, batch.valid[..., -1], self.r2d2.n_step
        )
        return rescaled(returns) if self.r2d2.rescale else returns

    def _action(self, batch: Any) -> torch.Tensor:
        """The numbers int64 [B, T] of the joint actions."""
        return self.network.actions.encode(batch.action.flatten(0, 1)).view(batch.reward.shape)

    def _window(self, batch: Any) -> tuple[Any, ...]:
        """A network's arguments for a batch: the observations of its windows, and the one after the last."""
        obs = _with_last(batch.obs, batch.next_obs)
        return obs, batch.extras, Windows(batch.action, batch.reward, self.r2d2.burn_in, batch.mask[:, 0])


def _unrolled(
    windows: Windows, core: Operation, inputs: torch.Tensor, state: State
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    rows, steps = windows.reward.shape
    return unroll_burnt_in(core, inputs.view(rows, steps + 1, -1), state, windows.burn_in, windows.known)


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


def _shortened(batch: Any) -> SimpleNamespace:
    """The windows without the last places, if none of them is filled in any window."""
    steps = int(batch.valid[..., -1].any(0).sum())
    fields = {name: _first_steps(getattr(batch, name), steps) for name in OF_STEPS}
    return SimpleNamespace(**fields, weight=batch.weight, extras=batch.extras)


def _first_steps(values: Any, steps: int) -> Any:
    if isinstance(values, Mapping):
        return {name: one[:, :steps] for name, one in values.items()}
    return values[:, :steps]


def _with_last(obs: Any, next_obs: Any) -> Any:
    """The observations [B, T + 1, ...] of windows: the first, and the next one of each step."""
    if isinstance(obs, Mapping):
        return {name: torch.cat([one[:, :1], next_obs[name]], 1) for name, one in obs.items()}
    return torch.cat([obs[:, :1], next_obs], 1)
