"""PPO with memory: a policy and its critic on one recurrent layer, trained on windows of consecutive transitions.

See ppo.py. Each row stores the state that its actor had, with which windows begin (Kapturowski et al. 2019, section 3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import nn

from ..checks import check_whole
from ..interfaces import PREVIOUS_REWARD, Action, Update
from ..spaces import Spaces
from ..spec import TransitionSpec
from .network import Operation, call_of
from .policy_value import ACTIVATIONS, PolicyNetwork, initialize
from .ppo import PPO, PPOTrainer, Rows, taken
from .recurrent import State
from .recurrent_torso import RecurrentTorso, Unroll, check_memory, state_fields

__all__ = ["RecurrentPPO", "RecurrentPPOTrainer", "RecurrentPolicyValue", "first_rows", "windows_of"]

FIRST = "first"  # among a batch's extras, bool [B]: the rows with which windows begin


@dataclass(frozen=True)
class RecurrentPPO(PPO):
    """Hyperparameters of PPO, and of the recurrent layer that follows on the layers `hidden`.

    The policy and the critic have all layers but the last in common.
    """

    cell: Literal["lstm", "gru"] = "lstm"
    """The recurrent layer: an LSTM, or a GRU, which on a CPU takes twice the time."""
    units: int = 64
    """Units of the recurrent layer, at least 1; rows store its state."""
    unroll: int = 16
    """Longest window, at least 1: transitions through which gradients reach back. Minibatches are of whole windows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_memory("RecurrentPPO", self.cell, self.units)
        check_whole("RecurrentPPO unroll", self.unroll)

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """PPO's row, with the recurrent state. Raises ValueError: see `distribution_of`."""
        spec = super().transition(spaces)
        return dataclasses.replace(spec, extras={**spec.extras, **state_fields(spaces, self.cell, self.units, 1)})

    def make_model(self, spaces: Spaces) -> Any:
        """An untrained model."""
        return RecurrentPolicyValue(self, spaces)

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
        """Actions drawn from the policy; if greedy, the most probable ones."""
        policy = cast(RecurrentPolicy, model)
        torso = cast(RecurrentTorso, policy.torso)
        with torch.inference_mode():
            output, _, after = policy(obs, state)
            chosen = self.chosen(policy, output, explore, mask, generator)
            return chosen._replace(state=torso.acted(after, chosen.action))

    def make_trainer(self, model: torch.nn.Module) -> PPOTrainer:
        """A trainer that updates `model` in place, on its device."""
        return RecurrentPPOTrainer(self, cast(RecurrentPolicyValue, model))


class RecurrentPolicy(PolicyNetwork):
    """A policy whose torso is recurrent."""

    def forward(  # type: ignore[override]
        self, obs: Any, state: State | None, unroll: Unroll | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """The outputs, the features by which they are made, and the state after them; see RecurrentTorso."""
        return self._by(self.torso, self.head, obs, state, unroll)

    def operations(self) -> list[Operation]:
        return [partial(self._by, call_of(self.torso), call_of(self.head))]

    def _by(
        self, torso: Operation, head: Operation, obs: Any, state: State | None, unroll: Unroll | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        features, after = torso(obs, state, unroll)
        return head(features), features, after


class RecurrentPolicyValue(nn.Module):
    """A policy with memory, which is the part that acts, and beside its head that of the critic."""

    def __init__(self, hyper: RecurrentPPO, spaces: Spaces) -> None:
        super().__init__()
        torso = RecurrentTorso(spaces, hyper.hidden, hyper.cell, hyper.units, ACTIVATIONS[hyper.activation])
        self.acting = RecurrentPolicy("PPO", spaces, torso)
        self._state = torso.core.parts  # of the recurrent layer, among the extras of rows
        self.critic = nn.Linear(hyper.units, 1)
        initialize(self.critic, 1.0)

    def forward(self, obs: Any, state: State, first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The policy's outputs [B, outputs] and the values [B] for windows of observations, one after another.

        Args:
            obs: [B, ...].
            state: before each observation, by name, each [B, ...]; each window begins with that of its first one.
            first: bool [B], the observations with which windows begin.
        """
        rows, held = windows_of(first)
        begins = rows[:, 0]

        def unroll(core: Operation, inputs: torch.Tensor, state: State) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            features, after = core(inputs[rows], {name: state[name][begins] for name in self._state})
            return features[held], after

        output, features, _ = self.acting(obs, state, unroll)
        return output, self.critic(features).squeeze(1)


class RecurrentPPOTrainer(PPOTrainer):
    """PPO's passes over each batch, in minibatches of windows."""

    model: Any  # a RecurrentPolicyValue

    def __init__(self, hyper: RecurrentPPO, model: RecurrentPolicyValue) -> None:
        super().__init__(hyper, cast(Any, model))
        self._unroll = hyper.unroll

    def update(self, batch: Any) -> Update:
        """See PPOTrainer; the batch's extras hold the state too."""
        batch.extras = {**batch.extras, FIRST: first_rows(batch.continues, self._unroll)}
        return super().update(batch)

    def outputs(self, rows: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The policy's outputs and the values of windows."""
        output, value = self.model(rows.obs, rows.extras, rows.extras[FIRST])
        return output, value

    def values_after(self, batch: Any, which: torch.Tensor) -> torch.Tensor:
        """The values of the next observations of these rows, in the state after their actions."""
        torso = self.model.acting.torso
        _, after = torso(taken(batch.obs, which), taken(batch.extras, which))
        state = {**torso.acted(after, batch.action[which]), PREVIOUS_REWARD: batch.reward[which]}
        features, _ = torso(taken(batch.next_obs, which), state)
        values: torch.Tensor = self.model.critic(features).squeeze(1)
        return values

    def minibatches(self, rows: Rows) -> Iterator[Rows]:
        """Windows in a new order, in minibatches of about minibatch_size rows."""
        index, held = windows_of(rows.extras[FIRST])
        order = torch.randperm(len(index), generator=self.generator).to(index.device)
        index, held = index[order], held[order]
        ends = held.sum(1).cumsum(0)
        number = (ends - 1).div(self.hyper.minibatch_size, rounding_mode="floor")
        for i in range(int(number[-1]) + 1):
            part = number == i
            yield Rows(*(taken(one, index[part][held[part]]) for one in rows))


def first_rows(continues: torch.Tensor, unroll: int) -> torch.Tensor:
    """The rows, bool [B], with which windows begin: the first of each run, and each `unroll`-th from there.

    Args:
        continues: bool [B], whether the next row is the episode's next transition.
    """
    at = torch.arange(len(continues), device=continues.device)
    begins = torch.ones_like(continues)
    begins[1:] = ~continues[:-1]
    run = torch.where(begins, at, 0).cummax(0).values
    return (at - run) % unroll == 0


def windows_of(first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows int64 [W, L] of the windows that begin with the rows `first`, and which of these places they fill.

    Other places hold a window's first row; the windows' rows one after another are all rows in their order.
    """
    starts = first.nonzero().squeeze(1)
    lengths = torch.diff(starts, append=starts.new_tensor([len(first)]))
    at = torch.arange(int(lengths.max()), device=first.device)
    held = at < lengths[:, None]
    return starts[:, None] + torch.where(held, at, 0), held
