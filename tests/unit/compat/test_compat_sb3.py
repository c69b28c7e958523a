"""Stable-Baselines3's buffers over lanes: the same transitions as its own, for goals too, also while DQN learns."""

import io
import pickle
import warnings
from collections import Counter
from contextlib import nullcontext
from functools import partial
from itertools import cycle

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from model import chi_square_limit
from refused import check_refused, each_bad, refusals
from victims import at_instruction

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what other packages say of one another while they are imported
    import stable_baselines3 as sb3
    from stable_baselines3.common import buffers
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
    from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy

from marlcore import ClosedError, NotEnoughData
from marlcore.compat.stable_baselines3 import DictReplayBuffer, HerReplayBuffer, ReplayBuffer

BOX = spaces.Box(-1e6, 1e6, (3,), np.float32)
ACTIONS = {
    "box": spaces.Box(-1, 1, (2, 2), np.float64),
    "discrete": spaces.Discrete(5),
    "multidiscrete": spaces.MultiDiscrete([3, 4]),
    "multibinary": spaces.MultiBinary(6),
}
OBSERVATIONS = {
    "box": BOX,
    "image": spaces.Box(0, 255, (1, 24, 24), np.uint8),
    "discrete": spaces.Discrete(100_000),
    "multidiscrete": spaces.MultiDiscrete([100_000, 100_000]),
}
DICT = spaces.Dict({"a key": BOX, "frame": spaces.Box(0, 255, (1, 20, 20), np.uint8), "n": spaces.Discrete(100_000)})


def numbered(space, number, envs):
    """Observations that tell their number, of every environment."""
    if isinstance(space, spaces.Dict):
        return {key: numbered(one, number, envs) for key, one in space.items()}
    numbers = number * 10 + np.arange(envs)
    if isinstance(space, spaces.Discrete):
        return numbers
    if space.dtype == np.uint8:
        obs = np.zeros((envs, *space.shape), np.uint8)
        obs[:, 0, 0, :4] = numbers[:, None] >> np.array([0, 8, 16, 24]) & 255
        return obs
    return np.broadcast_to(numbers[:, None], (envs, *space.shape)).astype(space.dtype)


def replaced(obs, final, done):
    """The next observations as the algorithms hand them over: an ended environment's is its last one."""
    if isinstance(obs, dict):
        return {key: replaced(obs[key], final[key], done) for key in obs}
    mask = done.reshape(-1, *[1] * (obs.ndim - 1))
    return np.where(mask, final, obs).astype(obs.dtype)


def stream(steps, obs_space=BOX, action_space=ACTIONS["discrete"], envs=2, seed=0, breaks=()):
    """Arguments of `add`: episodes of about six steps that end in both ways, or break off without an end."""
    rng = np.random.default_rng(seed)
    action_space.seed(seed)
    obs = numbered(obs_space, 0, envs)
    for t in range(1, steps + 1):
        done = rng.random(envs) < 0.16
        timeouts = done & (rng.random(envs) < 0.5)
        action = np.stack([action_space.sample() for _ in range(envs)])
        after = numbered(obs_space, 2 * t, envs)
        next_obs = replaced(after, numbered(obs_space, 2 * t + 1, envs), done)
        infos = [{"TimeLimit.truncated": bool(timeout)} for timeout in timeouts]
        yield obs, next_obs, action, rng.normal(size=envs), done, infos
        obs = numbered(obs_space, 2 * t + 1, envs) if t in breaks else after


def keys_of(samples):
    """Sampled transitions as something that can be compared and hashed."""

    def bytes_of(value):
        if isinstance(value, dict):
            return np.concatenate([bytes_of(value[key]) for key in sorted(value)], axis=1)
        return np.ascontiguousarray(value.numpy()).reshape(len(value), -1).view(np.uint8)

    fields = (samples.observations, samples.actions, samples.next_observations, samples.dones, samples.rewards)
    return [row.tobytes() for row in np.concatenate([bytes_of(field) for field in fields], axis=1)]


