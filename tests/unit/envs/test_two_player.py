"""Games of two players behind one step: both sides' observations, actions, rewards, winners and ends."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gym
from puck import chaser, idle, two_player_puck
from refused import Refused, refusals

from marlcore.envs import TwoPlayer, two_player


class Table(gymnasium.Env):
    """Tells what it was given; an episode lasts three steps. It may have other methods."""

    def __init__(self, winner=0, length=4, **methods):
        self.observation_space = gym.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gym.Box(-1, 1, (length,), np.float32)
        self.winner, self.steps = winner, 0
        self.given: list[Any] = []
        vars(self).update(methods)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.array([0.0, 1.0]), {"winner": 0}

    def step(self, action):
        self.given.append(action)
        self.steps += 1
        over = self.steps == 3
        return np.array([self.steps, 1.0]), 0.25, over, False, {"winner": self.winner if over else 0, "first": 1.0}

    def obs_agent_two(self):
        return np.array([self.steps, 2.0])

    def get_info_agent_two(self):
        return {"second": 2.0}


BOTH = {"player_1": np.float32([0.1, 0.2]), "player_2": np.float32([0.3, 0.4])}


def test_both_players_see_their_own_side():
    """The engine computes with float64, and the space says float32."""
    env = TwoPlayer(Table())
    obs, infos = env.reset(seed=3)
    assert [obs[agent].tolist() for agent in two_player.PLAYERS] == [[0, 1], [0, 2]]
    assert {seen.dtype for seen in obs.values()} == {np.dtype(np.float32)}
    assert infos == {"player_1": {"winner": 0}, "player_2": {"second": 2.0, "winner": 0}}
    obs, *_, infos = env.step(BOTH)
    assert [obs[agent].tolist() for agent in two_player.PLAYERS] == [[1, 1], [1, 2]]
    assert all(env.observation_space(agent).contains(obs[agent]) for agent in two_player.PLAYERS)
    assert infos["player_1"]["first"] == 1.0 and infos["player_2"]["second"] == 2.0


def test_the_actions_come_in_one_vector():
    """Those of a table by their numbers."""
    game = Table()
    env = TwoPlayer(game)
    env.reset()
    env.step(BOTH)
    env.step(dict(reversed(BOTH.items())))
    assert all(np.array_equal(given, np.float32([0.1, 0.2, 0.3, 0.4])) for given in game.given)
    assert env.action_space("player_2") == gym.Box(-1, 1, (2,), np.float32)
    env = TwoPlayer(game, actions=[[0, 0], [1, -1], [0.5, 0.5]])
    assert env.action_space("player_1") == gym.Discrete(3)
    env.reset()
    env.step({"player_1": 2, "player_2": np.int64(1)})
    assert game.given[-1].tolist() == [0.5, 0.5, 1, -1]


@pytest.mark.parametrize(
    ("methods", "second"), [({}, -0.25), ({"get_reward_agent_two": lambda info: 10.0 * float(info["second"])}, 20.0)]
)
def test_the_second_players_reward_is_its_own_or_the_opposite(methods, second):
    assert stepped(**methods)[1] == {"player_1": 0.25, "player_2": second}


@pytest.mark.parametrize("winner", [1, -1])
def test_the_winner_is_told_to_each_from_its_own_side(winner):
    env = TwoPlayer(Table(winner), max_steps=3)
    env.reset()
    for _ in range(3):
        *_, terminated, truncated, infos = env.step(BOTH)
    assert (infos["player_1"]["winner"], infos["player_2"]["winner"]) == (winner, -winner)
    assert set(terminated.values()) == {True} and set(truncated.values()) == {False} and env.agents == []


def test_an_end_by_time_without_a_winner_is_a_truncation():
    ends = {}
    for max_steps in (None, 3, 2):
        env = TwoPlayer(Table(), max_steps=max_steps)
        env.reset()
        while env.agents:
            *_, terminated, truncated, _ = env.step(BOTH)
        ends[max_steps] = env._steps, terminated["player_2"], truncated["player_2"]
    assert ends == {None: (3, True, False), 3: (3, False, True), 2: (2, False, True)}


def test_wrappers_of_gymnasium_may_lie_around_the_game():
    env = TwoPlayer(gymnasium.wrappers.TimeLimit(Table(), max_episode_steps=2))
    env.reset()
    env.step(BOTH)
    obs, _, terminated, truncated, _ = env.step(BOTH)
    assert obs["player_2"].tolist() == [2, 2] and truncated["player_1"] and not terminated["player_1"]


def test_wrappers_of_observations_and_rewards_serve_both_players():
    """In their order; the second player's reward is its own."""
    doubled = gymnasium.wrappers.TransformReward(
        Table(get_reward_agent_two=lambda info: 10.0), lambda reward: 2 * reward
    )
    raised = gymnasium.wrappers.TransformObservation(doubled, lambda obs: obs + 1.0, doubled.observation_space)
    env = TwoPlayer(gymnasium.wrappers.TransformObservation(raised, np.negative, raised.observation_space))
    env.reset()
    obs, rewards, *_ = env.step(BOTH)
    assert [obs[agent].tolist() for agent in two_player.PLAYERS] == [[-2, -2], [-2, -3]]
    assert rewards == {"player_1": 0.5, "player_2": 20.0}


