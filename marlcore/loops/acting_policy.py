"""A policy that acts: its network, exploration, memory for each copy of the environment, and newest weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..checks import check_finite
from ..config import PUBLISHED, AssignedPolicy, Config
from ..errors import TimedOut
from ..interfaces import Action, CompiledPolicy
from ..observations import Pad, Values, each
from ..spaces import MASK, Spaces
from ..spec import rows_of
from ..weights import ParameterStore, Subscriber

if TYPE_CHECKING:
    import torch

    from .torch_network import RecurrentStates, TorchNetwork

FIRST_PULL_S = 0.1

Network: TypeAlias = "CompiledPolicy | TorchNetwork"


def network_of(
    policy: AssignedPolicy, config: Config, device: Any, store: ParameterStore
) -> tuple[Network, Subscriber]:
    """Makes the untrained network by which a policy acts, and a subscriber that keeps its weights up to date.

    `device` is a torch.device; a compiled network does not use it.
    """
    if policy.compiled is not None:
        compiled: Any = copy.deepcopy(policy.compiled)
        return compiled, store.subscriber(compiled)
    from .model import build_model  # these import torch
    from .torch_network import TorchNetwork

    model = build_model(policy, config).acting.to(device)
    return TorchNetwork(policy.algorithm, model, device), store.subscriber(model)


@dataclass
class ActingPolicy:
    """Acts by a policy, and remembers the stacked observations and the recurrent state of each copy of the environment.

    `dataclasses.replace` makes a player for another agent; the two players share everything except this memory.

    Attributes:
        state_before: the recurrent state [k, ...] with which the last actions were chosen; {} if there is none.
    """

    network: Network
    spaces: Spaces
    copies: int
    pad: Pad  # of stacks; the same as in training
    generator: np.random.Generator  # for the algorithm's draws
    explore: Mapping[str, Any] | None = None  # exploration parameters, numbers or arrays [copies]; None acts greedily

    def __post_init__(self) -> None:
        spaces, copies = self.spaces, self.copies
        self._action = spaces.action_field
        self._choices = np.zeros(0, np.int64)  # index of each copy's action 0 in the flattened masks
        if spaces.masked:
            self._choices = np.add.outer(np.arange(copies) * spaces.choices, spaces.mask_starts).ravel()
        self._stacks: Values | None = None  # [copies, stack, ...], the oldest observation first
        if spaces.stack > 1:
            self._stacks = each(lambda field: np.zeros((copies, spaces.stack, *field.shape), field.dtype), spaces.obs)
        self._states: RecurrentStates | None = None  # None until the network returns a state
        self.state_before: Mapping[str, torch.Tensor] = {}

    @property
    def remembers(self) -> bool:
        """Whether actions depend on earlier observations in the same copy."""
        return self._stacks is not None or self._states is not None

    def choose(self, obs: Values, index: Any, begins: NDArray[np.bool_]) -> Action:
        """See `Player`. Raises ValueError or TypeError if an action or a state is malformed or not allowed."""
        mask, explore = obs[MASK] if self.spaces.masked else None, self.explore
        remembered: dict[str, Any] = {}
        if self._stacks is not None:
            obs = each(lambda stacks, new: self._pushed(stacks, new, index, begins), self._stacks, obs)
        if self._states is not None:
            remembered["state"] = self._states.read(index, begins)
        if explore is not None and isinstance(explore.get("epsilon"), np.ndarray):  # one for each copy
            explore = {**explore, "epsilon": explore["epsilon"][index]}
        chosen = self.network.act(obs, explore=explore, mask=mask, generator=self.generator, **remembered)
        action = rows_of("action of the algorithm", self._action, chosen.action, len(begins))
        if action.dtype.kind == "f":
            check_finite("action of the algorithm", action)
        if (refused := self.spaces.first_refused(action)) is not None:
            got = self.spaces.shifted(action[refused]).tolist()
            raise ValueError(f"action of the algorithm: expected an action of {self.spaces.action}, got {got}")
        if mask is not None:
            self._check_allowed(action, mask)
        if chosen.state is not None:
            self._keep(chosen.state, index, len(begins))
        return chosen if action is chosen.action else chosen._replace(action=action)

    def _pushed(self, stacks: NDArray[Any], new: NDArray[Any], index: Any, begins: NDArray[np.bool_]) -> NDArray[Any]:
        """Pushes new observations [k, ...] into the kept stacks, and returns the new stacks [k, stack, ...]."""
        pushed: NDArray[Any] = stacks[index]
        pushed[:, :-1] = pushed[:, 1:]
        pushed[:, -1] = new
        if begins.any():
            pushed[begins, :-1] = new[begins, None] if self.pad == "repeat" else 0
        if not isinstance(index, slice):
            stacks[index] = pushed
        return pushed

    def _check_allowed(self, action: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        """Raises ValueError if the masks [k, choices] forbid one of the actions [k, ...]."""
        allowed = mask.take(action.ravel() + self._choices[: action.size])
        if not allowed.all():
            row = action[int(np.argmin(allowed.reshape(len(action), -1).all(axis=1)))]
            got = self.spaces.shifted(row).tolist()
            raise ValueError(f"action of the algorithm: expected an action that {MASK} allows, got {got}")

    def _keep(self, state: Mapping[str, torch.Tensor], index: Any, rows: int) -> None:
        if self._states is None:
            from .torch_network import RecurrentStates  # which imports torch

            self._states = RecurrentStates(self.copies)
        self._states.keep(state, index, rows)
        self.state_before = self._states.before

    def reward(self, reward: NDArray[Any], index: Any) -> None:
        """Stores the rewards [k] of the last actions in the copies `index`, if the state has a part for them."""
        if self._states is not None:
            self._states.reward(reward, index)


@dataclass
class FollowedWeights:
    """Pulls newer weights into the subscriber's model, and the exploration parameters published with them."""

    subscriber: Subscriber
    exponents: NDArray[np.float64] | None = None  # [copies], the exponent of epsilon in each copy; None: all 1
    sync_interval: int = 1  # rounds between pulls
    max_lag: int | None = None  # versions by which weights may be behind before they are pulled early

    def __post_init__(self) -> None:
        self.explore: dict[str, Any] = {}  # changed in place, since acting policies share it
        self.version = 0  # of the weights; 0 before the first pull
        self._due = 0  # the round at which the next pull is due
        if self.exponents is not None and (self.exponents == 1.0).all():
            self.exponents = None

    def learned(self) -> bool:
        """Whether the learner had made an update before it published the present weights."""
        return bool(self.subscriber.extras["updates"])

    def pull_if_due(self, rounds: int) -> None:
        """Pulls newer weights every `sync_interval` rounds, or when they are more than `max_lag` versions behind.

        `rounds` is the number of rounds so far.
        """
        if rounds >= self._due:
            self._due = (rounds // self.sync_interval + 1) * self.sync_interval
            self.pull()
        elif self.max_lag is not None and self.subscriber.newest - self.subscriber.version > self.max_lag:
            self.pull()

    def pull(self) -> bool:
        """Pulls newer weights, if any; returns whether it did. The first pull waits for weights, at most 0.1 s."""
        try:
            pulled = self.subscriber.pull(timeout=0.0 if self.version else FIRST_PULL_S)
        except TimedOut:
            return False  # the learner is overwriting the weights, or died doing so: the next pull gets them
        if pulled:
            self.explore |= exploration_of(self.subscriber.extras)
            if "epsilon" in self.explore and self.exponents is not None:
                self.explore["epsilon"] = self.explore["epsilon"] ** self.exponents
            self.version = self.subscriber.version
        return pulled


def exploration_of(extras: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the exploration parameters, such as epsilon, from the extras published with the weights."""
    return {name: value for name, value in extras.items() if name not in PUBLISHED}
