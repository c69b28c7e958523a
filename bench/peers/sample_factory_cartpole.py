"""Sample Factory's APPO on CartPole: a program for the environment that `python -m bench install` makes."""

import tempfile
from typing import Any

import gymnasium

OPTIONS = {
    "algo": "APPO", "env": "CartPole-v1", "experiment": "cartpole", "device": "cpu", "num_workers": 1,
    "num_envs_per_worker": 16, "worker_num_splits": 2, "rollout": 32, "recurrence": 1, "batch_size": 512,
    "num_batches_per_epoch": 1, "num_epochs": 1, "use_rnn": False, "decorrelate_experience_max_seconds": 0,
    "nonlinearity": "relu", "normalize_input": False, "normalize_returns": False, "train_for_env_steps": 200_000,
    "save_every_sec": 1000,
}  # fmt: skip


def make(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> gymnasium.Env:
    return gymnasium.make(name)


def main() -> None:
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import run_rl

    register_env("CartPole-v1", make)
    with tempfile.TemporaryDirectory() as folder:
        options = [f"--{name}={value}" for name, value in {**OPTIONS, "train_dir": folder}.items()]
        options += ["--encoder_mlp_layers", "64", "64"]
        parser, _ = parse_sf_args(options)
        run_rl(parse_full_cfg(parser, options))


if __name__ == "__main__":
    main()