def drawn(buffer, count=4000, **options):
    return keys_of(buffer.sample(count, **options))


def many(buffer, batches=60, **options):
    """The different transitions of many batches."""
    return {key for _ in range(batches) for key in drawn(buffer, 500, **options)}


def everything(theirs):
    """Every transition that Stable-Baselines3's own buffer holds."""
    found = many(theirs)
    assert len(found) == theirs.size() * theirs.n_envs
    return found


def feed(steps, *all_buffers):
    for step in steps:
        for buffer in all_buffers:
            buffer.add(*step)


def pair(size=400, obs_space=BOX, action_space=ACTIONS["discrete"], steps=(), ours=(), **options):
    """Its own buffer and marlcore's, fed with the same stream; `ours` are options of marlcore's alone."""
    is_dict = isinstance(obs_space, spaces.Dict)
    made = (buffers.DictReplayBuffer, DictReplayBuffer) if is_dict else (buffers.ReplayBuffer, ReplayBuffer)
    of_ours = {"seed": 3, **dict(ours)}
    theirs, ours = (
        cls(size, obs_space, action_space, "cpu", 2, **options, **more)
        for cls, more in zip(made, ({}, of_ours), strict=True)
    )
    for step in steps:
        feed([step], theirs, ours)
        assert (ours.pos, ours.full) == (theirs.pos, theirs.full)
    return theirs, ours


@pytest.fixture(autouse=True)
def _seeded():
    np.random.seed(0)


@pytest.mark.long
@pytest.mark.parametrize(("obs", "action"), list(zip([*OBSERVATIONS, "dict"], cycle(ACTIONS), strict=False)))
def test_the_same_transitions_are_drawn_as_from_its_own_buffer(obs, action):
    space = DICT if obs == "dict" else OBSERVATIONS[obs]
    theirs, ours = pair(400, space, ACTIONS[action], steps=stream(60, space, ACTIONS[action]))
    assert ours.size() == theirs.size() == 60
    assert set(drawn(ours)) == everything(theirs)


def test_samples_have_the_shapes_dtypes_and_class_of_its_own():
    for space in (*OBSERVATIONS.values(), DICT):
        theirs, ours = pair(50, space, ACTIONS["box"], steps=stream(20, space, ACTIONS["box"]))
        expected, got = theirs.sample(7), ours.sample(7)
        assert type(got) is type(expected)
        for one, other in zip(got, expected, strict=True):
            many = (one.values(), other.values()) if isinstance(one, dict) else ([one], [other])
            for a, b in zip(*many, strict=True):
                assert a is b is None or (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)


def as_numbers(steps, *buffers):
    """`done` and the values of `infos` as numbers, as some environments give them."""
    for *step, done, infos in steps:
        numbers = [{name: np.float32([value]) for name, value in info.items()} for info in infos]
        for buffer, said in zip(buffers, (infos, numbers), strict=True):
            buffer.add(*step, done.astype(np.float64), said)


def extend(steps, *buffers):
    for buffer in buffers:
        buffer.extend(*zip(*steps, strict=True))


SAME = {  # options of the stream and of the buffers, and how they are fed
    "timeouts as terminations": ({"steps": 60}, {"handle_timeout_termination": False}, feed),
    "frames stored once": ({"steps": 60}, {"ours": {"optimize_memory_usage": True}}, feed),
    "streams that break off": ({"steps": 60, "breaks": (7, 8, 30)}, {}, feed),
    "the first step": ({"steps": 1}, {}, feed),
    "numbers": ({"steps": 40}, {}, as_numbers),
    "extend": ({"steps": 12}, {}, extend),
}


@pytest.mark.parametrize(("streamed", "options", "add"), SAME.values(), ids=SAME)
def test_the_same_transitions_are_drawn_with(streamed, options, add):
    add(list(stream(**streamed)), *(made := pair(**options)))
    assert set(drawn(made[1])) == everything(made[0])


