"""CleanRL's PPO made asynchronous: actors play CartPole in processes of their own while the learner trains.

    python examples/ppo_async.py --seed 1 --total-timesteps 100000

A file that is read from top to bottom, in CleanRL's manner (Huang et al. 2022, JMLR 23), with its names. `# marlcore:`
marks the lines that a serial loop does not have. A queue keeps actors at most one batch ahead of the learner.
"""

from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
import tyro
from torch import nn
from torch.distributions import Categorical

import marlcore as mc


@dataclass
class Args:
    seed: int = 1
    env_id: str = "CartPole-v1"
    total_timesteps: int = 100_000
    learning_rate: float = 1e-3
    batch_size: int = 1_024
    num_minibatches: int = 4
    update_epochs: int = 4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_coef: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    num_actors: int = 2


def agent_of(env: gym.Env) -> nn.ModuleDict:
    def layers(outputs: int) -> nn.Sequential:
        inputs = int(np.prod(env.observation_space.shape))
        return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))

    return nn.ModuleDict({"critic": layers(1), "actor": layers(int(env.action_space.n))})


# marlcore: the serial loop's half that plays, as a function that runs in a process of its own
def act(context: mc.WorkerContext, args: Args, lane: int, queue: mc.TrajectoryQueue, store: mc.ParameterStore) -> None:
    torch.manual_seed(args.seed * 1_000 + lane)
    env = gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))
    agent = agent_of(env)
    weights = store.subscriber(agent)  # marlcore: the learner's newest weights, copied into the agent by `pull`
    obs, _ = env.reset(seed=args.seed * 1_000 + lane)
    with queue.writer(lane) as writer:  # marlcore: waits while a batch lies unread, so that the rows are on-policy
        while not context.stopping:  # marlcore: until the learner's block ends
            weights.pull()
            with torch.no_grad():
                policy = Categorical(logits=agent["actor"](torch.from_numpy(obs)))
                action = policy.sample()
            next_obs, reward, terminated, truncated, info = env.step(int(action))
            ended = terminated or truncated
            final = next_obs if ended else None  # marlcore: otherwise it is the next row's obs
            writer.add(obs, action, float(reward), terminated, truncated, final, logprob=policy.log_prob(action))
            obs = env.reset()[0] if ended else next_obs
            if ended:
                context.report("episodic_return", info["episode"]["r"])  # marlcore: to the learner's process


def advantages_of(critic: nn.Module, data: mc.Batch, args: Args) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalized advantage estimates and returns, [B]."""
    with torch.no_grad():
        values, next_values = critic(data.obs)[:, 0], critic(data.next_obs)[:, 0]
    advantages = data.reward + data.discount * next_values - values  # marlcore: discount is 0 where it terminated
    for t in reversed(range(len(advantages) - 1)):
        if data.continues[t]:  # marlcore: whether the next row is the same episode's next transition
            advantages[t] += args.gamma * args.gae_lambda * advantages[t + 1]
    return advantages, advantages + values


def main(args: Args) -> list[tuple[int, float]]:
    """Trains; returns the step and the return of each episode."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    env = gym.make(args.env_id)
    agent = agent_of(env)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    spec = mc.TransitionSpec.from_spaces(env.observation_space, env.action_space, logprob=mc.Field())
    lanes, size, episodes = args.num_actors, args.batch_size, []
    with (  # marlcore: shared memory and processes, which are gone when the block ends
        mc.TrajectoryQueue.create(spec, 4 * size * lanes, lanes=lanes, max_unread=size) as queue,
        mc.ParameterStore.create(agent) as store,
        store.publisher(agent) as publisher,
        mc.Workers() as workers,
    ):
        for lane in range(lanes):
            workers.start(act, args, lane, queue, store)
        reader = queue.reader(size, gamma=args.gamma)  # marlcore: each transition once, in order
        for step in range(size, args.total_timesteps + 1, size):
            optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - step / (args.total_timesteps + size))
            data = reader.read(timeout=120.0).torch()
            advantages, returns = advantages_of(agent["critic"], data, args)
            shuffled = torch.cat([torch.randperm(size) for _ in range(args.update_epochs)])
            for rows in shuffled.chunk(args.update_epochs * args.num_minibatches):
                policy = Categorical(logits=agent["actor"](data.obs[rows]))
                ratio = (policy.log_prob(data.action[rows]) - data.extras["logprob"][rows]).exp()
                gain = (advantages[rows] - advantages[rows].mean()) / (advantages[rows].std() + 1e-8)
                pg_loss = -torch.min(gain * ratio, gain * ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)).mean()
                v_loss = 0.5 * (agent["critic"](data.obs[rows])[:, 0] - returns[rows]).square().mean()
                optimizer.zero_grad()
                (pg_loss - args.ent_coef * policy.entropy().mean() + args.vf_coef * v_loss).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
            publisher.publish()  # marlcore: one copy, which no actor waits for
            episodes += [(step, report.value) for report in workers.reports()]  # marlcore: from the actors
    print(f"{len(episodes)} episodes, the last 100 returned {np.mean([value for _, value in episodes[-100:]]):.1f}")
    return episodes


if __name__ == "__main__":
    main(tyro.cli(Args))
