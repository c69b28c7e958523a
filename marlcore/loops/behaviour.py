"""A policy as it acts: an algorithm with a model and its exploration, and what it remembers of several copies."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..checks import check_finite, names_error
from ..config import PUBLISHED
from ..errors import TimedOut
from ..interfaces import PREVIOUS_REWARD, Action, Algorithm
from ..observations import Pad, Values, each
from ..spaces import MASK, Spaces
from ..spec import rows_of
from ..weights import Subscriber
from .model import PolicyModel

FIRST_PULL_S = 0.1


@dataclass
class Behaviour:
    """An algorithm with the acting part of a model; with a subscriber it follows its learner's publications."""

    algorithm: Algorithm
    model: PolicyModel  # on `device`
    generator: np.random.Generator  # for the algorithm's draws
    device: torch.device
    explore: Mapping[str, Any] | None = None  # the numbers of exploration; None acts greedily
    subscriber: Subscriber | None = None  # None keeps weights and numbers as they are
    exponents: NDArray[np.float64] | None = None  # [copies], of epsilon in each copy; None: all have the same
    sync_interval: int = 1  # rounds between pulls
    max_lag: int | None = None  # versions by which weights may be behind; staler ones are pulled before the next turn

    def __post_init__(self) -> None:
        self.model.eval()  # a greedy policy draws nothing, also with dropout
        self.version = 0  # of the weights; 0 where they were not published
        self._looked = -1  # the round of the last look for newer weights that was due
        if self.exponents is not None and (self.exponents == 1.0).all():
            self.exponents = None

    def act(self, obs: Values, at: Any, state: Mapping[str, torch.Tensor] | None) -> Action:
        """Chooses actions for the k observations of the copies `at`, stacked if the model wants that."""
        model, explore, mask = self.model, self.explore, None
        tensors: Any
        if isinstance(obs, dict):
            tensors = {name: torch.from_numpy(array).to(self.device) for name, array in obs.items()}
            mask = tensors.get(MASK)
            if mask is not None and mask.ndim == 3:
                mask = mask[:, -1]  # of the newest observation of a stack
        else:
            tensors = torch.from_numpy(obs).to(self.device)
        if model.norm is not None:
            tensors = model.norm(tensors)
        if self.exponents is not None and explore is not None and "epsilon" in explore:
            explore = {**explore, "epsilon": explore["epsilon"][at]}
        return self.algorithm.act(
            model.model, tensors, explore=explore, state=state, mask=mask, generator=self.generator
        )

    @property
    def published(self) -> Mapping[str, Any]:
        """What came with the acting weights; nothing if they were not published."""
        return {} if self.subscriber is None else self.subscriber.extras

    def learned(self) -> bool:
        """Whether the learner had made an update when it published the acting weights."""
        return bool(self.published["updates"])

    def pull_if_due(self, rounds: int) -> None:
        """Before a turn in the round after so many: pulls if it is the first since a multiple of `sync_interval`.

        Also pulls where the weights are behind by more than `max_lag` versions.
        """
        subscriber = self.subscriber
        if subscriber is None:
            return
        due = rounds // self.sync_interval > self._looked // self.sync_interval
        if due or (self.max_lag is not None and subscriber.newest - subscriber.version > self.max_lag):
            self.pull()
        self._looked = rounds

    def pull(self) -> bool:
        """Takes newer weights, if any; it waits for them only while it has none."""
        assert self.subscriber is not None
        try:
            pulled = self.subscriber.pull(timeout=0.0 if self.version else FIRST_PULL_S)
        except TimedOut:
            return False  # their learner is overwriting them, or died doing so: the next pull gets them
        if pulled:
            explore = exploration_of(self.subscriber.extras)
            if "epsilon" in explore and self.exponents is not None:
                explore["epsilon"] = explore["epsilon"] ** self.exponents
            self.explore, self.version = explore, self.subscriber.version
        return pulled