def test_its_own_memory_saving_buffer_loses_last_observations():
    """The control of the row "frames stored once"."""
    options = {"optimize_memory_usage": True, "handle_timeout_termination": False}
    whole, _ = pair(steps=stream(60))
    cut = buffers.ReplayBuffer(400, BOX, ACTIONS["discrete"], "cpu", 2, **options)
    feed(stream(60), cut)
    assert everything(cut) != everything(whole)


def test_every_transition_is_equally_likely_the_newest_ones_too():
    _, ours = pair(steps=stream(21, seed=4))
    counts = Counter(key for _ in range(20) for key in drawn(ours, 256))
    expected = 20 * 256 / 42
    assert len(counts) == 42
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < chi_square_limit(41)


def test_n_step_returns_are_those_of_its_own_n_step_buffer():
    steps = list(stream(60))
    theirs = buffers.NStepReplayBuffer(400, BOX, ACTIONS["discrete"], "cpu", 2, n_steps=3, gamma=0.9)
    ours = ReplayBuffer(400, BOX, ACTIONS["discrete"], "cpu", 2, n_steps=3, gamma=0.9)
    feed(steps, theirs, ours)

    def table(samples):
        return {
            samples.observations[i].numpy().tobytes(): np.concatenate(
                [samples.next_observations[i] * (1 - samples.dones[i]), samples.dones[i], samples.rewards[i],
                 (1 - samples.dones[i]) * samples.discounts[i]]
            )
            for i in range(len(samples.dones))
        }  # fmt: skip

    expected, got = table(theirs.sample(2000)), table(ours.sample(2000))
    assert len(expected) == 120 and got.keys() <= expected.keys()
    # The two steps before an unfinished episode's newest have no whole return yet.
    ended = np.array([step[4] for step in steps])
    waiting = {(t, i) for i in range(2) for t in (57, 58) if not ended[t:, i].any()}
    assert waiting and expected.keys() - got.keys() == {steps[t][0][i].tobytes() for t, i in waiting}
    for obs, row in got.items():
        np.testing.assert_allclose(row, expected[obs], rtol=1e-5)


def test_sampling_normalizes_as_its_own_buffer_does():
    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")] * 2))
    env.reset()
    for _ in range(20):
        env.step(np.zeros((2, 1), np.float32))
    where = (env.observation_space, env.action_space)
    theirs, ours = pair(400, *where, steps=stream(60, *where))
    assert set(drawn(ours, env=env)) == many(theirs, env=env)
    n_step = ReplayBuffer(400, *where, "cpu", 2, n_steps=3)
    check_refused(lambda: n_step.sample(4, env=env), ValueError, "env: expected norm_reward=False, since n_steps")
    env.close()


WRONG_STEPS = [
    (0, np.zeros((2, 4), np.float32), ValueError, "obs: expected float32 (2, 3), got shape (2, 4)"),
    (1, np.zeros((1, 3), np.float32), ValueError, "next_obs: expected"),
    (2, np.array([0.5, 1.0]), TypeError, "action: expected int64"),
    (3, np.array([0.0, np.nan]), ValueError, "reward: expected finite numbers"),
    (4, np.array([0.5, 1.0]), ValueError, "done: expected bool (2,), or 0 and 1, got 0.5"),
    (5, [{}], ValueError, "infos: expected 2 dicts, one for each environment, got"),
    (5, None, ValueError, "infos: expected 2 dicts, one for each environment, got"),
    (0, np.full((2, 3), 1e300), ValueError, "obs: expected values in float32's range, got 1e+300"),
    (1, np.full((2, 3), 1e300), ValueError, "next_obs: expected values in float32's range, got 1e+300"),
    (3, np.full(2, 1e300), ValueError, "reward: expected values in float32's range, got 1e+300"),
]


