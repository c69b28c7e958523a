"""One copy of an environment: adapters keep the order of turns, rewards and ends, and give each agent its own part."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from crowd import Relay
from gymnasium.spaces import Box, Discrete, Tuple
from pettingzoo.utils import parallel_to_aec
from random_play import assert_same, parallel, play, record, take_turns

import marlcore as mc
from marlcore.envs import AECEnvironment, ParallelEnvironment, PerAgent, adapt, make, vectorize
from marlcore.envs import team as teams
from marlcore.errors import EnvironmentFailed
from marlcore.interfaces import Environment

CROWDED = {"agents": 6, "size": 4, "view": 3, "gems": 3, "food": 3, "bones": 3, "horizon": 15}
ENVIRONMENTS: dict[str, Callable[[], Environment]] = {
    "treasure_hunt": lambda: make("treasure_hunt", horizon=20),
    "crowded_treasure_hunt": lambda: make("treasure_hunt", **CROWDED),
    "cart_pole": lambda: make("gymnasium:CartPole-v1"),
    "cart_pole_cut_short": lambda: make("gymnasium:CartPole-v1", max_episode_steps=6),
    "spread_aec": lambda: make("pettingzoo:mpe2.simple_spread_v3", max_cycles=6),
    "spread_parallel": lambda: make("pettingzoo-parallel:mpe2.simple_spread_v3", max_cycles=6),
    "relay_aec": lambda: AECEnvironment(parallel_to_aec(Relay())),
    "relay_parallel": lambda: ParallelEnvironment(Relay()),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_keeps_to_the_protocol(name):
    """Its agents are due an action while they live, and a wrong one is refused."""
    env = ENVIRONMENTS[name]()
    assert env.agent is None, "nobody's turn before the first reset"
    assert set(env.observation_spaces) == set(env.action_spaces) == set(env.agents)
    actions = np.random.default_rng(0)
    for episode in range(25):
        left, started = set(), set()
        for turn in take_turns(env, episode or None, actions):
            assert env.observation_spaces[turn.agent].contains(turn.obs)
            assert turn.agent not in left, "an agent takes no turn after its last one"
            assert turn.agent in started or turn.reward == 0.0, "no reward before the first action"
            started.add(turn.agent)
            wrong, expected = (0, "None") if turn.action is None else (None, "an action")
            with pytest.raises(ValueError, match=f"^step: expected {expected}.*, got .*{wrong}$"):
                env.step(wrong)
            assert env.agent == turn.agent
            if turn.action is None:
                left.add(turn.agent)
        assert left == started, "everybody who began has a last turn"
        with pytest.raises(ValueError, match=r"^step: expected a reset.*, got action 0$"):
            env.step(0)
    env.close()


class Lingering(Relay):
    """Relay, but those who were truncated stay on the list of agents."""

    def step(self, actions):
        result = super().step(actions)
        self.agents = self.agents or list(actions)
        return result


@pytest.mark.parametrize("make", [Relay, Lingering, lambda: parallel_to_aec(Relay())])
def test_each_form_of_an_environment_has_the_same_turns(make):
    """Also where agents come and go, or stay on the list after their end."""
    assert_same(record(adapt(make()), episodes=3), record(ParallelEnvironment(Relay()), episodes=3))


MAKERS = {
    "single": lambda: gymnasium.make("CartPole-v1"),
    "vector": lambda: gymnasium.make_vec("CartPole-v1", 1),
    "parallel": Relay,
    "turns": lambda: ParallelEnvironment(Relay()),
}


@pytest.mark.parametrize(
    ("method", "name"),
    [("step", "single"), ("reset", "single"), ("step", "vector"), *((m, "parallel") for m in ("step", "reset")),
     ("last", "turns")],
)  # fmt: skip
def test_a_value_too_few_is_told_with_the_names_of_all(method, name):
    env = MAKERS[name]()
    right = getattr(env, method)
    setattr(env, method, lambda *args, **options: right(*args, **options)[:-1])
    expected = r"\(observation, info\), got 1 " if method == "reset" else r"\(.*, truncated, info\), got 4 "
    with pytest.raises(EnvironmentFailed, match=f"ValueError: {method}: expected {expected}values$"):
        play(vectorize(lambda: env, 1), 2)


class Levels(gymnasium.Env[Any, Any]):
    """Two agents with unlike spaces; what they see and earn says who did what, when. Truncated after 4 steps."""

    observation_space = Tuple((Box(0, 99, (2,)), Box(0, 99, (3,))))
    action_space = Tuple((Discrete(2), Discrete(3)))

    def __init__(self, shared: bool) -> None:
        self.shared = shared

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return self._seen(), {}

    def _seen(self) -> Any:
        return np.full(2, self.steps, np.float32), np.full(3, 10 + self.steps, np.float32)

    def step(self, action: Any) -> Any:
        self.steps += 1
        earned = [float(action[0]), 10.0 + float(action[1])]
        infos: Any = {"all": 1.0} if self.shared else [{"own": 1.0}, {"own": 2.0}]
        return self._seen(), sum(earned) if self.shared else earned, False, self.steps == 4, infos


@pytest.mark.parametrize("shared", [False, True])
def test_each_agent_gets_its_own_part(shared: bool) -> None:
    env = PerAgent(Levels(shared))
    assert [env.action_space(agent) for agent in env.possible_agents] == [Discrete(2), Discrete(3)]
    env.reset()
    for step in range(1, 5):
        obs, rewards, terminated, truncated, infos = env.step({"agent_0": 1, "agent_1": 2})
        assert (obs["agent_0"].tolist(), obs["agent_1"].tolist()) == ([step] * 2, [10 + step] * 3)
        assert [*rewards.values()] == ([13.0, 13.0] if shared else [1.0, 12.0])
        assert ([*terminated.values()], [*truncated.values()]) == ([False] * 2, [step == 4] * 2)
        assert [*infos.values()] == ([{"all": 1.0}] * 2 if shared else [{"own": 1.0}, {"own": 2.0}])
    assert env.agents == []


def test_vectors_and_teams_take_them_as_they_are() -> None:
    env = vectorize(lambda: Levels(False), 3)
    events, actions = play(env, 20)
    assert env.episodes == 3 * 4
    for copy in range(3):
        own = {agent: queue for (number, agent), queue in actions.items() if number == copy}
        theirs = parallel(PerAgent(Levels(False)), 0, own, dict.fromkeys(env.agents, False))
        for agent in env.agents:
            assert_same(events[copy, agent], theirs[agent])
    team = teams.TeamEnvironment(Levels(False), {"both": ("agent_0", "agent_1")})
    team.reset()
    assert team.step({"both": np.array([1, 2])})[1] == {"both": 13.0}


@pytest.mark.parametrize(
    ("terminated", "truncated", "ends"),
    [
        ([True, False], [False, True], ([True, False], [False, True])),
        ([True, False], True, ([True, False], [False, True])),
        (True, True, ([True, True], [False, False])),
        ([True, False], False, ([False, False], [False, False])),
    ],
)
def test_an_episode_ends_when_each_agents_part_has(terminated: Any, truncated: Any, ends: Any) -> None:
    inner = Levels(False)
    inner.step = lambda action: (inner._seen(), [0.0, 0.0], terminated, truncated, {})  # type: ignore[method-assign]
    env = PerAgent(inner)
    env.reset()
    _, _, *told, _ = env.step({"agent_0": 0, "agent_1": 0})
    assert tuple([*by_agent.values()] for by_agent in told) == ends
    assert bool(env.agents) == (ends == ([False, False], [False, False]))


def test_spaces_of_other_lengths_are_refused() -> None:
    env = Levels(False)
    env.observation_space = Tuple((Box(0, 1, (2,)),))
    with pytest.raises(ValueError, match=r"^observation space: expected a Tuple of 2 "):
        vectorize(lambda: env, 1)


@pytest.mark.parametrize("name", ["Foraging-8x8-2p-3f-v3", "rware-tiny-2ag-v2"])
def test_packages_work_by_name_without_a_warning(name: str) -> None:
    package = {"Foraging": "lbforaging"}.get(name.partition("-")[0], "rware")
    pytest.importorskip(package, reason=f"needs {package}")
    env = vectorize(mc.NamedEnvironment(f"gymnasium:{name}", {"max_episode_steps": 10}), 2)
    events, _ = play(env, 40)
    ends = [event for event in events[0, "agent_1"] if event[0] == "outcome" and event[3]]
    assert env.agents == ("agent_0", "agent_1")
    assert len(ends) == 3
    env.close()
