"""Learning from recorded data: behaviour cloning, surpassing the data's policy, and demonstrations beside live rows.

    python examples/offline.py [UPDATES]

A script balances CartPole for 20 episodes. `mc.BC` imitates it. Another script lets the pole fall after some 40 steps:
from its rows, half of them of random actions, `mc.CQL` learns to balance it several times as long, which `mc.BC`
cannot. Then a mixture draws a quarter of each batch from demonstrations, and the rest from rows that an actor adds.
docs/guides/recorded-data.md says more.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gymnasium
import numpy as np

import marlcore as mc


def controller(obs: Any) -> int:
    """Pushes to the side to which the pole falls, and gently back to the middle."""
    place, speed, angle, falling = obs
    return int(angle + 0.3 * falling + 0.02 * place + 0.05 * speed > 0)


def hasty(obs: Any) -> int:
    """Pushes to the side to which the pole leans, so it swings ever further."""
    return int(obs[2] > 0)


def demonstrations(
    episodes: int, seed: int = 0, clumsy: float = 0.0, act: Callable[[Any], Any] = controller, env: str = "CartPole-v1"
) -> Iterator[dict[str, Any]]:
    """Episodes of a script that takes a share of its actions at random."""
    world, rng = gymnasium.make(env), np.random.default_rng(seed)
    world.action_space.seed(seed)
    for episode in range(episodes):
        obs, actions, rewards = [world.reset(seed=seed + episode)[0]], [], []
        terminated = truncated = False
        while not (terminated or truncated):
            actions.append(act(obs[-1]) if rng.random() >= clumsy else world.action_space.sample())
            following, reward, terminated, truncated, _ = world.step(actions[-1])
            obs.append(following)
            rewards.append(reward)
        arrays = {"obs": np.array(obs), "action": np.array(actions), "reward": np.array(rewards)}
        yield {**arrays, "terminated": terminated, "truncated": truncated}


def learn(episodes: Iterable[dict[str, Any]], algorithm: Any, updates: int, **settings: Any) -> mc.Result:
    learner = mc.LearnerConfig(n_step=1, device="cpu")
    config = mc.Config(mode="serial", learner=learner, **settings)
    with mc.ReplayBuffer.from_episodes(episodes) as replay:
        return mc.train_offline(replay, algorithm, updates, "gymnasium:CartPole-v1", config, progress=False)


def clone(updates: int = 2_000, **settings: Any) -> mc.Result:
    """Imitates 20 episodes."""
    return learn(demonstrations(20), mc.BC(), updates, **settings)


def surpass(algorithm: Any, updates: int = 6_000, **settings: Any) -> mc.Result:
    """Learns from 200 hasty episodes."""
    return learn(demonstrations(200, clumsy=0.5, act=hasty), algorithm, updates, **settings)


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


def main(updates: int = 6_000) -> None:
    returns = [np.mean([episode["reward"].sum() for episode in demonstrations(20, clumsy=0.5, act=hasty)])]
    for result in (clone(updates // 3), surpass(mc.CQL(), updates), surpass(mc.BC(), updates)):
        returns.append(mc.evaluate(result.run_dir, episodes=20).mean["agent_0"])
    print("a balancing script: BC returns {1:.0f}; a hasty one ({0:.0f}): CQL {2:.0f}, BC {3:.0f}".format(*returns))
    print(f"{draw_beside_live_rows().source.tolist().count(0)} of 64 rows are demonstrations")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
