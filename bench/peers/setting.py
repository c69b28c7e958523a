"""The settings that all sides of a comparison of whole runs get; without imports that a library's environment lacks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """The settings of DQN, PPO or SAC: two hidden layers, one-step returns, Adam, a torch thread a process."""

    algorithm: str = "dqn"
    env: str = "CartPole-v1"
    copies: int = 16  # of the environment, of each actor
    actors: int = 1
    agents: int = 1
    nodes: int = 1  # of a Ray cluster, where more than one
    updates_per_step: float = 0.25
    batch: int = 64
    epochs: int = 1  # PPO's passes over a batch
    minibatch: int = 64  # of PPO
    hidden: tuple[int, int] = (64, 64)
    learning_rate: float = 2.5e-4
    gamma: float = 0.99
    warmup: int = 1000
    capacity: int = 100_000
    target_updates: int = 500  # between copies of the network to the target
    epsilon: float = 0.05  # constant
    tolerance: int = 32  # updates that a learner may be behind `updates_per_step`


def of_ppo(batch: int, minibatch: int, epochs: int, **others: object) -> Setting:
    per_step = {"updates_per_step": epochs / minibatch, "epochs": epochs, "minibatch": minibatch}
    return Setting("ppo", batch=batch, learning_rate=3e-4, warmup=1, **per_step, **others)  # type: ignore[arg-type]
