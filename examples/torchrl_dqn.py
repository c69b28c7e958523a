"""TorchRL's DQN loss with marlcore's buffer: collectors in processes of their own extend it, and the learner samples.

    pip install "marlcore[compat]" && python examples/torchrl_dqn.py --updates 5000

The buffer takes the place of TorchRL's `TensorDictReplayBuffer(storage=LazyTensorStorage(...))`. It is passed to the
collectors, each of which writes to a lane of its own. Weights travel through a ParameterStore.
"""

import time
import warnings
from contextlib import closing
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
import tyro
from tensordict import TensorDict
from torch import nn

import marlcore as mc

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of TorchRL's extension for priorities, which is not needed
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss, SoftUpdate

    from marlcore.compat.torchrl import TensorDictReplayBuffer

COLLECTORS = 2
PIECE = 50  # rows that a collector adds at once


@dataclass
class Args:
    seed: int = 0
    updates: int = 5_000


def q_network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2))


def row(obs: np.ndarray, action: int, reward: float, done: bool, terminated: bool, next_obs: np.ndarray) -> TensorDict:
    """A transition in the form of TorchRL's collectors."""
    after = {"observation": torch.from_numpy(next_obs), "reward": torch.tensor([reward])}
    after |= {"done": torch.tensor([done]), "terminated": torch.tensor([terminated])}
    one_hot = nn.functional.one_hot(torch.tensor(action), 2)
    return TensorDict({"observation": torch.from_numpy(obs), "action": one_hot, "next": after}, [])


def collect(context: mc.WorkerContext, buffer: TensorDictReplayBuffer, store: mc.ParameterStore, seed: int) -> None:
    env, network, rng = gym.make("CartPole-v1"), q_network(), np.random.default_rng(seed)
    weights, obs, rows, episode = store.subscriber(network), env.reset(seed=seed)[0], [], 0.0
    while not context.stopping:
        weights.pull()
        with torch.no_grad():
            greedy = int(network(torch.from_numpy(obs)).argmax())
        action = int(rng.integers(2)) if rng.random() < weights.extras.get("epsilon", 1.0) else greedy
        next_obs, reward, terminated, truncated, _ = env.step(action)
        rows.append(row(obs, action, float(reward), terminated or truncated, terminated, next_obs))
        obs, episode = next_obs, episode + float(reward)
        if terminated or truncated:
            context.report("return", episode)
            obs, episode = env.reset()[0], 0.0
        if len(rows) == PIECE:
            buffer.extend(torch.stack(rows))
            rows.clear()


def main(args: Args) -> list[tuple[int, float]]:
    """Trains; returns the update and the return of each episode."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    network = q_network()
    values = QValueActor(network, action_space="one_hot", in_keys=["observation"])
    loss = DQNLoss(values, action_space="one_hot", delay_value=True)
    loss.make_value_estimator(gamma=0.98)
    target, optimizer = SoftUpdate(loss, eps=0.99), torch.optim.Adam(loss.parameters(), lr=1e-3)
    nothing = np.zeros(4, np.float32)
    example, episodes = row(nothing, 0, 0.0, False, False, nothing), []
    with (
        closing(TensorDictReplayBuffer(50_000, lanes=COLLECTORS, batch_size=128, example=example)) as buffer,
        mc.ParameterStore.create(network, extras={"epsilon": ()}) as store,
        store.publisher(network) as publisher,
        mc.Workers() as workers,
    ):
        for number in range(COLLECTORS):
            workers.start(collect, buffer, store, args.seed * 1_000 + number)
        while len(buffer) < 1_000:
            workers.check()
            time.sleep(0.05)
        for update in range(args.updates):
            optimizer.zero_grad()
            loss(buffer.sample())["loss"].backward()
            optimizer.step()
            target.step()
            publisher.publish(epsilon=max(0.05, 1 - 2 * update / args.updates))
            episodes += [(update, report.value) for report in workers.reports()]
    print(f"{len(episodes)} episodes, the last 100 returned {np.mean([value for _, value in episodes[-100:]]):.1f}")
    return episodes


if __name__ == "__main__":
    main(tyro.cli(Args))
