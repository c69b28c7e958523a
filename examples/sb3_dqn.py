"""Stable-Baselines3's DQN with marlcore's buffer, which another process reads while the learner trains.

    pip install "marlcore[compat]" && python examples/sb3_dqn.py --timesteps 40000

One argument changes: `replay_buffer_class`. The rows then lie in shared memory, and a second process can read them: it
reports how far the pole leans in the last 10,000 rows, which becomes less while the policy learns.
"""

import time
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
import tyro
from stable_baselines3 import DQN
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

import marlcore as mc
from marlcore.compat.stable_baselines3 import ReplayBuffer


@dataclass
class Args:
    seed: int = 0
    timesteps: int = 40_000


def watch(context: mc.WorkerContext, replay: mc.ReplayBuffer) -> None:
    """Reports the pole's mean lean in the rows held, in degrees; takes no lock and changes nothing."""
    sampler = replay.sampler(batch_size=256, min_size=256)
    while not context.stopping:
        lean = np.abs(sampler.sample(timeout=60.0).obs.reshape(-1, 4)[:, 2]).mean()
        context.report("lean", np.degrees(lean))
        time.sleep(0.2)


def main(args: Args) -> float:
    torch.set_num_threads(1)
    model = DQN(
        "MlpPolicy",
        gym.make("CartPole-v1"),
        replay_buffer_class=ReplayBuffer,  # the change
        buffer_size=10_000,
        learning_rate=2e-3,
        batch_size=64,
        learning_starts=1_000,
        target_update_interval=10,
        train_freq=256,
        gradient_steps=128,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [128, 128]},
        seed=args.seed,
        device="cpu",
    )
    with mc.Workers() as workers:
        workers.start(watch, model.replay_buffer.replay)
        model.learn(args.timesteps)
    lean = [report.value for report in workers.reports()]
    mean, _ = evaluate_policy(model, Monitor(gym.make("CartPole-v1")), n_eval_episodes=20)
    print(f"the pole leant by {lean[0]:.1f} degrees at first and by {lean[-1]:.1f} at last; mean return {mean:.1f}")
    model.replay_buffer.close()
    return mean


if __name__ == "__main__":
    main(tyro.cli(Args))
