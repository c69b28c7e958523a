"""One copy of an environment: every adapter keeps the order of turns, rewards and ends, whatever agents come and go."""

from collections.abc import Callable

import gymnasium
import numpy as np
import pytest
from crowd import Relay
from pettingzoo.utils import parallel_to_aec
from random_play import assert_same, play, record, take_turns

from marlcore.envs import AECEnvironment, ParallelEnvironment, adapt, make, vectorize
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


def test_a_dead_agents_last_turn_has_its_last_reward():
    turns = record(ParallelEnvironment(Relay()), episodes=1)
    order = [turn.agent + ("!" if turn.action is None else "") for turn in turns]
    assert order == ["a", "b"] * 2 + ["a", "b", "c"] + ["a!", "b", "c"] + ["b", "c"] + ["b!", "c!"]
    for agent in "abc":
        own = [turn for turn in turns if turn.agent == agent]
        assert [turn.reward for turn in own[1:]] == [turn.action for turn in own[:-1]]
        assert (own[-1].terminated, own[-1].truncated) == (agent == "a", agent != "a")
        assert own[-1].obs[0] == (3 if agent == "a" else 5), "the final observation, not a later one"


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
