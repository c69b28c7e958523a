"""A policy that acts: an algorithm, a model and exploration, with a memory for each copy of the environment."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..checks import check_finite, names_error
from ..interfaces import PREVIOUS_REWARD, Action, Algorithm
from ..observations import Pad, Values, each
from ..spaces import MASK, Spaces
from ..spec import rows_of
from .model import PolicyModel


@dataclass
class ActingPolicy:
    """Acts by a policy, and remembers each copy's stack of observations and recurrent state.

    `dataclasses.replace` makes another agent's player, which shares everything except this memory.
    """

    algorithm: Algorithm
    model: PolicyModel  # its acting part, on `device`
    spaces: Spaces
    copies: int
    pad: Pad  # of stacks; the same as in training
    generator: np.random.Generator  # for the algorithm's draws
    device: torch.device
    explore: Mapping[str, Any] | None = None  # exploration parameters, numbers or arrays [copies]; None: greedy

    def __post_init__(self) -> None:
        self.model.eval()  # switches dropout off: a greedy policy draws nothing
        spaces, copies = self.spaces, self.copies
        self._action = spaces.action_field
        self._choices = np.zeros(0, np.int64)  # index of each copy's action 0 in the flattened masks
        if spaces.masked:
            self._choices = np.add.outer(np.arange(copies) * spaces.choices, spaces.mask_starts).ravel()
        self._stacks: Values | None = None  # [copies, stack, ...], oldest first
        if spaces.stack > 1:
            self._stacks = each(lambda field: np.zeros((copies, spaces.stack, *field.shape), field.dtype), spaces.obs)
        self._state: dict[str, torch.Tensor] | None = None
        self.state_before: Mapping[str, torch.Tensor] = {}  # the state [k, ...] with which the last actions were chosen

    @property
    def remembers(self) -> bool:
        """Whether actions depend on earlier observations in the same copy."""
        return self._stacks is not None or self._state is not None

    def choose(self, obs: Values, index: Any, begins: NDArray[np.bool_]) -> Action:
        """See `Player`. Raises ValueError, TypeError: an action or the state is malformed, or an action not allowed."""
        mask = obs[MASK] if self.spaces.masked else None
        if self._stacks is not None:
            obs = each(lambda stacks, new: self._pushed(stacks, new, index, begins), self._stacks, obs)
        state = None
        if self._state is not None:
            state = {name: rows[index] for name, rows in self._state.items()}
            if begins.any():
                fresh = torch.from_numpy(begins)
                state = {name: rows.masked_fill(_wide(fresh, rows), 0) for name, rows in state.items()}
        chosen = self.act(obs, index, state)
        action = rows_of("action of the algorithm", self._action, chosen.action, len(begins))
        if action.dtype.kind == "f":
            check_finite("action of the algorithm", action)
        if (refused := self.spaces.first_refused(action)) is not None:
            got = self.spaces.shifted(action[refused]).tolist()
            raise ValueError(f"action of the algorithm: expected one of {self.spaces.action}, got {got}")
        if mask is not None:
            self._check_allowed(action, mask)
        if chosen.state is not None:
            self.state_before = state or {name: torch.zeros_like(rows) for name, rows in chosen.state.items()}
            self._keep(chosen.state, index, len(begins))
        return chosen if action is chosen.action else chosen._replace(action=action)

    def act(self, obs: Values, index: Any, state: Mapping[str, torch.Tensor] | None) -> Action:
        """Chooses actions for k observations, already stacked if the model wants stacks, of the copies `index`."""
        model, explore, mask = self.model, self.explore, None
        tensors: Any
        if isinstance(obs, dict):
            tensors = {name: torch.from_numpy(array).to(self.device) for name, array in obs.items()}
            mask = self.spaces.mask_in(tensors)
        else:
            tensors = torch.from_numpy(obs).to(self.device)
        if model.norm is not None:
            tensors = model.norm(tensors)
        if explore is not None and isinstance(explore.get("epsilon"), np.ndarray):  # of each copy
            explore = {**explore, "epsilon": explore["epsilon"][index]}
        return self.algorithm.act(
            model.model, tensors, explore=explore, state=state, mask=mask, generator=self.generator
        )

    def _pushed(self, stacks: NDArray[Any], new: NDArray[Any], index: Any, begins: NDArray[np.bool_]) -> NDArray[Any]:
        """Pushes new observations [k, ...] into the kept stacks, and returns these, [k, stack, ...]."""
        pushed: NDArray[Any] = stacks[index]
        pushed[:, :-1] = pushed[:, 1:]
        pushed[:, -1] = new
        if begins.any():
            pushed[begins, :-1] = new[begins, None] if self.pad == "repeat" else 0
        if not isinstance(index, slice):
            stacks[index] = pushed
        return pushed

    def _check_allowed(self, action: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        """Checks that the masks [k, choices] allow the actions [k, ...]. Raises ValueError."""
        allowed = mask.take(action.ravel() + self._choices[: action.size])
        if not allowed.all():
            row = action[int(np.argmin(allowed.reshape(len(action), -1).all(axis=1)))]
            raise ValueError(
                f"action of the algorithm: expected one that {MASK} allows, got {self.spaces.shifted(row).tolist()}"
            )

    def _keep(self, state: Mapping[str, torch.Tensor], index: Any, rows: int) -> None:
        """Stores the new state [rows, ...] of the copies `index`, without changing `state_before`."""
        if self._state is None:
            self._state = {name: part.new_zeros((self.copies, *part.shape[1:])) for name, part in state.items()}
        if state.keys() != self._state.keys():
            raise names_error("state of the algorithm", self._state, state)
        for name, stored in self._state.items():
            if state[name].shape != (rows, *stored.shape[1:]):
                expected, got = (rows, *stored.shape[1:]), tuple(state[name].shape)
                raise ValueError(f"{name} of the algorithm's state: expected shape {expected}, got {got}")
        if isinstance(index, slice):
            self._state = dict(state)  # `state_before` holds views of the old tensors
            return
        with torch.inference_mode():  # the tensors may be inference tensors
            for name, stored in self._state.items():
                stored[index] = state[name]

    def reward(self, reward: NDArray[Any], index: Any) -> None:
        """Stores the rewards [k] of the last actions in the copies `index`, if the state has a part for them."""
        if self._state is not None and PREVIOUS_REWARD in self._state:
            with torch.inference_mode():
                self._state[PREVIOUS_REWARD][index] = torch.as_tensor(reward).to(self._state[PREVIOUS_REWARD])


def _wide(flags: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Reshapes flags [k] so that they broadcast over rows [k, ...], and moves them to the rows' device."""
    return flags.to(rows.device).reshape(-1, *([1] * (rows.ndim - 1)))
