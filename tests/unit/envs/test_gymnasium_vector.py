"""Vector environments of Gymnasium and EnvPool: what they give is what actors get, in every autoreset mode."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper
from gymnasium.vector.utils import concatenate, create_empty_array
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from odd_spaces import VARIANTS, Counting
from random_play import assert_same, play, single
from refused import Refused, check_refused, refusals

from marlcore.envs import EnvPool, GymnasiumVector, vectorize
from marlcore.errors import EnvironmentFailed
from marlcore.testing import check_env

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]
MAKERS: dict[str, Any] = {
    "CartPole": lambda: gymnasium.make("CartPole-v1"),
    "Pendulum": lambda: gymnasium.make("Pendulum-v1", max_episode_steps=9),
    "Blackjack": lambda: gymnasium.make("Blackjack-v1"),
    **{name: partial(Counting, **options) for name, options in VARIANTS.items()},
    "tuple": lambda: gymnasium.wrappers.TransformObservation(
        Counting(), lambda obs: obs["keys"], Counting().observation_space["keys"]
    ),
}


def seeds_of(seed: int, copies: int) -> list[int]:
    """Gymnasium's own seeds of the copies for the seed that a vector environment gets."""
    first = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return [first + i for i in range(copies)]


def assert_plays_as(env, makers, rounds, masked=False, first=None):
    """Plays the environment; each copy is what its single environment gives. Returns the events and actions."""
    events, actions = play(env, rounds)
    for copy, maker in enumerate(makers):
        raw = maker()
        seed = (seeds_of(5, 1)[0] if first is None else first) + copy
        assert_same(events[copy, "agent_0"], single(raw, seed, actions[copy, "agent_0"], masked=masked))
        raw.close()
    return events, actions


def numbers_at_ends(env, rounds, value=0):
    """The numbers told at the end of each copy's last episode."""
    env.reset(0)
    told = {}
    for _ in range(rounds):
        outcomes, [turn] = env.observe()
        told |= dict(outcomes[0].infos) if outcomes else {}
        env.act(turn, np.full(len(turn.copies), value))
    return told


def by_old_names(env, info):
    """As Gymnasium told before 1.1."""
    copies = range(env.num_envs)
    names = {name for name in info.get("final_info", ()) if not name.startswith("_")}
    infos = [{name: env_value(info["final_info"][name], i) for name in names} for i in copies]
    ended = info["_final_obs"]
    told = np.array([own if there else None for own, there in zip(infos, ended, strict=True)], dtype=object)
    rest = {name: value for name, value in info.items() if "final" not in name}
    return rest | {"final_observation": info["final_obs"], "_final_observation": ended, "final_info": told}


def env_value(values, copy):
    return {name: part[copy] for name, part in values.items()} if isinstance(values, dict) else values[copy]


def in_a_batch(env, info):
    """Arrays of all copies in the form of the space; copies whose episode goes on have something else."""
    space = env.single_observation_space
    rows = [space.sample() if row is None else row for row in info["final_obs"]]
    batch = concatenate(space, rows, create_empty_array(space, env.num_envs))
    return info | {"final_obs": batch}


class Told(VectorWrapper):
    """Tells the infos at episodes' ends in another form, ends and rewards [copies, 1], and no autoreset mode."""

    def __init__(self, env, form=None):
        super().__init__(env)
        self.metadata, self.form = {}, form

    def step(self, actions):
        obs, *columns, info = super().step(actions)
        if self.form and "final_obs" in info:
            info = self.form(self, info)
        return obs, *(column[:, None] for column in columns), info


class Reusing(VectorWrapper):
    """Writes each step's rewards and ends to the same arrays, and zeros at a reset; a True is 255, as C may write."""

    def reset(self, **options):
        self.columns = getattr(self, "columns", (np.zeros(3), np.zeros(3, bool), np.zeros(3, bool)))
        for column in self.columns:
            column[:] = 0
        return super().reset(**options)

    def step(self, actions):
        obs, *given, info = super().step(actions)
        self.columns[0][:] = given[0]
        for column, values in zip(self.columns[1:], given[1:], strict=True):
            column.view(np.uint8)[:] = 255 * values
        return obs, *self.columns, info


