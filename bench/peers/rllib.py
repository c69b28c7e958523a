"""RLlib's APPO, IMPALA and PPO on CartPole, with an environment runner on each node of a Ray cluster."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

NODES = 2
NEEDED = "dm_tree", "gymnasium", "ormsgpack", "pandas", "pyarrow", "tensorboardX"
INSTALL = 'pip install "ray[rllib]"'

Tell = Callable[[int, int, float], bool]  # takes steps sampled and trained so far, and a mean return; False: stop


@dataclass(frozen=True)
class Work:
    """What all sides do: `batch` rows from one policy to the next, in steps on `minibatch` of them."""

    batch: int
    minibatch: int
    hidden: int = 256  # units in each of two layers
    copies: int = 16  # of the environment, of each actor
    vectorized: bool = False  # all copies of an actor are stepped by one call of NumPy's
    actors: int = NODES
    activation: Literal["tanh"] = "tanh"
    learning_rate: float = 3e-4
    gamma: float = 0.99


def missing() -> str:
    """The packages that RLlib lacks here, and the command that installs them; "" where it can be imported."""
    lacks = [name for name in NEEDED if find_spec({"dm_tree": "tree"}.get(name, name)) is None]
    return f"RLlib lacks {', '.join(lacks)}; `{INSTALL}` installs it" if lacks else ""


def train(algorithm: str, work: Work, address: str, tell: Tell) -> None:
    """Trains until `tell` says no; the learner is in this process, where it needs the least CPU time."""
    import ray
    import torch

    torch.set_num_threads(1)
    ray.init(address=address, log_to_driver=False, logging_level="error")
    trainer, goes_on = configured(algorithm, work).build_algo(), True
    while goes_on:
        result = trainer.train()
        sampled = result["env_runners"].get("num_env_steps_sampled_lifetime", 0)
        trained = result.get("learners", {}).get("default_policy", {}).get("num_module_steps_trained_lifetime", 0)
        goes_on = tell(int(sampled), int(trained), float(result["env_runners"].get("episode_return_mean", 0.0)))
    trainer.stop()
    ray.shutdown()


def configured(algorithm: str, work: Work) -> Any:
    from ray.rllib.algorithms.appo import APPOConfig
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    config: Any = {"APPO": APPOConfig, "IMPALA": IMPALAConfig, "PPO": PPOConfig}[algorithm]()
    hidden = [work.hidden] * 2
    network = DefaultModelConfig(fcnet_hiddens=hidden, fcnet_activation=work.activation, vf_share_layers=False)
    fragment = "auto" if algorithm == "PPO" else max(1, work.batch // work.copies)
    config = (
        config.environment("CartPole-v1")
        .env_runners(
            num_env_runners=work.actors,
            num_envs_per_env_runner=work.copies,
            rollout_fragment_length=fragment,
            gym_env_vectorize_mode="vector_entry_point" if work.vectorized else "sync",
        )
        .learners(num_learners=0)
        .rl_module(model_config=network)
        .training(train_batch_size_per_learner=work.batch, lr=work.learning_rate, gamma=work.gamma)
        .reporting(min_time_s_per_iteration=1)
    )
    if algorithm == "APPO":  # one pass, as the others
        return config.training(circular_buffer_num_batches=1, circular_buffer_iterations_per_batch=1)
    if algorithm == "PPO":
        return config.training(num_epochs=1, minibatch_size=work.minibatch)
    return config
