"""CleanRL's DQN made asynchronous: actors play CartPole in processes of their own while the learner trains.

    python examples/dqn_async.py --seed 1 --total-timesteps 50000

A file that is read from top to bottom, in CleanRL's manner (Huang et al. 2022, JMLR 23), with its names. `# marlcore:`
marks the lines that a serial loop does not have. A limiter keeps the serial loop's ratio of updates to steps.
"""

import copy
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
import tyro
from torch import nn

import marlcore as mc


@dataclass
class Args:
    seed: int = 1
    env_id: str = "CartPole-v1"
    total_timesteps: int = 50_000
    learning_rate: float = 5e-4
    buffer_size: int = 50_000
    gamma: float = 0.98
    target_network_frequency: int = 500  # timesteps
    batch_size: int = 128
    end_e: float = 0.05
    exploration_fraction: float = 0.3  # of the timesteps, until epsilon is end_e
    learning_starts: int = 1_000
    train_frequency: int = 4  # timesteps of an update
    num_actors: int = 2


class QNetwork(nn.Sequential):
    def __init__(self, env: gym.Env) -> None:
        inputs, outputs = int(np.prod(env.observation_space.shape)), int(env.action_space.n)
        super().__init__(nn.Linear(inputs, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs))


# marlcore: the serial loop's half that plays, as a function that runs in a process of its own
def act(context: mc.WorkerContext, args: Args, lane: int, replay: mc.ReplayBuffer, store: mc.ParameterStore) -> None:
    rng = np.random.default_rng([args.seed, lane])
    env = gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))
    q_network = QNetwork(env)
    weights = store.subscriber(q_network)  # marlcore: the learner's newest weights, copied into q_network by `pull`
    obs, _ = env.reset(seed=args.seed * 1_000 + lane)
    with replay.writer(lane) as writer:  # marlcore: each actor has a lane, so none waits for another
        while not context.stopping:  # marlcore: until the learner's block ends
            weights.pull()
            if rng.random() < weights.extras.get("epsilon", 1.0):  # marlcore: epsilon travels with the weights
                action = int(rng.integers(env.action_space.n))
            else:
                with torch.no_grad():
                    action = int(q_network(torch.from_numpy(obs)).argmax())
            next_obs, reward, terminated, truncated, info = env.step(action)
            ended = terminated or truncated
            # marlcore: next_obs is the next row's obs, so it is stored at an episode's end alone
            writer.add(obs, action, float(reward), terminated, truncated, final_obs=next_obs if ended else None)
            obs = env.reset()[0] if ended else next_obs
            if ended:
                context.report("episodic_return", info["episode"]["r"])  # marlcore: to the learner's process


def main(args: Args) -> list[tuple[int, float]]:
    """Trains; returns the step and the return of each episode."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    env = gym.make(args.env_id)
    q_network = QNetwork(env)
    target_network = copy.deepcopy(q_network)
    optimizer = torch.optim.Adam(q_network.parameters(), lr=args.learning_rate)
    spec = mc.TransitionSpec.from_spaces(env.observation_space, env.action_space)
    limiter = mc.RateLimiter(  # marlcore: actors and learner wait for each other beyond the tolerance
        args.batch_size / args.train_frequency, min_size=args.learning_starts, tolerance=8 * args.batch_size
    )
    episodes = []
    with (  # marlcore: shared memory and processes, which are gone when the block ends
        mc.ReplayBuffer.create(spec, args.buffer_size, lanes=args.num_actors, limiter=limiter) as replay,
        mc.ParameterStore.create(q_network, extras={"epsilon": ()}) as store,
        store.publisher(q_network) as publisher,
        mc.Workers() as workers,
    ):
        for lane in range(args.num_actors):
            workers.start(act, args, lane, replay, store)
        sampler = replay.sampler(args.batch_size, gamma=args.gamma, seed=args.seed)
        for global_step in range(args.learning_starts, args.total_timesteps, args.train_frequency):
            data = sampler.sample(timeout=120.0).torch()
            with torch.no_grad():  # marlcore: discount is gamma, and 0 where an episode terminated
                td_target = data.reward + data.discount * target_network(data.next_obs).amax(1)
            old_val = q_network(data.obs).gather(1, data.action[:, None]).squeeze(1)
            loss = nn.functional.mse_loss(td_target, old_val)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if global_step % args.target_network_frequency == 0:
                target_network.load_state_dict(q_network.state_dict())
            decayed = global_step / (args.exploration_fraction * args.total_timesteps)
            publisher.publish(epsilon=max(args.end_e, 1 - decayed))  # marlcore: one copy, which no actor waits for
            episodes += [(global_step, report.value) for report in workers.reports()]  # marlcore: from the actors
    print(f"{len(episodes)} episodes, the last 100 returned {np.mean([value for _, value in episodes[-100:]]):.1f}")
    return episodes


if __name__ == "__main__":
    main(tyro.cli(Args))
