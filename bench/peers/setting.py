"""The work that all sides of a training run get, and what each returns."""

from dataclasses import dataclass

COPIES = 16  # of the environment


@dataclass(frozen=True)
class Setting:
    """The settings of DQN or PPO that all libraries get: two hidden layers, one-step returns, Adam."""

    updates_per_step: float = 0.25
    batch: int = 64
    epochs: int = 1  # PPO's passes over a batch
    minibatch: int | None = None  # of PPO; None: the batch
    hidden: int = 64
    learning_rate: float = 2.5e-4
    gamma: float = 0.99
    warmup: int = 1000
    capacity: int = 100_000
    target_updates: int = 500  # between copies of the network to the target
    epsilon: float = 0.05  # constant
    tolerance: int = 32  # updates that a learner may be behind `updates_per_step`


@dataclass(frozen=True)
class Trained:
    """A run: its steps a second after the warm-up, the steps and the updates of all agents."""

    rate: float
    steps: int
    updates: int

    def checked_rate(self, setting: Setting, agents: int = 1) -> float:
        """Raises AssertionError: the run did not make the updates that its steps call for."""
        due = (self.steps - agents * setting.warmup) * setting.updates_per_step
        assert abs(self.updates - due) <= 0.02 * due + 2 * agents * setting.tolerance, (self, due)
        return self.rate