def stepped(**methods):
    env = TwoPlayer(Table(**methods))
    env.reset(seed=3)
    return env.step(BOTH)


REFUSED: dict[str, Refused] = {
    "odd length": (lambda: TwoPlayer(Table(length=3)), "action space: expected a Box of even length, one half for eac"),
    "no game": (
        lambda: TwoPlayer(gymnasium.make("CartPole-v1")),
        TypeError, "env: expected a game of two players with the method obs_agent_two, got <TimeLimit<OrderEnforcing<",
    ),
    "columns": (lambda: TwoPlayer(Table(), actions=[[0] * 3]), "actions: expected a table [n, 2] of a player's act"),
    "beyond the Box": (lambda: TwoPlayer(Table(), actions=[[0, 2]]), "actions: expected rows within Box(-1.0, 1.0, ("),
    "beyond the second's Box": (
        lambda: TwoPlayer(Table(action_space=gym.Box(np.float32([-1, -0.5]), np.float32([1, 0.5]))), actions=[[0.9]]),
        "actions: expected rows within Box(-0.5, 0.5, (",
    ),
    "steps": (lambda: TwoPlayer(Table(), max_steps=0), "max_steps: expected an integer of at least 1, got"),
    "observation": (
        lambda: stepped(obs_agent_two=lambda: np.array([1.0, -1e39])),
        "player_2: obs: expected values in float32's range, got -1e+39",
    ),
    "reward": (
        lambda: stepped(get_reward_agent_two=lambda info: "1"), TypeError, "reward: expected a number, got '1'",
    ),
}  # fmt: skip
test_refuses = refusals(REFUSED)


def test_puck_is_the_same_game_from_both_sides():
    """Mirrored players see mirrored games: with the sides changed, the other one wins."""
    results = []
    for players in ((chaser, idle), (idle, chaser)):
        env = two_player_puck()
        obs, _ = env.reset(seed=0)
        for _ in range(8):
            while env.agents:
                first, second = (player(obs[agent]) for player, agent in zip(players, two_player.PLAYERS, strict=True))
                obs, rewards, *_, infos = env.step({"player_1": first, "player_2": second})
            results.append(infos["player_1"]["winner"])
            assert infos["player_2"]["winner"] == -results[-1] and -1.0 <= rewards["player_2"] <= 1.02
            obs, _ = env.reset()
    chasing_first, chasing_second = results[:8], results[8:]
    assert sum(chasing_first) >= 3 and sum(chasing_second) <= -3
