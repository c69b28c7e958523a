"""What each codebase's sources get: for a file of it, our lines and the places where they go."""

import re
from dataclasses import dataclass

from pages import ROOT, programs_of

from .edits import Edit


@dataclass(frozen=True)
class Patch:
    """Edits of one file of the folder DIR/`codebase`, which is a module of this name below `root`."""

    codebase: str
    root: str
    module: str
    edits: list[Edit]

    @property
    def file(self) -> str:
        return f"{self.codebase}/{self.root}/{self.module.replace('.', '/')}.py"


def recipe(library: str, begin: str, end: str) -> str:
    """A recipe of docs/drop-ins.md, from the line `begin` up to, but without, the line `end`."""
    (code,) = [each.code for each in programs_of(ROOT / "docs" / "drop-ins.md") if library in each.code]
    found = re.search(rf"^{begin}.*?(?=^{end}|\Z)", code, re.DOTALL | re.MULTILINE)
    assert found, f"docs/drop-ins.md has no recipe with {library}"
    return found.group()


IMPORT = "import marlcore as mc\n"
TENSORBOARD = r"from torch.utils.tensorboard import"
MAIN = r"if __name__"

RAINBOW = [
    Edit(TENSORBOARD, IMPORT, until=TENSORBOARD),
    Edit(r'"PrioritizedBatch", \["observations"', """
        "PrioritizedBatch", "observations actions rewards next_observations discounts indices weights"
    """),
    Edit(r"# adapted from.*\nclass SumSegmentTree", """
        class PrioritizedReplayBuffer:
            def __init__(self, capacity, obs_shape, device, n_step, gamma, alpha=0.6, beta=0.4, eps=1e-6):
                spec = mc.TransitionSpec(mc.Field(obs_shape[1:], "uint8"), mc.Field((), "int64"))
                replay = mc.ReplayBuffer.create(spec, capacity)
                self.writer, self.device, self.beta = replay.writer(), device, beta
                prioritized = mc.Prioritized(alpha, beta, epsilon=eps)
                window = {"stack": obs_shape[0], "n_step": n_step, "gamma": gamma}
                self.sampler = replay.sampler(32, min_size=1, prioritized=prioritized, **window)

            def add(self, obs, action, reward, next_obs, done, truncated):
                final_frame = next_obs[0, -1] if truncated[0] else None
                self.writer.add(obs[0, -1], action[0], reward[0], done[0], truncated[0], final_frame)

            def sample(self, batch_size):
                batch = self.sampler.sample(batch_size, beta=self.beta).torch(self.device)
                columns = (each.unsqueeze(1) for each in (batch.action, batch.reward, batch.discount, batch.weight))
                actions, rewards, discounts, weights = columns
                return PrioritizedBatch(batch.obs, actions, rewards, batch.next_obs, discounts, batch.index, weights)

            def update_priorities(self, indices, priorities):
                self.sampler.update_priorities(indices, priorities)


    """, until=MAIN),
    Edit(r"rb.add\(obs, actions", "rb.add(obs, actions, rewards, real_next_obs, terminations, truncations)\n"),
    Edit(r"gamma_n = ", "next_atoms = data.rewards + data.discounts * support\n", until=r"tz = "),
]  # fmt: skip

BUFFERS = r"from cleanrl_utils.buffers import"
UNIFORM = [  # SAC, and the other scripts with a ReplayBuffer
    Edit(BUFFERS, """
        import marlcore as mc
        from cleanrl_utils.buffers import ReplayBufferSamples


        class ReplayBuffer:
            def __init__(self, buffer_size, observation_space, action_space, device, n_envs=1, **options):
                spec = mc.TransitionSpec.from_spaces(observation_space, action_space)
                replay = mc.ReplayBuffer.create(spec, buffer_size, lanes=n_envs)
                self.writers = [replay.writer(lane) for lane in range(n_envs)]
                self.sampler, self.device = replay.sampler(32, min_size=1), device

            def add(self, obs, next_obs, *steps):
                for writer, obs, final_obs, *step in zip(self.writers, obs, next_obs, *steps):
                    writer.add(obs, *step, final_obs if step[2] or step[3] else None)

            def sample(self, batch_size):
                batch = self.sampler.sample(batch_size).torch(self.device)
                ended = batch.terminated.float()
                return ReplayBufferSamples(batch.obs, batch.action, batch.next_obs, ended, batch.reward)


    """),
    Edit(r"rb.add\(obs, real", "rb.add(obs, real_next_obs, actions, rewards, terminations, truncations)\n"),
]  # fmt: skip