def test_a_bad_step_is_refused_and_changes_nothing():
    steps = list(stream(12))
    theirs, ours = pair(steps=steps[:6])
    for place, bad, error, says in WRONG_STEPS:
        step = [*steps[9][:place], bad, *steps[9][place + 1 :]]
        check_refused(partial(ours.add, *step), error, says)
        assert set(drawn(ours)) == everything(theirs)
    feed(steps[6:], theirs, ours)
    assert set(drawn(ours)) == everything(theirs)


@pytest.mark.parametrize("before", ["nothing", "an end", "a step"])
def test_no_transition_leads_from_an_interrupted_step_to_a_later_episode(before):
    """Each observation is followed by the one that is 1 greater."""

    def add(number, done=False):
        obs = np.full((1, 3), number, np.float32)
        buffer.add(obs, obs + 1, np.array([0]), np.zeros(1), np.array([done]), [{}])

    for moment in range(1, 1000):
        buffer = ReplayBuffer(8, BOX, ACTIONS["discrete"], "cpu")
        if before != "nothing":
            add(0, done=before == "an end")
        came, _ = at_instruction(partial(add, 1), moment, lambda file: "/stable_baselines3.py" in file, signals=True)
        add(100)
        add(101)
        samples, observations = buffer.sample(64), buffer.observations[: buffer.pos]
        assert (samples.next_observations == samples.observations + 1).all()
        np.testing.assert_array_equal(buffer.next_observations[: buffer.pos], observations + 1)
        assert {*observations[:, 0, 0]} - {1} == ({100, 101} if before == "nothing" else {0, 100, 101})
        if not came:
            break
        buffer.close()
    assert moment > 30


def new(cls=ReplayBuffer, space=BOX, **options):
    return cls(400, space, ACTIONS["discrete"], "cpu", 2, **options)


BITS = 6
GOAL = spaces.MultiBinary(BITS)
GOALS = spaces.Dict({"observation": GOAL, "achieved_goal": GOAL, "desired_goal": GOAL})
FLIPS = spaces.Discrete(BITS)
KEYS = ("observation", "achieved_goal", "desired_goal")


class Flip(gymnasium.Env):
    """Flips bits for as many steps as there are bits: 0 where they match the goal, otherwise -1; less a price."""

    observation_space, action_space = GOALS, FLIPS

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


def flips():
    made = DummyVecEnv([Flip] * 2)
    made.seed(0)
    return made


def whole_episodes(*made, steps=4 * BITS):
    """The buffers, with the same steps of whole episodes."""
    env, rng = flips(), np.random.default_rng(0)
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


def goals(**options):
    np.random.seed(0)
    arguments = (200, GOALS, FLIPS, flips(), "cpu", 2)
    return whole_episodes(sb3.HerReplayBuffer(*arguments, **options), HerReplayBuffer(*arguments, seed=0, **options))


def new_her(space=None, **options):
    return HerReplayBuffer(200, space or GOALS, FLIPS, flips(), "cpu", 2, **options)


