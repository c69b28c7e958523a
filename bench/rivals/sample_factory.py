"""Sample Factory's APPO, with a worker for each actor."""

import tempfile
from typing import Any

import gymnasium
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

from ..peers.setting import Setting
from .side import Tell


class Telling(AlgoObserver):  # type: ignore[misc]
    def __init__(self, tell: Tell, updates: int) -> None:
        self.tell, self.updates = tell, updates  # of a training iteration

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        if not self.tell(runner.total_env_steps_since_resume or 0, training_iteration_since_resume * self.updates):
            runner.cfg.train_for_env_steps = 0


def make(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> gymnasium.Env:
    return gymnasium.make(name)


def train(setting: Setting, tell: Tell, form: str) -> None:
    register_env(setting.env, make)
    steps = setting.batch // setting.minibatch  # of a pass
    options = {
        "algo": "APPO", "env": setting.env, "experiment": "peers", "device": "cpu", "num_workers": setting.actors,
        "num_envs_per_worker": setting.copies, "worker_num_splits": 2, "rollout": setting.batch // setting.copies,
        "recurrence": 1, "batch_size": setting.minibatch, "num_batches_per_epoch": steps, "num_epochs": setting.epochs,
        "use_rnn": False, "actor_critic_share_weights": False, "decorrelate_experience_max_seconds": 0,
        "nonlinearity": "tanh", "normalize_input": False, "normalize_returns": False, "save_every_sec": 1000,
        "train_for_env_steps": 10**9, "learning_rate": setting.learning_rate, "gamma": setting.gamma,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        words = [f"--{name}={value}" for name, value in {**options, "train_dir": folder}.items()]
        words += ["--encoder_mlp_layers", *map(str, setting.hidden)]
        parser, _ = parse_sf_args(words)
        _, runner = make_runner(parse_full_cfg(parser, words))
        runner.register_observer(Telling(tell, steps * setting.epochs))
        runner.init()
        runner.run()
