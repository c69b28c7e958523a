"""A policy that acts: an algorithm and its model, with the stacks and recurrent states of several copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ...checks import check_finite, names_error
from ...errors import TimedOut
from ...interfaces import PREVIOUS_REWARD, Action, Algorithm
from ...observations import Values, each
from ...spaces import MASK, Spaces
from ...spec import rows_of
from .normalizer import Normalizer
from .stack import Stack

FIRST_PULL_S = 0.1
# Published with the weights, beside the numbers of exploration
NO_EXPLORATION = ("updates", "step", "opponents", "odds")


class ActingModel(torch.nn.Module):
    """What actors need of a policy, and its learner publishes: the model's acting part, and the normalization."""

    def __init__(self, model: torch.nn.Module, norm: Normalizer | None) -> None:
        super().__init__()
        self.model = model
        self.norm = norm


class PolicyModel:
    """A policy's model: as a whole for the learner, and the part that acts.

    Attributes:
        whole: as the algorithm made it.
        norm: of its observations; None leaves them.
        acting: `whole.acting` if it has that attribute, otherwise the whole; with the normalization.
    """

    def __init__(self, whole: torch.nn.Module, norm: Normalizer | None) -> None:
        self.whole = whole
        self.norm = norm
        self.acting = ActingModel(getattr(whole, "acting", whole), norm)

    def to(self, device: torch.device) -> PolicyModel:
        """Moves the tensors to a device; returns the model."""
        self.whole.to(device)
        self.acting.to(device)
        return self

    def saved(self) -> dict[str, Any]:
        """The weights for a checkpoint; copies, since torch saves no views of one storage that differ in dtype."""
        return {"network": _copied(self.whole), "norm": None if self.norm is None else _copied(self.norm)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the weights of a checkpoint: a learner's, or an evaluator's with those of the acting part alone."""
        if "acting" in state:
            self.acting.load_state_dict(state["acting"])
            return
        self.whole.load_state_dict(state["network"])
        if self.norm is not None and state.get("norm") is not None:
            self.norm.load_state_dict(state["norm"])


def _copied(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


class Policy:
    """An algorithm with the acting part of a model.

    Args:
        algorithm: chooses actions.
        model: on `device`.
        generator: for the algorithm's draws.
        device: of the model.
        explore: the numbers of exploration; None acts greedily.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: ActingModel,
        generator: np.random.Generator,
        device: torch.device,
        explore: Mapping[str, Any] | None = None,
    ) -> None:
        self._algorithm = algorithm
        self._model = model.model
        self._norm = model.norm
        self._generator = generator
        self._device = device
        self._explore = explore

    @property
    def version(self) -> int:
        """The version of the acting weights; 0 where they were not published."""
        return 0

    def act(self, obs: Values, at: Any, state: Mapping[str, torch.Tensor] | None) -> Action:
        """Chooses actions for the k observations of the copies `at`, stacked if the model wants that."""
        tensors = each(lambda array: torch.from_numpy(array).to(self._device), obs)
        mask = tensors.get(MASK) if isinstance(tensors, dict) else None
        if mask is not None and mask.ndim == 3:
            mask = mask[:, -1]  # of the newest observation of a stack
        if self._norm is not None:
            tensors = self._norm(tensors)
        return self._algorithm.act(
            self._model, tensors, explore=self._exploration(at), state=state, mask=mask, generator=self._generator
        )

    def _exploration(self, at: Any) -> Mapping[str, Any] | None:
        return self._explore


class Subscriber(Protocol):
    """A source of a policy's newest weights; see weights/store.py."""

    version: int
    extras: Mapping[str, Any]

    def pull(self, timeout: float = 1.0) -> bool: ...

    @property
    def newest(self) -> int: ...