REFUSED = [
    *each_bad(new, "an integer of at least 1", n_steps=[0]),
    *each_bad(partial(ReplayBuffer, 9, BOX, ACTIONS["discrete"], "cpu"), "an integer of at least 1", n_envs=[0]),
    *each_bad(new, "an integer of at least 0", seed=[-1, "a"]),
    *each_bad(lambda batch_size: new().sample(batch_size), "an integer of at least 0", batch_size=[-1, None]),
    *each_bad(new, "a number from 0 to 1", gamma=[3, None]),
    (lambda: new(space=DICT), TypeError, "DictReplayBuffer for a Dict"),
    (lambda: new(DictReplayBuffer, n_sampled_goal=4), TypeError, "n_sampled_goal: expected no argument of "
        "hindsight: use marlcore.compat.stable_baselines3.HerReplayBuffer"),
    (lambda: new(prioritized=True), TypeError, "prioritized: not supported, since"),
    (lambda: new(frames=4), TypeError, "frames: expected no such argument"),
    *each_bad(new_her, "an integer of at least 1", n_sampled_goal=[0]),
    *each_bad(new_her, "future, final or episode", goal_selection_strategy=["last"]),
    (lambda: new_her(spaces.Dict({"observation": GOAL})), ValueError,
        "hindsight: expected achieved_goal and desired_goal of one shape and dtype in obs, got"),
    (lambda: type("Mixed", (sb3.HerReplayBuffer, DictReplayBuffer), {}), TypeError,
        "Mixed: expected a subclass of marlcore.compat.stable_baselines3.HerReplayBuffer"),
    (lambda: new().sample(4), NotEnoughData, "at least one step"),
    (lambda: new()._get_samples(np.array([0])), NotEnoughData, "empty buffer"),
    (lambda: [(buffer := new()).close(), buffer.add(*next(stream(1)))], ClosedError, "closed"),
]  # fmt: skip
test_refuses = refusals(REFUSED)


def test_reset_deletes_and_a_pickle_continues():
    steps = list(stream(60))
    theirs, ours = pair(steps=steps[:30])
    copy = pickle.loads(pickle.dumps(ours))
    assert set(drawn(copy)) == everything(theirs)
    ours.reset()
    assert (ours.pos, ours.full, ours.size()) == (0, False, 0)
    assert repr(ours) == f"<ReplayBuffer buffer_size=200 n_envs=2 in {ours.replay!r}>"
    feed(steps[30:], theirs, copy, ours)
    assert set(drawn(copy)) == everything(theirs)
    fresh, _ = pair(steps=steps[30:])
    assert set(drawn(ours)) == everything(fresh)


ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


def arrays(buffer):
    """Each array of a buffer, those of dict observations by their keys."""
    found = {name: getattr(buffer, name) for name in ARRAYS}
    return {
        (name, key): one
        for name, array in found.items()
        for key, one in (array.items() if isinstance(array, dict) else {"": array}.items())
    }


@pytest.mark.parametrize("space", [*OBSERVATIONS, "dict"])
def test_arrays_and_steps_at_positions_are_those_of_its_own(space):
    """What subclasses read."""
    space = DICT if space == "dict" else OBSERVATIONS[space]
    theirs, ours = pair(160, space, ACTIONS["box"])
    for count, step in enumerate(stream(35, space, ACTIONS["box"], breaks=(7, 8, 20))):
        feed([step], theirs, ours)
        if count not in (0, 9, 34):
            continue
        expected, got = arrays(theirs), arrays(ours)
        assert got.keys() == expected.keys()
        for name, array in got.items():
            assert (array.shape, array.dtype) == (expected[name].shape, expected[name].dtype), name
            if name[0] in ("dones", "timeouts"):  # steps after which the stream broke off count as cut off
                wrong = (array != expected[name]).any(axis=1).nonzero()[0]
                assert set(wrong) <= {6, 7, 19}
            else:
                np.testing.assert_array_equal(array, expected[name], str(name))
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
        for position in range(count + 1):
            expected, got = (buffer._get_samples(np.full(40, position)) for buffer in (theirs, ours))
            assert type(got) is type(expected)
            assert set(keys_of(got)) == set(keys_of(expected))
    with pytest.raises(ValueError, match=r"batch_inds: expected positions of held rows, .* got 35"):
        ours._get_samples(np.array([3, 35]))


