"""CleanRL's SAC made asynchronous: an actor swings Pendulum up in a process of its own while the learner trains.

    python examples/sac_async.py --seed 1 --total-timesteps 6000

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
from torch.distributions import Normal

import marlcore as mc


@dataclass
class Args:
    seed: int = 1
    env_id: str = "Pendulum-v1"
    total_timesteps: int = 6_000
    learning_rate: float = 1e-3
    gamma: float = 0.99
    tau: float = 0.005
    batch_size: int = 128
    learning_starts: int = 500


def layers(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, outputs))


class Actor(nn.Module):
    def __init__(self, env: gym.Env) -> None:
        super().__init__()
        self.layers = layers(env.observation_space.shape[0], 2 * env.action_space.shape[0])
        self.scale = torch.tensor(env.action_space.high)

    def get_action(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = self.layers(obs).chunk(2, dim=-1)
        normal = Normal(mean, log_std.clamp(-5, 2).exp())
        squashed = torch.tanh(x := normal.rsample())
        log_prob = normal.log_prob(x) - torch.log(self.scale * (1 - squashed**2) + 1e-6)
        return squashed * self.scale, log_prob.sum(-1)


# marlcore: the serial loop's half that plays, as a function that runs in a process of its own
def act(context: mc.WorkerContext, args: Args, replay: mc.ReplayBuffer, store: mc.ParameterStore) -> None:
    torch.manual_seed(args.seed + 1_000)
    env = gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))
    actor = Actor(env)
    weights = store.subscriber(actor)  # marlcore: the learner's newest weights, copied into the actor by `pull`
    obs, _ = env.reset(seed=args.seed + 1_000)
    with replay.writer() as writer:  # marlcore: into shared memory
        while not context.stopping:  # marlcore: until the learner's block ends
            weights.pull()
            with torch.no_grad():
                action = actor.get_action(torch.from_numpy(obs))[0].numpy()
            next_obs, reward, terminated, truncated, info = env.step(action)
            final = next_obs if terminated or truncated else None  # marlcore: otherwise it is the next row's obs
            writer.add(obs, action, float(reward), terminated, truncated, final)
            obs = next_obs if final is None else env.reset()[0]
            if final is not None:
                context.report("episodic_return", info["episode"]["r"])  # marlcore: to the learner's process


def main(args: Args) -> list[tuple[int, float]]:
    """Trains; returns the step and the return of each episode."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    env = gym.make(args.env_id)
    actor, size = Actor(env), env.observation_space.shape[0] + env.action_space.shape[0]
    qfs = nn.ModuleList([layers(size, 1), layers(size, 1)])
    targets, log_alpha = copy.deepcopy(qfs), torch.zeros((), requires_grad=True)
    parts = [log_alpha], actor.parameters(), qfs.parameters()
    optimizers = [torch.optim.Adam(part, args.learning_rate) for part in parts]

    def value(critics: nn.ModuleList, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return torch.cat([critic(torch.cat([obs, action], 1)) for critic in critics], 1)

    spec = mc.TransitionSpec.from_spaces(env.observation_space, env.action_space)
    limiter = mc.RateLimiter(args.batch_size, args.learning_starts, 8 * args.batch_size)  # marlcore: 1 update a step
    with (  # marlcore: shared memory and processes, which are gone when the block ends
        mc.ReplayBuffer.create(spec, 2 * args.total_timesteps, limiter=limiter) as replay,
        mc.ParameterStore.create(actor) as store,
        store.publisher(actor) as publisher,
        mc.Workers() as workers,
    ):
        workers.start(act, args, replay, store)
        sampler, episodes = replay.sampler(args.batch_size, gamma=args.gamma, seed=args.seed), []
        for global_step in range(args.learning_starts, args.total_timesteps):
            data = sampler.sample(timeout=120.0).torch()
            with torch.no_grad():  # marlcore: discount is gamma, and 0 where an episode terminated
                next_action, next_log_pi = actor.get_action(data.next_obs)
                next_v = value(targets, data.next_obs, next_action).amin(1) - log_alpha.exp() * next_log_pi
                goal = data.reward + data.discount * next_v
            qf_loss = (value(qfs, data.obs, data.action) - goal[:, None]).square().mean()
            action, log_pi = actor.get_action(data.obs)
            actor_loss = (log_alpha.exp().detach() * log_pi - value(qfs, data.obs, action).amin(1)).mean()
            alpha_loss = -log_alpha.exp() * (log_pi.detach().mean() - env.action_space.shape[0])
            for optimizer, loss in zip(optimizers, (alpha_loss, actor_loss, qf_loss), strict=True):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            for param, target in zip(qfs.parameters(), targets.parameters(), strict=True):
                target.data.lerp_(param.data, args.tau)
            publisher.publish()  # marlcore: one copy, which no actor waits for
            episodes += [(global_step, report.value) for report in workers.reports()]  # marlcore: from the actors
    print(f"{len(episodes)} episodes, the last 10 returned {np.mean([value for _, value in episodes[-10:]]):.1f}")
    return episodes


if __name__ == "__main__":
    main(tyro.cli(Args))
