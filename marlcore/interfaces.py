"""The interfaces of environments, algorithms and trainers, between which actors and learners work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .spec import Field

if TYPE_CHECKING:
    import torch

    from .transitions import Batch

__all__ = ["Algorithm", "BatchSource", "Environment", "Gate", "Publisher", "Trainer", "VectorGate"]


class Environment(Protocol):
    """An environment whose agents act one after another (PettingZoo's agent-environment cycle).

    In an episode, call `reset`; then, while `agent` is not None, read `last` and call `step` with that agent's action.
    An agent whose `last` is terminated or truncated gets one more turn, with the action None.
    """

    agents: tuple[str, ...]  # every agent that may ever act, in a fixed order
    observations: Mapping[str, Field]  # by agent: the shape and dtype of one observation
    actions: Mapping[str, int]  # by agent: the number of discrete actions

    @property
    def agent(self) -> str | None:
        """The agent that acts next; None when the episode is over for all agents."""

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode; a seed makes this episode and all later ones reproducible."""

    def last(self) -> tuple[NDArray[Any], float, bool, bool]:
        """(observation, reward since this agent's previous action, terminated, truncated) of `agent`."""

    def step(self, action: int | None) -> None:
        """Perform an action of `agent`; None for an agent whose episode has ended."""

    def close(self) -> None:
        """Release the environment's resources."""


class Trainer(Protocol):
    """The learning half of an algorithm, for one agent."""

    def update(self, batch: Any) -> Mapping[str, torch.Tensor]:
        """Learn from a batch.

        Args:
            batch: B transitions as returned by `Batch.torch`, on the network's device: `obs` and `next_obs` in the
                network's input shape, `action` int64 [B], `reward` float32 [B] (the discounted n-step sum), `discount`
                float32 [B] of `next_obs`, 0 where the episode terminated, `weight` float32 [B], 1 by default.

        Returns: detached scalars, logged as metrics; at least "loss".
        """

    def state_dict(self) -> dict[str, Any]:
        """The state besides the network that resuming needs: target network, optimizer; tensors, plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict`."""


class Algorithm(Protocol):
    """Hyperparameters, with functions that make the network, choose actions and make the trainer.

    Each agent has its own network: its learner trains it, and its actors act with copies that follow. So an algorithm
    keeps no state. Preferably write it as a frozen dataclass in a module: then `marlcore train --algo module:Class`
    offers its fields as options, and `--resume` can import it again. Example: examples/custom_algorithm.py, 60 lines.
    """

    def make_network(self, observation: Field, actions: int, stack: int) -> torch.nn.Module:
        """An untrained network, on the CPU.

        Args:
            observation: shape and dtype of one observation; the network gets it neither scaled nor converted.
            actions: the number of actions.
            stack: frames of an observation; the input is [B, *shape], or [B, stack, *shape] when stack > 1.
        """

    def act(
        self, network: torch.nn.Module, obs: torch.Tensor, epsilon: float, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Choose actions [B] for observations [B, ...] on the network's device.

        Args:
            epsilon: the probability of a random action, from the configuration's exploration schedule.
            rng: the actor's own generator; the same seed repeats its draws.
        """

    def make_trainer(self, network: torch.nn.Module) -> Trainer:
        """A trainer that updates `network` in place, on its device.

        The network's tensors are by then views of one flat tensor: change their values, do not replace them.
        """


class BatchSource(Protocol):
    """A source of a learner's batches: a `Sampler`, a `Mixture` or a `Prefetch`."""

    def sample(self, timeout: float | None = None) -> Batch: ...


class Publisher(Protocol):
    """A destination of a learner's weights, made by `ParameterStore.publisher`."""

    def publish(self, **extras: Any) -> int: ...


class Gate(Protocol):
    """A condition that a writer passes before each add.

    Attributes:
        spare_rows: rows of a lane that an add leaves free.
    """

    spare_rows: int

    def wait(self, transitions: int, boundaries: int, timeout: float | None, check_open: Callable[[], None]) -> bool:
        """Waits until these rows may be added; False means that the writer must drop them.

        Args:
            transitions, boundaries: how many rows of each kind.
            timeout: seconds; None waits for ever.
            check_open: raises if the writer was closed meanwhile.

        Raises: TimeoutError: the wait exceeded the timeout. ValueError: no wait would ever be enough.
        """


class VectorGate(Protocol):
    """A condition that the writer of several lanes passes before each add."""

    def wait_each(
        self,
        which: NDArray[np.int64],
        boundaries: NDArray[np.bool_],
        timeout: float | None,
        check_open: Callable[[], None],
    ) -> NDArray[np.bool_] | bool:
        """Waits until a row may be added to each of k lanes; returns the rows that the writer must drop, bool [k].

        Args:
            which: int64 [k], the lanes, as indices of the writer's lanes.
            boundaries: bool [k], the rows that a boundary row follows.
            timeout, check_open: see `Gate.wait`.

        Raises: as `Gate.wait`.
        """
