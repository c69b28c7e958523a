"""Gymnasium environments whose spaces are tuples of agents' parts: each agent gets its own, in rows and in teams."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Tuple
from random_play import assert_same, parallel, play

import marlcore as mc
from marlcore.envs import PerAgent, vectorize
from marlcore.envs import team as teams


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