TARGETS = r"# update the target networks"
SAC_ACTORS = [
    Edit(BUFFERS, IMPORT + "from cleanrl_utils.buffers import ReplayBufferSamples\n"),
    Edit(MAIN, """
        def layers(actor):
            heads = map(torch.cat, zip(actor.fc_mean.parameters(), actor.fc_logstd.parameters()))
            weights = [*actor.fc1.parameters(), *actor.fc2.parameters(), *heads]
            return {str(i): each.detach() for i, each in enumerate(weights)}


        def act(context, args, lane, replay, store, policy):
            rng = np.random.default_rng([args.seed, lane])
            env = make_env(args.env_id, args.seed + lane, lane, False, "")()
            low, high = env.action_space.low, env.action_space.high
            subscriber = store.subscriber(policy)
            obs, _ = env.reset(seed=args.seed + lane)
            with replay.writer(lane) as writer:
                while not context.stopping:
                    subscriber.pull()
                    action = env.action_space.sample()
                    if subscriber.version:
                        mean, log_std = np.split(policy.act(obs), 2)
                        log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (np.tanh(log_std) + 1)
                        action = low + (high - low) * (np.tanh(rng.normal(mean, np.exp(log_std))) + 1) / 2
                    next_obs, reward, terminated, truncated, info = env.step(action)
                    ended = terminated or truncated
                    writer.add(obs, action, reward, terminated, truncated, final_obs=next_obs if ended else None)
                    if ended:
                        context.report("episodic_return", info["episode"]["r"][0])
                    obs = env.reset()[0] if ended else next_obs


    """, until=MAIN),
    Edit(r"rb = ReplayBuffer\(", """
        spec = mc.TransitionSpec.from_spaces(envs.single_observation_space, envs.single_action_space)
        limiter = mc.RateLimiter(args.batch_size, min_size=int(args.learning_starts), tolerance=4 * args.batch_size)
        replay = mc.ReplayBuffer.create(spec, args.buffer_size, lanes=2, limiter=limiter)
        sampler = replay.sampler(args.batch_size, seed=args.seed)
        store = mc.ParameterStore.create(layers(actor))
        publisher, workers = store.publisher(layers(actor)), mc.Workers()
        for lane in range(replay.lanes):
            workers.start(act, args, lane, replay, store, mc.Compiled(layers(actor)))
    """, until=r"start_time = "),
    Edit(r"# TRY NOT TO MODIFY: start the game", """
        for global_step in range(int(args.learning_starts) + 1, args.total_timesteps):
            for report in workers.reports():
                print(f"global_step={global_step}, episodic_return={report.value}")
                writer.add_scalar("charts/episodic_return", report.value, global_step)

    """, until=r"# ALGO LOGIC: training"),
    Edit(r"data = rb.sample", """
        batch = sampler.sample(timeout=600.0).torch(device)
        ended = batch.terminated.float()
        data = ReplayBufferSamples(batch.obs, batch.action, batch.next_obs, ended, batch.reward)
    """),
    Edit(TARGETS, "publisher.publish(layers(actor))\n\n", until=TARGETS),
    Edit(r"envs.close\(\)", "workers.close()\n", until=r"envs.close\(\)"),
]  # fmt: skip

BATCH = r'batch_exp = \{\n\s+"state": batch_states\(\[elem'
PFRL = [
    Edit(r"import torch", "import torch\n\n" + IMPORT),
    Edit(r"def batch_experiences", recipe("pfrl", "class Lanes", "dqn.batch") + "\n", until=r"def batch_experiences"),
    Edit(BATCH, """
        if "batch" in experiences[0][0]:
            return batched(experiences, device, phi, batch_states)
    """, until=BATCH),
]  # fmt: skip
EPISODES = recipe("components.episode_buffer", "from types", r"\Z") + "\n\nReplayBuffer = Episodes\n"
EPYMARL = [Edit(r"from components.episode_buffer import ReplayBuffer", EPISODES)]
DROP_IN = "from marlcore.compat.tianshou import ReplayBuffer, VectorReplayBuffer\n"
TIANSHOU = [Edit(r"from tianshou.data import ReplayBuffer", DROP_IN)]
LEROBOT = [Edit(r"from .buffer import ReplayBuffer", "from marlcore.compat.lerobot import ReplayBuffer\n")]

PATCHES = {
    "CleanRL, Rainbow": Patch("cleanrl", ".", "cleanrl.rainbow_atari", RAINBOW),
    "CleanRL, SAC": Patch("cleanrl", ".", "cleanrl.sac_continuous_action", UNIFORM),
    "CleanRL, SAC with two actors": Patch("cleanrl", ".", "cleanrl.sac_continuous_action", SAC_ACTORS),
    "JAX loop": Patch("cleanrl", ".", "cleanrl.dqn_jax", UNIFORM),
    "Tianshou": Patch("tianshou", ".", "tianshou.highlevel.algorithm", TIANSHOU),
    "PFRL": Patch("pfrl", ".", "pfrl.replay_buffer", PFRL),
    "EPyMARL": Patch("epymarl", "src", "run", EPYMARL),
    "LeRobot": Patch("lerobot", "src", "lerobot.rl.learner", LEROBOT),
}