FORMS = [None, by_old_names, in_a_batch, lambda env, info: info | {"final_obs": [*info["final_obs"]]}]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MAKERS)
def test_every_copy_is_what_the_single_environment_gives(name: str, mode: AutoresetMode):
    maker = MAKERS[name]
    if VARIANTS.get(name, {}).get("mask_in") == "info" and mode is AutoresetMode.DISABLED:
        says = r"^autoreset_mode of .*: expected .* with masks in infos, since .* Disabled$"
        with pytest.raises(ValueError, match=says):
            vectorize(lambda: SyncVectorEnv([maker] * 3, autoreset_mode=mode), 1)
        return
    env = vectorize(lambda: SyncVectorEnv([maker] * 3, autoreset_mode=mode), 1)
    assert isinstance(env, GymnasiumVector)
    assert env.copies == 3
    masked = env.spaces["agent_0"].masked
    assert masked == name.startswith("masked")
    events, _ = assert_plays_as(env, [maker] * 3, 46, masked)
    reusing = vectorize(lambda: Reusing(SyncVectorEnv([maker] * 3, autoreset_mode=mode)), 1)
    assert_plays_as(reusing, [maker] * 3, 46, masked)
    reusing.close()
    ends = [event for mine in events.values() for event in mine if event[0] == "outcome" and any(event[2:4])]
    assert len(ends) == env.episodes > 0
    env.close()


class Leaving(Counting):
    """Episodes of four steps; the info after one of the steps holds no mask."""

    def __init__(self, without: int | None = None, action: gym.Space | None = None):
        super().__init__(action, mask_in="info")
        self.without = without

    def look(self):
        self.length = 4
        obs, info = super().look()
        if self.steps == self.without:
            del info["action_mask"]
        return obs, info


@pytest.mark.parametrize("mode", MODES[:2])
@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("action", [None, gym.MultiDiscrete([3, 2])])
def test_masks_may_be_left_out_where_nobody_acts(mode: AutoresetMode, copies: int, action: gym.Space | None):
    """All copies' episodes end together, so that no info of that step holds a mask."""

    def make(without: int):
        return SyncVectorEnv([lambda: Leaving(without, action)] * copies, autoreset_mode=mode)

    assert_plays_as(GymnasiumVector(make(4)), [lambda: Leaving(action=action)] * copies, 40, masked=True)
    says = "environment copy 0, agent_0: action_mask: expected an allowed action"
    check_refused(lambda: play(GymnasiumVector(make(3)), 40), EnvironmentFailed, says)


@pytest.mark.parametrize(("mode", "form"), [(MODES[0], None), *((MODES[1], form) for form in FORMS)])
def test_numbers_at_an_episodes_end_are_told(mode: AutoresetMode, form: Any):
    env = Told(RecordEpisodeStatistics(SyncVectorEnv([Counting] * 2, autoreset_mode=mode)), form)
    told = numbers_at_ends(GymnasiumVector(env), 30)
    assert told.keys() == {0, 1}
    for numbers in told.values():
        assert numbers["steps"] >= 1.0
        # In the mode SAME_STEP, Gymnasium before 1.4 counts one step less from the second episode.
        assert numbers["steps"] - numbers["episode_l"] in ((0.0, 1.0) if mode is AutoresetMode.SAME_STEP else (0.0,))


class Watched(SyncVectorEnv):
    """Keeps the actions of copies that it resets; says in each info which copies got a bonus: the first one."""

    def __init__(self):
        super().__init__([lambda: Counting(action=gym.Discrete(5, start=3))] * 2)
        self.idle: list[int] = []

    def step(self, actions: Any):
        self.idle += actions[self._autoreset_envs].tolist()
        *result, info = super().step(actions)
        return *result, info | {"bonus": np.ones(2), "_bonus": np.array([True, False])}


