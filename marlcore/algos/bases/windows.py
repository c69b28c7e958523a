"""Base of algorithms that learn on windows of episodes: hyperparameters, and returns and priorities of windows.

Rows store the recurrent state, and a window's first steps burn it in (Kapturowski et al. 2019, "Recurrent experience
replay in distributed reinforcement learning", ICLR 2019, openreview.net/forum?id=r1lyTjAqYX).
"""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Annotated, Any

import torch

from ...declared import Number, Whole
from ...interfaces import MEMBER_REWARDS, PREVIOUS_REWARD, ReplaySource, Update
from ...observations import each
from ...spaces import Spaces
from ...spec import Field, Sequence, TransitionSpec
from ..networks.recurrent import Cell, Histories, State, Windows, state_fields, with_state
from ..networks.teams import TeamSpaces
from .hyperparameters import AtLeast1, Hyperparameters, Units
from .trainers import raw_reward

OF_STEPS = ("obs", "next_obs", "action", "reward", "discount", "valid", "mask")  # fields of a batch of windows


@dataclass(frozen=True)
class Windowed(Hyperparameters):
    """Hyperparameters of algorithms that may have memory; with memory, a batch has `learner.batch_size` windows.

    An update reads `length` times as many transitions as an update without memory, so request fewer updates.
    """

    cell: Cell | None = None
    """The recurrent layer: lstm, gru (twice as slow on a CPU), or your own, given as a function of inputs and units or
    as its module:name; see docs/guides/own-network.md. None: no memory, and the fields from `units` to `eta` have no
    effect."""
    units: Units = 64
    """Units of the recurrent layer, at least 1; rows store its state at intervals."""
    length: AtLeast1 = 40
    """Transitions of a window, including its burn-in."""
    burn_in: Annotated[int, Whole(0)] = 20
    """First transitions of a window, which only warm up its stored state; less than length. A window at the start of
    an episode has no burn-in."""
    period: Annotated[int, Whole(2)] = 20
    """Transitions from one window's start to the next start, at least 2; if it is length - burn_in, a pass over
    all windows trains on each transition once."""
    n_step: AtLeast1 = 5
    """Rewards in each return, at least 1, in place of `learner.n_step`; returns end with their window."""
    eta: Annotated[float, Number(0, 1)] = 0.9
    """A window's priority is eta times its largest error plus 1 - eta times its mean error; from 0 to 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.burn_in >= self.length:
            raise ValueError(f"{self.owner} burn_in: expected less than the length {self.length}, got {self.burn_in}")

    @property
    def unused(self) -> dict[str, str]:
        """Maps each field that was changed without effect to the setting that it needs; see `config.applied`."""
        of_memory = [name for name in Windowed.__annotations__ if name != "cell" and self.cell is None]
        changed = (name for name in of_memory if getattr(self, name) != self.__dataclass_fields__[name].default)
        return dict.fromkeys(changed, "cell, such as algorithm.cell gru")

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """Returns a row's fields; with memory, each `period`-th row stores the recurrent state."""
        spec = super().transition(spaces)
        return replace(spec, extras=with_state(self, spec.extras, self.state_fields(spaces)))

    def state_fields(self, spaces: Spaces) -> dict[str, Field]:
        """Returns the fields of the recurrent state or, in a team, of all members' states; {} without memory."""
        if self.cell is None:
            return {}
        if not self.wants_team:
            return state_fields(self, spaces, self.period)
        team = TeamSpaces(self.owner, spaces)
        of_one = state_fields(self, team.groups[0].spaces, self.period)
        of_each = {name: replace(field, shape=(team.count, *field.shape)) for name, field in of_one.items()}
        return {**of_each, PREVIOUS_REWARD: of_one[PREVIOUS_REWARD]}

    def source(self, chosen: ReplaySource) -> ReplaySource:
        """Returns `chosen`; with memory, changed to windows of one-step rows."""
        if self.cell is None:
            return chosen
        return replace(chosen, n_step=1, sequence=Sequence(self.length, self.burn_in, self.period))


def shortened(batch: Any, burn_in: int) -> tuple[SimpleNamespace, tuple[Any, State, Windows]]:
    """Cuts windows to the longest window's length; returns the shorter batch, and the arguments of a network's call."""
    steps = int(batch.valid[..., -1].any(0).sum())
    fields = {name: each(lambda values: values[:, :steps], getattr(batch, name)) for name in OF_STEPS}
    raw = raw_reward(batch)[:, :steps]
    short = SimpleNamespace(**fields, weight=batch.weight, extras=batch.extras)
    obs = each(lambda obs, after: torch.cat([obs[:, :1], after], 1), short.obs, short.next_obs)
    return short, (obs, short.extras, Windows(short.action, raw, burn_in, short.mask[:, 0]))


def n_step_returns(batch: Any, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Computes n-step returns within windows, as three parts; returns are shorter where the episode or window ends.

    Returns: the discounted sums of rewards [B, T]; the discounts [B, T] of the value that follows; and that value's
        place, int64 [B, T], among the T + 1 observations of the window and after it.
    """
    valid = batch.valid[..., -1]
    continues = torch.cat([valid[:, 1:], torch.zeros_like(valid[:, :1])], 1)
    following = torch.arange(1, valid.shape[1] + 1, device=valid.device).expand_as(valid)

    def later(values: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
        return torch.where(continues, torch.cat([values[:, 1:], values[:, -1:]], 1), otherwise)

    reward, discount, end = batch.reward, batch.discount, following
    for _ in range(n - 1):
        reward = batch.reward + batch.discount * later(reward, torch.zeros_like(reward))
        discount = batch.discount * later(discount, torch.ones_like(discount))
        end = later(end, following)
    return reward, discount, end


def window_priority(errors: torch.Tensor, counts: torch.Tensor, eta: float) -> torch.Tensor:
    """Returns windows' priorities [B]: eta times the largest error plus (1 - eta) times the mean error.

    `errors` [B, T] are absolute, and 0 for transitions that do not count; `counts` [B, T] is 1 for those that count
    (Kapturowski et al. 2019, section 2.3).
    """
    mean = errors.sum(1) / counts.sum(1).clamp(min=1.0)
    return eta * errors.amax(1) + (1.0 - eta) * mean


class WindowRows:
    """The M transitions that count in B windows, as a batch of rows whose observations are Histories.

    Rows have n-step returns within their windows or, if they store the rewards of a team's members, one-step returns.
    """

    def __init__(self, hyper: Windowed, batch: Any) -> None:
        short, (obs, extras, windows) = shortened(batch, hyper.burn_in)
        self.at = window, _ = short.mask.nonzero(as_tuple=True)
        state = {name: part for name, part in extras.items() if name != MEMBER_REWARDS}
        self.extras = {name: part[self.at] for name, part in extras.items() if name == MEMBER_REWARDS}
        reward, discount, end = n_step_returns(short, 1 if self.extras else hyper.n_step)
        self.reward, self.discount, self.action = reward[self.at], discount[self.at], short.action[self.at]
        self.weight = batch.weight[window]
        self.obs = Histories(obs, state, windows, self.at)
        self.next_obs = Histories(obs, state, windows, (window, end[self.at]))
        self._counts, self._eta = short.mask.float(), hyper.eta

    def of_windows(self, update: Update) -> Update:
        """Returns the update with the windows' priorities [B] in place of the rows' absolute errors [M]."""
        errors = torch.zeros_like(self._counts)
        errors[self.at] = torch.as_tensor(update.priority)
        return replace(update, priority=window_priority(errors, self._counts, self._eta))
