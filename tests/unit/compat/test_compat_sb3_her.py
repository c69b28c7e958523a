"""Stable-Baselines3's HerReplayBuffer over lanes: the same relabelled transitions as its own, also while DQN learns."""

import io
import pickle
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from refused import Refused, check_refused, each_bad, refusals

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what other packages say of one another while they are imported
    import stable_baselines3 as sb3
    from stable_baselines3.common.vec_env import DummyVecEnv
    from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy

from marlcore.compat.stable_baselines3 import DictReplayBuffer, HerReplayBuffer

BITS = 6
GOAL = spaces.MultiBinary(BITS)
SPACE = spaces.Dict({"observation": GOAL, "achieved_goal": GOAL, "desired_goal": GOAL})
ACTION = spaces.Discrete(BITS)
KEYS = ("observation", "achieved_goal", "desired_goal")


class Flip(gymnasium.Env):
    """Flips bits for as many steps as there are bits: 0 where they match the goal, otherwise -1; less a price."""

    observation_space, action_space = SPACE, ACTION

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._bits, self._goal = self.np_random.integers(0, 2, (2, BITS), np.int8)
        self._steps = 0
        return self._obs(), {}

    def step(self, action):
        self._bits[action] ^= 1
        self._steps += 1
        info = {"price": self._steps / 8}
        reward = float(self.compute_reward(self._bits[None], self._goal[None], [info])[0])
        return self._obs(), reward, False, self._steps == BITS, info

    def compute_reward(self, achieved, desired, infos):
        price = np.array([info.get("price", 0.0) for info in infos], np.float32)
        return (achieved == desired).all(1) - np.float32(1) - price

    def _obs(self):
        return {"observation": self._bits.copy(), "achieved_goal": self._bits.copy(), "desired_goal": self._goal.copy()}


def envs(copies=2):
    made = DummyVecEnv([Flip] * copies)
    made.seed(0)
    return made


def filled(*made, steps=4 * BITS):
    """The buffers, with the same steps of whole episodes."""
    env, rng = envs(), np.random.default_rng(0)
    obs = env.reset()
    for _ in range(steps):
        action = rng.integers(BITS, size=2)
        after, reward, done, infos = env.step(action)
        final = {key: after[key].copy() for key in KEYS}
        for i in np.flatnonzero(done):
            for key in KEYS:
                final[key][i] = infos[i]["terminal_observation"][key]
        for buffer in made:
            buffer.add({key: obs[key].copy() for key in KEYS}, final, action, reward, done, infos)
        obs = {key: after[key].copy() for key in KEYS}
    return made


def pair(**options):
    np.random.seed(0)
    arguments = (200, SPACE, ACTION, envs(), "cpu", 2)
    return filled(sb3.HerReplayBuffer(*arguments, **options), HerReplayBuffer(*arguments, seed=0, **options))


def drawn(buffer, batches=60):
    """The different transitions of many batches, and the mean reward."""
    rows, rewards = set(), []
    for _ in range(batches):
        s = buffer.sample(500)
        fields = [value.numpy() for obs in (s.observations, s.next_observations) for value in map(obs.get, KEYS)]
        fields += [s.actions.numpy(), s.dones.numpy(), s.rewards.numpy()]
        rows |= {row.tobytes() for row in np.concatenate([f.reshape(500, -1).astype(np.float32) for f in fields], 1)}
        rewards.append(float(s.rewards.mean()))
    return rows, float(np.mean(rewards))


@pytest.mark.parametrize(
    ("strategy", "infos"), [("future", True), ("FINAL", False), (GoalSelectionStrategy.EPISODE, False)]
)
def test_the_same_transitions_are_drawn_as_from_its_own(strategy, infos):
    theirs, ours = pair(goal_selection_strategy=strategy, copy_info_dict=infos, n_sampled_goal=3)
    assert ours.goal_selection_strategy == theirs.goal_selection_strategy
    (expected, mean), (got, other) = drawn(theirs), drawn(ours)
    assert got == expected
    assert abs(other - mean) < 5 * 2 * 0.5 / 30_000**0.5  # of 60 x 500 rewards each, which differ by less than 2


def test_a_pickle_needs_its_env_again():
    _, ours = pair(copy_info_dict=True)
    before, _ = drawn(ours)
    again = pickle.loads(pickle.dumps(ours))
    check_refused(lambda: again.sample(8), ValueError, "env: expected a VecEnv, got None; call set_env")
    again.set_env(envs())
    assert drawn(again)[0] == before


def new(cls=HerReplayBuffer, space=SPACE, **options):
    return cls(200, space, ACTION, envs(), "cpu", 2, **options)


REFUSED: list[Refused] = [
    *each_bad(new, "an integer of at least 1", n_sampled_goal=[0]),
    *each_bad(new, "future, final or episode", goal_selection_strategy=["last"]),
    (lambda: new(space=spaces.Dict({"observation": GOAL})), ValueError,
        "hindsight: expected achieved_goal and desired_goal of one shape and dtype in obs, got"),
    (lambda: type("Mixed", (sb3.HerReplayBuffer, DictReplayBuffer), {}), TypeError,
        "Mixed: expected a subclass of marlcore.compat.stable_baselines3.HerReplayBuffer"),
]  # fmt: skip
test_refuses = refusals(REFUSED)


def dqn():
    return sb3.DQN(
        "MultiInputPolicy", envs(), replay_buffer_class=HerReplayBuffer, seed=0, buffer_size=20_000,
        learning_starts=20, batch_size=8, train_freq=8, policy_kwargs={"net_arch": [8]}, device="cpu",
    )  # fmt: skip


def test_a_model_saves_and_loads_it_and_goes_on_learning():
    model = dqn().learn(96)
    file = io.BytesIO()
    model.save_replay_buffer(file)
    file.seek(0)
    again = dqn()
    again.load_replay_buffer(file)
    again.learn(96)
    assert again.replay_buffer.size() == 96  # of two environments
