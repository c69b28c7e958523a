"""Stable-Baselines3's DQN, PPO or SAC, with all copies in one process."""

from typing import Any

import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from ..peers.setting import Setting
from .side import Tell


class Telling(BaseCallback):
    """Counts gradient steps, where PPO counts passes."""

    def __init__(self, tell: Tell, steps_of_pass: int) -> None:
        super().__init__()
        self.tell, self.steps_of_pass = tell, steps_of_pass

    def _on_step(self) -> bool:
        return self.tell(self.num_timesteps, self.model._n_updates * self.steps_of_pass)


def train(setting: Setting, tell: Tell, form: str) -> None:
    env = make_vec_env(setting.env, n_envs=setting.copies, seed=0)
    every: dict[str, Any] = {"learning_rate": setting.learning_rate, "gamma": setting.gamma, "device": "cpu", "seed": 0}
    policy: dict[str, Any] = {"net_arch": [*setting.hidden]}
    if setting.algorithm == "ppo":
        policy["activation_fn"] = torch.nn.Tanh
        model: Any = PPO(
            "MlpPolicy", env, n_steps=setting.batch // setting.copies, batch_size=setting.minibatch,
            n_epochs=setting.epochs, policy_kwargs=policy, **every,
        )  # fmt: skip
        passed = setting.batch // setting.minibatch
    else:  # one call of `step` steps all copies
        passed, calls = 1, max(1, round(1 / (setting.updates_per_step * setting.copies)))
        every |= {"buffer_size": setting.capacity, "learning_starts": setting.warmup, "batch_size": setting.batch}
        every |= {"train_freq": calls, "gradient_steps": round(calls * setting.copies * setting.updates_per_step)}
        if setting.algorithm == "sac":
            model = SAC("MlpPolicy", env, policy_kwargs=policy, **every)
        else:
            explored = {"exploration_initial_eps": setting.epsilon, "exploration_final_eps": setting.epsilon}
            target = round(setting.target_updates / setting.updates_per_step)
            every |= {"target_update_interval": target, **explored}
            model = DQN("MlpPolicy", env, policy_kwargs=policy, **every)
    model.learn(10**9, callback=Telling(tell, passed))