def test_copies_that_are_reset_get_the_first_action():
    watched = Watched()
    told = numbers_at_ends(GymnasiumVector(watched), 60, value=4)
    assert len(watched.idle) >= 10 and set(watched.idle) == {3}
    assert {copy: set(numbers) for copy, numbers in told.items()} == {0: {"steps", "bonus"}, 1: {"steps"}}


class Keeping(SyncVectorEnv):
    """Keeps the actions that it is given."""

    def __init__(self):
        super().__init__([lambda: Counting(action=gym.Discrete(5))] * 2)
        self.kept: list[Any] = []

    def step(self, actions: Any):
        self.kept.append(actions)
        return super().step(actions)


def test_an_environment_may_keep_its_actions():
    keeping = Keeping()
    env = GymnasiumVector(keeping)
    env.reset(0)
    for action in range(5):
        _, [turn] = env.observe()
        env.act(turn, np.full(len(turn.copies), action))
    env.observe()
    assert [actions.max() for actions in keeping.kept] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["CartPole", "tuple", "masked in the observation", "masked multi-discrete"])
def test_final_observations_say_same_step_in_each_form(name: str, form: Any):
    """The tuple has as many parts as there are copies."""
    maker, several = MAKERS[name], SyncVectorEnv([MAKERS[name]] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    env = GymnasiumVector(Told(several, form))
    assert_plays_as(env, [maker] * 2, 60, env.spaces["agent_0"].masked)


def changed(**changes):
    """Told in a batch, with other values in the info; None leaves one out."""

    def form(env, info):
        info = in_a_batch(env, info) | changes
        return {name: value for name, value in info.items() if value is not None}

    return form


def first_alone(env, info, seen=[]):  # noqa: B006
    seen.append(info)
    return info if len(seen) == 1 else {}


def same_step(form: Any) -> Told:
    return Told(SyncVectorEnv([Counting], autoreset_mode=AutoresetMode.SAME_STEP), form)


def ends(form: Any) -> Callable[[], object]:
    return lambda: play(GymnasiumVector(same_step(form)), 40)


ENDS = "environment copy 0, agent_0: final_obs: expected "
PART, ROWS = {"doors": np.zeros((1, 3), np.int8)}, dict.fromkeys(["doors", "keys", "place"], np.zeros((3, 3)))
BAD_ENDS: dict[str, Refused] = {
    "part": (ends(changed(final_obs=PART)), EnvironmentFailed, f"{ENDS}obs['doors'], obs['keys'][0], "),
    "rows": (ends(changed(final_obs=ROWS)), EnvironmentFailed, f"{ENDS}a row for each of 1"),
    "absent": (ends(changed(_final_obs=np.zeros(1, bool))), EnvironmentFailed, f"{ENDS}the last observation of an epi"),
    "contradiction": (ends(first_alone), EnvironmentFailed, "autoreset_mode: expected a mode in the metadata, or fi"),
}
test_final_observations_that_do_not_fit_are_refused = refusals(BAD_ENDS)


def test_same_step_without_final_observations_is_refused():
    env, says = same_step(lambda env, info: {}), f"{ENDS}the last observation of an episode that ended, got none"
    env.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
    for call in (lambda: play(GymnasiumVector(env), 40), lambda: check_env(env, steps=40)):
        check_refused(call, EnvironmentFailed, says)


def second_float(value):
    def change(step):
        step["obs"] = step["obs"].astype(np.float64)
        step["obs"][1, 2] = value

    return change


def set_to(name, value):
    return lambda step: step.update({name: value})


def broken(step):
    raise RuntimeError("the pole broke")


class Wrong(SyncVectorEnv):
    """Its steps are changed, and in mode SAME_STEP the final observation of copy 1 is another."""

    def __init__(self, change=lambda step: None, final=None):
        mode = AutoresetMode.NEXT_STEP if final is None else AutoresetMode.SAME_STEP
        super().__init__([MAKERS["CartPole"]] * 3, autoreset_mode=mode)
        self.change, self.final = change, final

    def step(self, actions):
        step = dict(zip(("obs", "reward", "terminated", "truncated", "info"), super().step(actions), strict=True))
        self.change(step)
        if self.final is not None:
            finals = np.array([None] * 3, dtype=object)
            finals[1] = self.final
            step |= {"truncated": np.array([False, True, False]), "info": {"final_obs": finals}}
        return tuple(step.values())


def wrong(says: str, *change: Any, copy: int | None = 1, **final: Any) -> Refused:
    where = "" if copy is None else f"environment copy {copy}, agent_0: "
    return lambda: play(GymnasiumVector(Wrong(*change, **final)), 4), EnvironmentFailed, where + says


TEXTS, COLUMNS = set_to("truncated", ["False"] * 3), set_to("reward", np.zeros((3, 2)))
MADE_WRONG: dict[str, Refused] = {
    "nan": wrong("obs: expected finite numbers, got nan in [", second_float(np.nan)),
    "inf": wrong("obs: expected finite numbers, got inf in [", second_float(np.inf)),
    "beyond": wrong("obs: expected values in float32's range, got -1e+39", second_float(-1e39)),
    "reward": wrong("reward: expected a finite number of", set_to("reward", np.array([0, np.inf, 0]))),
    "columns": wrong("agent_0: reward: expected numbers (3,), got array([[0., ", COLUMNS, copy=None),
    "texts": wrong("reward: expected a number, got ", set_to("reward", np.array(["1.0"] * 3)), copy=0),
    "shape": wrong("obs: expected float32 (4,), got shape", set_to("obs", np.zeros((3, 3), np.float32)), copy=0),
    "ends": wrong("agent_0: truncated: expected bools (3,), got ['False', 'False', 'False']", TEXTS, copy=None),
    "raise": wrong("environment: RuntimeError: the pole broke", broken, copy=None),
    "final inf": wrong("obs: expected finite numbers, got inf in", final=np.array([0, 0, np.inf, 0], np.float32)),
    "final beyond": wrong("obs: expected values in float32's range, got 1e+39", final=np.array([0, 0, 1e39, 0])),
    "final shape": wrong("obs: expected float32 (4,), got shape (3,)", final=np.zeros(3, np.float32)),
}
test_a_wrong_value_is_named = refusals(MADE_WRONG)


class PoolSpec:
    """What EnvPool's spec offers."""

    def __init__(self, config: dict[str, Any]):
        self.config = config

    @staticmethod
    def gen_config(**config: Any):
        return config


class Pool:
    """EnvPool's Gymnasium interface, for machines without it: single spaces, a seed at its making, send and recv."""

    def __init__(self, spec: PoolSpec):
        self.spec, self.config = spec, spec.config
        self.inside = SyncVectorEnv([MAKERS["CartPole"]] * self.config["num_envs"])
        self.num_envs = self.config["num_envs"]
        self.observation_space, self.action_space = self.inside.single_observation_space, gym.Discrete(2)
        self.sent: Any = None

    def reset(self):
        obs, _ = self.inside.reset(seed=self.config["seed"])
        return obs, {"env_id": np.arange(self.num_envs)}

    def send(self, actions: Any):
        assert self.sent is None, "each send has its recv"
        self.sent = actions.copy()

    def recv(self):
        sent, self.sent = self.sent, None
        *result, _ = self.inside.step(sent)
        return *result, {"env_id": np.arange(self.num_envs), "elapsed_step": np.full(self.num_envs, 9, np.int32)}

    def close(self):
        self.inside.close()


def test_a_stand_in_for_envpool():
    env = vectorize(lambda: Pool(PoolSpec({"num_envs": 3, "batch_size": 3, "seed": 1})), 8)
    assert isinstance(env, EnvPool)
    assert_plays_as(env, [MAKERS["CartPole"]] * 3, 60, first=seeds_of(5, 1)[0] & 0x7FFFFFFF)
    assert set(map(tuple, numbers_at_ends(env, 40).values())) == {("elapsed_step",)}
    check_env(lambda: Pool(PoolSpec({"num_envs": 2, "batch_size": 2, "seed": 1})), steps=100)
    with pytest.raises(ValueError, match=r"^EnvPool batch_size: expected 2, got 1$"):
        EnvPool(Pool(PoolSpec({"num_envs": 2, "batch_size": 1, "seed": 1})))