class PublishedPolicy(Policy):
    """A policy kept up to date with its learner's publications, which explores as they say.

    Args:
        subscriber: of the policy's weights.
        exponents: float64 [copies], of epsilon in each copy of the environment.
        sync_interval: rounds between pulls.
        max_lag: versions by which weights may be behind; staler ones are pulled before the next turn. None: any number.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: ActingModel,
        generator: np.random.Generator,
        device: torch.device,
        subscriber: Subscriber,
        exponents: NDArray[np.float64],
        sync_interval: int = 1,
        max_lag: int | None = None,
    ) -> None:
        super().__init__(algorithm, model, generator, device, {})
        self._subscriber = subscriber
        self._sync_interval = sync_interval
        self._rounds = 0
        self._max_lag = max_lag
        self._exponents = None if (exponents == 1.0).all() else exponents

    @property
    def version(self) -> int:
        """The version of the acting weights, 0 before the first pull."""
        return self._subscriber.version

    @property
    def lag(self) -> int:
        """Versions published since the acting weights."""
        return self._subscriber.newest - self._subscriber.version

    @property
    def extras(self) -> Mapping[str, Any]:
        """The numbers that were published with the acting weights."""
        return self._subscriber.extras

    def pull_if_due(self) -> None:
        """Pulls in every `sync_interval`-th round, and where the weights are behind by more than `max_lag` versions."""
        if self._rounds % self._sync_interval == 0 or (self._max_lag is not None and self.lag > self._max_lag):
            self.pull()
        self._rounds += 1

    def pull(self) -> bool:
        """Takes newer weights, if any; it waits for them only while it has none."""
        try:
            pulled = self._subscriber.pull(timeout=0.0 if self.version else FIRST_PULL_S)
        except TimedOut:
            return False  # their learner is overwriting them, or died doing so: the next pull gets them
        if pulled:
            explore = exploration_of(self._subscriber.extras)
            if self._exponents is not None and "epsilon" in explore:
                explore["epsilon"] = explore["epsilon"] ** self._exponents
            self._explore = explore
        return pulled

    def _exploration(self, at: Any) -> Mapping[str, Any] | None:
        if self._exponents is None or self._explore is None or "epsilon" not in self._explore:
            return self._explore
        return {**self._explore, "epsilon": self._explore["epsilon"][at]}


def exploration_of(extras: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of exploration among what was published with the weights."""
    return {name: value for name, value in extras.items() if name not in NO_EXPLORATION}


class PolicyPlayer:
    """The player of a policy: it remembers each copy's stack of observations and recurrent state.

    Args:
        policy: chooses the actions.
        spaces: the agent's.
        copies: of the environment.
        pad: the padding of stacks; the same as in training.

    Attributes:
        before: the recurrent state, [k, ...] by name, with which the last actions were chosen; empty without one.
    """

    def __init__(self, policy: Policy, spaces: Spaces, copies: int, pad: Literal["repeat", "zero"]) -> None:
        self.policy = policy
        self._copies = copies
        self._action = spaces.action_field
        self._spaces = spaces
        self._choices = np.zeros(0, np.int64)  # of the action 0: where all copies' masks, flattened, hold it
        if spaces.masked:
            self._choices = np.add.outer(np.arange(copies) * spaces.choices, spaces.first_choices).ravel()
        self._stack = Stack(spaces.obs, copies, spaces.stack, pad) if spaces.stack > 1 else None
        self._state: dict[str, torch.Tensor] | None = None
        self.before: Mapping[str, torch.Tensor] = {}

    def choose(self, obs: Values, at: Any, begins: NDArray[np.bool_]) -> Action:
        """Chooses actions for the k observations of the copies `at`, of which some begin an episode.

        Raises: ValueError, TypeError: the algorithm's actions have another shape or dtype, are not finite or are ones
            that the mask forbids, or its state has other parts or another shape than before.
        """
        mask = obs[MASK] if self._spaces.masked else None
        if self._stack is not None:
            obs = self._stack.push(obs, at, begins)
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
        if mask is not None:
            self._check_allowed(action, mask)
        if chosen.state is not None:
            self.before = state or {name: torch.zeros_like(rows) for name, rows in chosen.state.items()}
            self._keep(chosen.state, at, len(begins))
        return chosen if action is chosen.action else chosen._replace(action=action)

    def _check_allowed(self, action: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        """Checks actions [k, ...] against the masks [k, choices]; the environment refuses those outside the space."""
        allowed = mask.take(action.ravel() + self._choices[: action.size], mode="clip")
        if not allowed.all():
            row = action[int(np.argmin(allowed.reshape(len(action), -1).all(axis=1)))]
            raise ValueError(
                f"action of the algorithm: expected one that {MASK} allows, got {self._spaces.shifted(row).tolist()}"
            )

    def _keep(self, state: Mapping[str, torch.Tensor], at: Any, rows: int) -> None:
        """Keeps the state [rows, ...] of the copies `at`, and leaves `before` as it is."""
        if self._state is None:
            self._state = {name: part.new_zeros((self._copies, *part.shape[1:])) for name, part in state.items()}
        if state.keys() != self._state.keys():
            raise names_error("state of the algorithm", self._state, state)
        for name, kept in self._state.items():
            if state[name].shape != (rows, *kept.shape[1:]):
                expected, came = (rows, *kept.shape[1:]), tuple(state[name].shape)
                raise ValueError(f"{name} of the algorithm's state: expected shape {expected}, got {came}")
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
