"""What actors and learners expect of an environment and of an algorithm; they meet nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .spec import Field

if TYPE_CHECKING:
    import torch

    from .transitions import Batch

__all__ = ["Algorithm", "BatchSource", "Environment", "Gate", "Publisher", "Trainer"]


class Environment(Protocol):
    """Agents act one after another (PettingZoo's agent-environment cycle).

    An episode: `reset`, then while `agent` is not None: read `last`, then `step` with that agent's action.
    An agent whose `last` says terminated or truncated gets one more turn, with the action None.
    """

    agents: tuple[str, ...]  # every agent that may ever act, in a fixed order
    observations: Mapping[str, Field]  # by agent: the shape and dtype of one observation
    actions: Mapping[str, int]  # by agent: the number of discrete actions

    @property
    def agent(self) -> str | None:
        """Whose turn it is; None when the episode is over for everybody."""

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode; a seed makes it and all that follow reproducible."""

    def last(self) -> tuple[NDArray[Any], float, bool, bool]:
        """(observation, reward since this agent's previous action, terminated, truncated) of `agent`."""

    def step(self, action: int | None) -> None:
        """`agent` acts; None from an agent whose episode has ended."""

    def close(self) -> None:
        """Give back what the environment holds."""


class Trainer(Protocol):
    """The learning half of an algorithm, for one agent."""

    def update(self, batch: Any) -> Mapping[str, torch.Tensor]:
        """Learn from a batch.

        Args:
            batch: what `Batch.torch` gives, on the network's device, of B transitions: `obs` and `next_obs` as the
                network takes them, `action` int64 [B], `reward` float32 [B] (of n steps, discounted), `discount`
                float32 [B] of `next_obs`, 0 where the episode terminated, `weight` float32 [B], 1 by default.

        Returns: detached scalars, which become metrics; at least "loss".
        """

    def state_dict(self) -> dict[str, Any]:
        """All that training needs to go on, besides the network: target network, optimizer; tensors, plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`."""


class Algorithm(Protocol):
    """Hyperparameters, and what is made from them: network, act, update.

    Each agent has a network of its own: its learner trains it, its actors act with copies that follow. So an algorithm
    keeps no state. Best it is a frozen dataclass in a module: then `marlcore train --algo module:Class` has its fields
    as options, and `--resume` finds it again. A whole one in 60 lines is examples/custom_algorithm.py.
    """

    def make_network(self, observation: Field, actions: int, stack: int) -> torch.nn.Module:
        """An untrained network, on the CPU.

        Args:
            observation: shape and dtype of one observation; nothing is scaled or converted before the network has it.
            actions: how many there are.
            stack: frames of an observation; the input is [B, *shape], or [B, stack, *shape] when stack > 1.
        """

    def act(
        self, network: torch.nn.Module, obs: torch.Tensor, epsilon: float, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Actions [B] for observations [B, ...], which are on the network's device.

        Args:
            epsilon: the share of random actions, as the configuration's exploration schedules it.
            rng: the actor's own; what is drawn from it is repeated under the same seed.
        """

    def make_trainer(self, network: torch.nn.Module) -> Trainer:
        """A trainer that updates `network` in place, on the device where it is.

        The network's tensors are views of one flat tensor by then: change their values, do not replace them.
        """


class BatchSource(Protocol):
    """Where a learner's batches come from: a `Sampler`, a `Mixture`, a `Prefetch`."""

    def sample(self, timeout: float | None = None) -> Batch: ...


class Publisher(Protocol):
    """Where a learner's weights go: what `ParameterStore.publisher` makes."""

    def publish(self, **extras: Any) -> int: ...


class Gate(Protocol):
    """What a writer passes before it adds.

    Attributes:
        spare_rows: rows of a lane that an add leaves alone.
    """

    spare_rows: int

    def wait(self, transitions: int, boundaries: int, timeout: float | None, check_open: Callable[[], None]) -> bool:
        """Waits until so many rows may be added; False when they shall be left out.

        Args:
            transitions, boundaries: how many rows of each.
            timeout: seconds; None waits for ever.
            check_open: raises when the writer was closed meanwhile.

        Raises: TimeoutError: they may not be added after so long. ValueError: no wait would ever be enough.
        """