def exploration_of(extras: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of exploration among what was published with the weights."""
    return {name: value for name, value in extras.items() if name not in PUBLISHED}


@dataclass
class NetworkPlayer:
    """The player of a policy: it remembers each copy's stack of observations and recurrent state."""

    policy: Behaviour
    spaces: Spaces
    copies: int
    pad: Pad  # of stacks; the same as in training

    def __post_init__(self) -> None:
        spaces, copies = self.spaces, self.copies
        self._action = spaces.action_field
        self._choices = np.zeros(0, np.int64)  # of the action 0: where all copies' masks, flattened, hold it
        if spaces.masked:
            self._choices = np.add.outer(np.arange(copies) * spaces.choices, spaces.mask_starts).ravel()
        self._stacks: Values | None = None  # [copies, stack, ...], oldest first
        if spaces.stack > 1:
            self._stacks = each(lambda field: np.zeros((copies, spaces.stack, *field.shape), field.dtype), spaces.obs)
        self._state: dict[str, torch.Tensor] | None = None
        self.before: Mapping[str, torch.Tensor] = {}  # the state [k, ...] with which the last actions were chosen

    @property
    def remembers(self) -> bool:
        """Whether actions depend on earlier observations of their copy."""
        return self._stacks is not None or self._state is not None

    def choose(self, obs: Values, at: Any, begins: NDArray[np.bool_]) -> Action:
        """See `Player`. Raises ValueError, TypeError: an action or the state is wrong, not finite or not allowed."""
        mask = obs[MASK] if self.spaces.masked else None
        if self._stacks is not None:
            obs = each(lambda stacks, new: self._pushed(stacks, new, at, begins), self._stacks, obs)
        state = None
        if self._state is not None:
            state = {name: rows[at] for name, rows in self._state.items()}
            if begins.any():
                fresh = torch.from_numpy(begins)
                state = {name: rows.masked_fill(_wide(fresh, rows), 0) for name, rows in state.items()}
        chosen = self.policy.act(obs, at, state)
        action = rows_of("action of the algorithm", self._action, chosen.action, len(begins))
        if action.dtype.kind == "f":
            check_finite("action of the algorithm", action)
        if (refused := self.spaces.first_refused(action)) is not None:
            got = self.spaces.shifted(action[refused]).tolist()
            raise ValueError(f"action of the algorithm: expected one of {self.spaces.action}, got {got}")
        if mask is not None:
            self._check_allowed(action, mask)
        if chosen.state is not None:
            self.before = state or {name: torch.zeros_like(rows) for name, rows in chosen.state.items()}
            self._keep(chosen.state, at, len(begins))
        return chosen if action is chosen.action else chosen._replace(action=action)

    def _pushed(self, stacks: NDArray[Any], new: NDArray[Any], at: Any, begins: NDArray[np.bool_]) -> NDArray[Any]:
        """The stacks [k, stack, ...] that end with new observations [k, ...], kept for the next ones."""
        pushed: NDArray[Any] = stacks[at]
        pushed[:, :-1] = pushed[:, 1:]
        pushed[:, -1] = new
        if begins.any():
            pushed[begins, :-1] = new[begins, None] if self.pad == "repeat" else 0
        if not isinstance(at, slice):
            stacks[at] = pushed
        return pushed

    def _check_allowed(self, action: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        """Checks actions [k, ...] of the space against the masks [k, choices]."""
        allowed = mask.take(action.ravel() + self._choices[: action.size])
        if not allowed.all():
            row = action[int(np.argmin(allowed.reshape(len(action), -1).all(axis=1)))]
            raise ValueError(
                f"action of the algorithm: expected one that {MASK} allows, got {self.spaces.shifted(row).tolist()}"
            )

    def _keep(self, state: Mapping[str, torch.Tensor], at: Any, rows: int) -> None:
        """Keeps the state [rows, ...] of the copies `at`, and leaves `before` as it is."""
        if self._state is None:
            self._state = {name: part.new_zeros((self.copies, *part.shape[1:])) for name, part in state.items()}
        if state.keys() != self._state.keys():
            raise names_error("state of the algorithm", self._state, state)
        for name, kept in self._state.items():
            if state[name].shape != (rows, *kept.shape[1:]):
                expected, got = (rows, *kept.shape[1:]), tuple(state[name].shape)
                raise ValueError(f"{name} of the algorithm's state: expected shape {expected}, got {got}")
        if isinstance(at, slice):
            self._state = dict(state)  # `before` holds views of the old tensors
            return
        with torch.inference_mode():  # which may have made the tensors
            for name, kept in self._state.items():
                kept[at] = state[name]

    def reward(self, reward: NDArray[Any], at: Any) -> None:
        """Takes the rewards [k] of the last actions in the copies `at` into a state that has a part for them."""
        if self._state is not None and PREVIOUS_REWARD in self._state:
            with torch.inference_mode():
                self._state[PREVIOUS_REWARD][at] = torch.as_tensor(reward).to(self._state[PREVIOUS_REWARD])


def _wide(flags: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Flags [k] in a shape that broadcasts over rows [k, ...], on their device."""
    return flags.to(rows.device).reshape(-1, *([1] * (rows.ndim - 1)))
