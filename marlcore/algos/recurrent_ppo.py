"""PPO with memory: policy and critic share a recurrent layer and train on windows of consecutive transitions.

The update is in bases/clipped_policy.py. Each row stores its actor's recurrent state, so that a window can begin at any
row (Kapturowski et al. 2019, section 3).
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..interfaces import PREVIOUS_REWARD, Action, Update
from ..observations import rows_at
from ..spaces import Spaces
from ..spec import TransitionSpec
from .bases.clipped_policy import ClippedPolicy, ClippedPolicyTrainer, Minibatch
from .bases.hyperparameters import ActRequest, AtLeast1, Units
from .bases.trainers import raw_reward
from .networks.initialization import initialize
from .networks.policy_value import PolicyNetwork
from .networks.recurrent import Cell, RecurrentTorso, State, Stepped, Unroll, state_fields, with_state
from .networks.stand_in import faster

FIRST = "first"  # the extra of a batch, bool [B], that marks the first row of each window


@dataclass(frozen=True)
class RecurrentPPO(ClippedPolicy):
    """Hyperparameters of PPO with a recurrent layer after the layers `hidden`; policy and critic share these layers."""

    cell: Cell = "lstm"
    """The recurrent layer: lstm, gru (twice as slow on a CPU), or your own, given as a function of inputs and units or
    as its module:name; see docs/guides/own-network.md."""
    units: Units = 64
    """Units of the recurrent layer, at least 1; rows store its state."""
    unroll: AtLeast1 = 16
    """Longest window in transitions, at least 1; gradients reach back this far. A minibatch holds whole windows, so a
    window longer than `minibatch_size` makes a larger minibatch."""

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """Returns PPO's row with the recurrent state. Raises ValueError as `distribution_of` does."""
        spec = super().transition(spaces)
        return replace(spec, extras=with_state(self, spec.extras, state_fields(self, spaces, 1)))

    def make_model(self, spaces: Spaces) -> Any:
        return RecurrentPolicyValue(self, spaces)

    def chosen(self, model: Any, obs: Any, request: ActRequest) -> Action:
        """Draws actions from the policy; also returns the next state."""
        output, _, after = faster(model)(obs, request.state)
        action = self.sampled(model, output, request)
        return action._replace(state=model.torso.acted(after, action.action))

    def greedy(self, model: Any, obs: Any, state: State | None, mask: torch.Tensor | None) -> Any:
        output, _, after = faster(model)(obs, state)
        action = model.distribution.mode(output, mask)
        return action, model.torso.acted(after, action)

    def make_trainer(self, model: Any) -> "RecurrentPPOTrainer":
        return RecurrentPPOTrainer(self, model)


class RecurrentPolicy(PolicyNetwork):
    """A policy whose torso is recurrent."""

    def forward(  # type: ignore[override]
        self, obs: Any, state: State | None, unroll: Unroll | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Returns the outputs, the features, and the next state; see RecurrentTorso."""
        features, after = self.torso(obs, state, unroll)
        return self.head(features), features, after


class RecurrentPolicyValue(nn.Module):
    """Holds a policy with memory, with which actors act, and the critic's head on the same layers."""

    def __init__(self, hyper: RecurrentPPO, spaces: Spaces) -> None:
        super().__init__()
        torso = RecurrentTorso(hyper, spaces, hyper.hidden)
        self.acting = RecurrentPolicy(hyper, spaces, torso)
        self._state = torso.core.parts  # of the recurrent layer, among the extras of rows
        self.critic = nn.Linear(hyper.units, 1)
        initialize(hyper, self.critic, 1.0)

    def forward(self, obs: Any, state: State, first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the policy's outputs [B, outputs] and the values [B], for windows laid end to end.

        A window begins at each row where `first`, bool [B], is True, from the state that this row stores.
        """
        rows, filled = windows_of(first)
        begins = rows[:, 0]

        def unroll(core: Callable[..., Stepped], inputs: torch.Tensor, state: State) -> Stepped:
            features, after = core(inputs[rows], {name: state[name][begins] for name in self._state})
            return features[filled], after

        output, features, _ = self.acting(obs, state, unroll)
        return output, self.critic(features).squeeze(1)


class RecurrentPPOTrainer(ClippedPolicyTrainer):
    """Makes PPO's passes over each batch, in minibatches of windows."""

    def update(self, batch: Any) -> Update:
        """Makes ClippedPolicyTrainer's update on windows of the batch, whose extras hold the recurrent state."""
        windowed = copy.copy(batch)
        windowed.extras = {**batch.extras, FIRST: first_rows(batch.continues, self.hyper.unroll)}
        return super().update(windowed)

    def outputs(self, rows: Any) -> Any:
        return faster(self.model)(rows.obs, rows.extras, rows.extras[FIRST])

    def values_after(self, batch: Any, which: torch.Tensor) -> Any:
        """Returns the values of the next observations of the rows `which`, given the state after their actions."""
        torso = faster(self.model.acting.torso)
        _, after = torso(rows_at(batch.obs, which), rows_at(batch.extras, which))
        state = {**torso.acted(after, batch.action[which]), PREVIOUS_REWARD: raw_reward(batch)[which]}
        features, _ = torso(rows_at(batch.next_obs, which), state)
        return self.model.critic(features).squeeze(1)

    def minibatches(self, rows: Minibatch) -> Iterator[Minibatch]:
        """Yields minibatches of whole windows in a new order, each of about minibatch_size rows."""
        index, filled = windows_of(rows.extras[FIRST])
        order = torch.randperm(len(index), generator=self.generator).to(index.device)
        index, filled = index[order], filled[order]
        ends = filled.sum(1).cumsum(0)
        number = (ends - 1).div(self.hyper.minibatch_size, rounding_mode="floor")
        for each in dict.fromkeys(number.tolist()):  # a window longer than a minibatch skips numbers
            part = number == each
            yield Minibatch(*(rows_at(values, index[part][filled[part]]) for values in rows))


def first_rows(continues: torch.Tensor, unroll: int) -> torch.Tensor:
    """Marks the rows where windows begin, bool [B]: the first of consecutive rows, and every `unroll`-th after it."""
    place = torch.arange(len(continues), device=continues.device)
    begins = torch.ones_like(continues)
    begins[1:] = ~continues[:-1]
    run = torch.where(begins, place, 0).cummax(0).values
    return (place - run) % unroll == 0


def windows_of(first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the windows' row numbers, int64 [W, L], and bool [W, L], which is False for padding.

    A window begins at each True of `first`, bool [B]. Padding repeats the window's first row.
    """
    starts = first.nonzero().squeeze(1)
    lengths = torch.diff(starts, append=starts.new_tensor([len(first)]))
    place = torch.arange(int(lengths.max()), device=first.device)
    filled = place < lengths[:, None]
    return starts[:, None] + torch.where(filled, place, 0), filled
