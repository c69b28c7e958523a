"""dqn_async.py with actors that never import torch: they act by `mc.Compiled`, the learner stays plain torch.

    python examples/dqn_compiled.py --seed 1 --total-timesteps 50000

In CleanRL's manner (Huang et al. 2022, JMLR 23), with its names. `# marlcore:` marks the lines that differ from
dqn_async.py. The learner's function alone imports torch, so an actor starts sooner and takes less memory.
"""

import copy
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import tyro

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


def act(
    context: mc.WorkerContext, args: Args, lane: int, replay: mc.ReplayBuffer, store: mc.ParameterStore,
    q_network: mc.Compiled,
) -> None:  # fmt: skip
    rng = np.random.default_rng([args.seed, lane])
    env = gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))
    subscriber = store.subscriber(q_network)
    obs, _ = env.reset(seed=args.seed * 1_000 + lane)
    with replay.writer(lane) as writer:
        while not context.stopping:
            subscriber.pull()
            if rng.random() < subscriber.extras.get("epsilon", 1.0):
                action = int(rng.integers(env.action_space.n))
            else:
                action = int(q_network.act(obs).argmax())  # marlcore: NumPy in, NumPy out
            next_obs, reward, terminated, truncated, info = env.step(action)
            ended = terminated or truncated
            writer.add(obs, action, float(reward), terminated, truncated, final_obs=next_obs if ended else None)
            obs = env.reset()[0] if ended else next_obs
            if ended:
                context.report("episodic_return", info["episode"]["r"])


def main(args: Args) -> list[tuple[int, float]]:
    """Trains; returns the step and the return of each episode."""
    import torch  # marlcore: here, and not above, where actors would import it too
    from torch import nn

    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    env = gym.make(args.env_id)
    inputs, outputs = int(np.prod(env.observation_space.shape)), int(env.action_space.n)
    q_network = nn.Sequential(nn.Linear(inputs, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs))
    target_network = copy.deepcopy(q_network)
    optimizer = torch.optim.Adam(q_network.parameters(), lr=args.learning_rate)
    spec = mc.TransitionSpec.from_spaces(env.observation_space, env.action_space)
    limiter = mc.RateLimiter(
        args.batch_size / args.train_frequency, min_size=args.learning_starts, tolerance=8 * args.batch_size
    )
    episodes = []
    with (
        mc.ReplayBuffer.create(spec, args.buffer_size, lanes=args.num_actors, limiter=limiter) as replay,
        mc.ParameterStore.create(q_network, extras={"epsilon": ()}) as store,
        store.publisher(q_network) as publisher,
        mc.Workers(preload=["marlcore.replay", "gymnasium"]) as workers,  # marlcore: by default torch is among them
    ):
        for lane in range(args.num_actors):
            workers.start(act, args, lane, replay, store, mc.Compiled(q_network))  # marlcore
        sampler = replay.sampler(args.batch_size, gamma=args.gamma, seed=args.seed)
        for global_step in range(args.learning_starts, args.total_timesteps, args.train_frequency):
            data = sampler.sample(timeout=120.0).torch()
            with torch.no_grad():
                td_target = data.reward + data.discount * target_network(data.next_obs).amax(1)
            old_val = q_network(data.obs).gather(1, data.action[:, None]).squeeze(1)
            loss = nn.functional.mse_loss(td_target, old_val)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if global_step % args.target_network_frequency == 0:
                target_network.load_state_dict(q_network.state_dict())
            decayed = global_step / (args.exploration_fraction * args.total_timesteps)
            publisher.publish(epsilon=max(args.end_e, 1 - decayed))
            episodes += [(global_step, report.value) for report in workers.reports()]
    print(f"{len(episodes)} episodes, the last 100 returned {np.mean([value for _, value in episodes[-100:]]):.1f}")
    return episodes


if __name__ == "__main__":
    main(tyro.cli(Args))
