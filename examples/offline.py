"""Learning from demonstrations: behaviour cloning, and demonstrations beside live rows.

    python examples/offline.py

A script balances CartPole for 20 episodes. `mc.BC` imitates it; then a mixture draws a quarter of each batch from the
demonstrations, and the rest from rows that an actor adds. docs/training.md says more.
"""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

import marlcore as mc


def controller(obs: Any) -> int:
    """Pushes to the side to which the pole falls, and gently back to the middle."""
    place, speed, angle, falling = obs
    return int(angle + 0.3 * falling + 0.02 * place + 0.05 * speed > 0)


def demonstrations(episodes: int, seed: int = 0, clumsy: float = 0.0) -> Iterator[dict[str, Any]]:
    """Episodes of the controller, of whose actions a share is random."""
    env, rng = gymnasium.make("CartPole-v1"), np.random.default_rng(seed)
    for episode in range(episodes):
        obs, actions, rewards = [env.reset(seed=seed + episode)[0]], [], []
        terminated = truncated = False
        while not (terminated or truncated):
            actions.append(controller(obs[-1]) if rng.random() >= clumsy else int(rng.integers(2)))
            following, reward, terminated, truncated, _ = env.step(actions[-1])
            obs.append(following)
            rewards.append(reward)
        arrays = {"obs": np.array(obs), "action": np.array(actions), "reward": np.array(rewards)}
        yield {**arrays, "terminated": terminated, "truncated": truncated}


def clone(updates: int = 2_000, **settings: Any) -> mc.Result:
    """Imitates 20 episodes."""
    learner = mc.LearnerConfig(n_step=1, device="cpu")
    config = mc.Config(mode="serial", learner=learner, **settings)
    with mc.ReplayBuffer.from_episodes(demonstrations(20)) as replay:
        return mc.train_offline(replay, mc.BC(), updates, "gymnasium:CartPole-v1", config, progress=False)


def draw_beside_live_rows(batch_size: int = 64) -> mc.Batch:
    """A batch of which a quarter are demonstrations."""
    with (
        mc.ReplayBuffer.from_episodes(demonstrations(2)) as demonstrated,
        mc.ReplayBuffer.create(demonstrated.spec, capacity=10_000) as live,
    ):
        with live.writer() as writer:  # your actors', in their processes
            for episode in demonstrations(2, seed=100, clumsy=1.0):
                ends = np.arange(len(episode["reward"])) == len(episode["reward"]) - 1
                fields = {name: episode[name] for name in ("action", "reward")}
                writer.add_batch(obs=episode["obs"][:-1], **fields, terminated=ends & episode["terminated"])
        return mc.Mixture([demonstrated, live], fractions=[0.25, 0.75], batch_size=batch_size).sample()


if __name__ == "__main__":
    result = clone()
    print(mc.evaluate(result.run_dir, episodes=20).mean, draw_beside_live_rows().obs.shape)