def test_a_full_buffer_holds_the_newest_steps_and_nothing_older():
    """The last observations of episodes take the other rows."""
    steps = list(stream(150))
    theirs, ours = pair(80, steps=steps)
    found = set(drawn(ours))
    assert found < (all_of_theirs := everything(theirs)) and abs(len(found) - 2 * ours.size()) <= 2
    assert len(all_of_theirs) - len(found) <= sum(int(step[4].sum()) for step in steps[-40:])
    expected, got, again = map(arrays, (theirs, ours, pickle.loads(pickle.dumps(ours))))
    held = got["observations", ""].any(axis=2)
    assert held.sum() == len(found)
    for name, array in got.items():
        np.testing.assert_array_equal(array[held], expected[name][held])
        np.testing.assert_array_equal(again[name], array)
        assert not array[~held].any()
    ours.reset()
    assert not any(array.any() for array in arrays(ours).values())


def test_subclasses_get_n_step_returns():
    made = (buffers.NStepReplayBuffer, ReplayBuffer)
    theirs, ours = (made_by(25, BOX, ACTIONS["box"], "cpu", 1, n_steps=3, gamma=0.9) for made_by in made)
    feed(stream(40, BOX, ACTIONS["box"], envs=1), theirs, ours)  # more than fit
    held = ours.observations.any(axis=(1, 2)).nonzero()[0]
    expected, got = theirs._get_samples(held), ours._get_samples(held)
    torch.testing.assert_close(got.discounts, expected.discounts * (1 - expected.dones))
    for name in ("observations", "actions", "next_observations", "dones", "rewards"):
        torch.testing.assert_close(getattr(got, name), getattr(expected, name))
    lost = np.setdiff1d(np.arange(25), held)
    assert len(lost) and len(held) > 10
    with pytest.raises(ValueError, match=f"positions of held rows, .* got {lost[0]}$"):
        ours._get_samples(lost)


@pytest.mark.parametrize(
    ("strategy", "infos"), [("future", True), ("FINAL", False), (GoalSelectionStrategy.EPISODE, False)]
)
def test_the_same_relabelled_transitions_are_drawn(strategy, infos):
    theirs, ours = goals(goal_selection_strategy=strategy, copy_info_dict=infos, n_sampled_goal=3)
    assert ours.goal_selection_strategy == theirs.goal_selection_strategy
    assert many(ours) == many(theirs)
    mean, other = (float(buffer.sample(30_000).rewards.mean()) for buffer in (theirs, ours))
    assert abs(other - mean) < 5 * 2 * 0.5 / 30_000**0.5  # rewards differ by less than 2


def test_a_pickle_needs_its_env_again():
    _, ours = goals(copy_info_dict=True)
    before = many(ours)
    again = pickle.loads(pickle.dumps(ours))
    check_refused(lambda: again.sample(8), ValueError, "env: expected a VecEnv, got None; call set_env")
    again.set_env(flips())
    assert many(again) == before


def dqn(kind, **options):
    env = flips() if kind else DummyVecEnv([lambda: gymnasium.make("CartPole-v1", max_episode_steps=20)] * 2)
    env.seed(0)
    return sb3.DQN(
        "MultiInputPolicy" if kind else "MlpPolicy", env, replay_buffer_class=HerReplayBuffer if kind else ReplayBuffer,
        seed=0, buffer_size=2000, learning_starts=20, batch_size=8, train_freq=8, policy_kwargs={"net_arch": [8]},
        device="cpu", **options,
    )  # fmt: skip


@pytest.mark.parametrize(("kind", "once"), [("", False), ("", True), ("goals", False)])
def test_a_model_saves_and_loads_it_and_goes_on_learning(kind, once):
    model = dqn(kind, optimize_memory_usage=once).learn(96)
    file = io.BytesIO()
    model.save_replay_buffer(file)
    before = many(model.replay_buffer)
    file.seek(0)
    again = dqn(kind, optimize_memory_usage=once)
    again.load_replay_buffer(file)
    assert kind or many(again.replay_buffer) == before
    with pytest.warns(UserWarning, match="last trajectory .* will be truncated") if once else nullcontext():
        again.learn(96)
    assert again.replay_buffer.size() == 96  # of two environments
    assert kind or before <= many(again.replay_buffer)
