"""Environments: every adapter keeps the order of turns, rewards and ends, whatever agents come and go."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import gymnasium
import mpe2.simple_spread_v3
import numpy as np
import pytest
from numpy.typing import NDArray
from pettingzoo.utils import parallel_to_aec
from relay import Relay

from marlcore.envs import TreasureHunt, make
from marlcore.envs.gymnasium import GymnasiumEnvironment
from marlcore.envs.pettingzoo import AECEnvironment, ParallelEnvironment
from marlcore.interfaces import Environment

ENVIRONMENTS: dict[str, Callable[[], Environment]] = {
    "treasure_hunt": lambda: make("treasure_hunt", horizon=20),
    "crowded_treasure_hunt": lambda: make(
        "treasure_hunt", agents=6, size=4, view=3, gems=3, food=3, bones=3, horizon=15
    ),
    "cart_pole": lambda: make("gymnasium:CartPole-v1"),
    "cart_pole_cut_short": lambda: make("gymnasium:CartPole-v1", max_episode_steps=6),
    "spread_aec": lambda: make("pettingzoo:mpe2.simple_spread_v3", max_cycles=6),
    "spread_parallel": lambda: make("pettingzoo-parallel:mpe2.simple_spread_v3", max_cycles=6),
    "relay_aec": lambda: AECEnvironment(parallel_to_aec(Relay())),
    "relay_parallel": lambda: ParallelEnvironment(Relay()),
}


class Turn(NamedTuple):
    agent: str
    obs: NDArray[Any]
    reward: float
    terminated: bool
    truncated: bool
    action: int | None


def play(env: Environment, seed: int | None, actions: np.random.Generator) -> Iterator[Turn]:
    """One episode of random actions; each turn comes before its action is taken."""
    env.reset(seed)
    for _ in range(10_000):
        if (agent := env.agent) is None:
            return
        obs, reward, terminated, truncated = env.last()
        over = terminated or truncated
        action = None if over else int(actions.integers(env.actions[agent]))
        yield Turn(agent, obs, reward, terminated, truncated, action)
        env.step(action)
    pytest.fail("the episode does not end")


def record(env: Environment, episodes: int, seed: int = 7) -> list[Turn]:
    actions = np.random.default_rng(seed)
    return [turn for i in range(episodes) for turn in play(env, None if i else seed, actions)]


def assert_same(ours: list[Turn], theirs: list[Turn]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one._replace(obs=None) == other._replace(obs=None)
        np.testing.assert_array_equal(one.obs, other.obs)


@pytest.fixture(params=ENVIRONMENTS)
def factory(request: pytest.FixtureRequest) -> Callable[[], Environment]:
    return ENVIRONMENTS[request.param]


def test_every_environment_keeps_to_the_protocol(factory: Callable[[], Environment]) -> None:
    env = factory()
    assert env.agent is None, "nobody's turn before the first reset"
    assert set(env.observations) == set(env.actions) == set(env.agents)
    actions = np.random.default_rng(0)
    for episode in range(25):
        left: set[str] = set()
        started: set[str] = set()
        kept = []
        for turn in play(env, episode or None, actions):
            field = env.observations[turn.agent]
            assert turn.obs.shape == field.shape
            assert turn.obs.dtype == field.dtype
            assert np.isfinite(turn.obs).all()
            assert type(turn.reward) is float
            assert type(turn.terminated) is type(turn.truncated) is bool
            assert turn.agent not in left, "an agent takes no turn after its last one"
            assert turn.agent in started or turn.reward == 0.0, "no reward before the first action"
            started.add(turn.agent)
            if turn.action is None:
                left.add(turn.agent)
            kept.append((turn.obs, turn.obs.copy()))
        assert left == started, "everybody who began has a last turn"
        for obs, copy in kept:
            np.testing.assert_array_equal(obs, copy, err_msg="an observation changed after it was given")
    env.close()


def test_a_seed_makes_all_episodes_reproducible(
    factory: Callable[[], Environment],
) -> None:
    ours, theirs = factory(), factory()
    record(theirs, episodes=2, seed=3)  # another past
    assert_same(record(ours, episodes=4), record(theirs, episodes=4))


def test_only_living_agents_are_due_an_action(
    factory: Callable[[], Environment],
) -> None:
    env = factory()
    for turn in play(env, 0, np.random.default_rng(0)):
        wrong, expected = (0, "None") if turn.action is None else (None, "an action")
        with pytest.raises(ValueError, match=f"^step: expected {expected}.*, got .*{wrong}$"):
            env.step(wrong)
        assert env.agent == turn.agent
    with pytest.raises(ValueError, match=r"^step: expected a reset.*, got action 0$"):
        env.step(0)
    env.close()


# Treasure hunt


def board(env: TreasureHunt, size: int) -> tuple[NDArray[Any], tuple[int, int]]:
    """The planes of agents, gems, food and bones inside the walls, and where the agent is that acts.

    For environments whose `view` is their `size`, so that each observation shows everything.
    """
    walls, *planes = env.last()[0]
    inside = np.argwhere(walls == 0)
    (top, left), (bottom, right) = inside.min(axis=0), inside.max(axis=0)
    assert bottom - top == right - left == size - 1
    assert (walls[top : bottom + 1, left : right + 1] == 0).all()
    return np.array(planes)[:, top : bottom + 1, left : right + 1], (size - top, size - left)


def moved(planes: NDArray[Any], place: tuple[int, int], action: int) -> tuple[NDArray[Any], tuple[int, int], float]:
    """What the rules make of a board: the plain oracle."""
    dy, dx = [(-1, 0), (1, 0), (0, -1), (0, 1)][action]
    y, x = place[0] + dy, place[1] + dx
    size = planes.shape[1]
    if not (0 <= y < size and 0 <= x < size) or planes[0, y, x]:
        return planes, place, 0.0
    earned = float(planes[1:, y, x] @ [10.0, 5.0, -10.0])
    planes = planes.copy()
    planes[0, place[0], place[1]] = 0
    planes[:, y, x] = (1, 0, 0, 0)
    return planes, (y, x), earned


@pytest.mark.parametrize(("agents", "size", "items"), [(1, 5, 3), (3, 5, 4), (3, 2, 0), (8, 4, 2)])
def test_agents_act_one_after_another(agents: int, size: int, items: int) -> None:
    """Agents act one after another on the board the previous one left.

    Also: walls and agents block the way, and the reward comes at the agent's own next turn.
    """
    env = TreasureHunt(
        agents=agents, size=size, view=size, horizon=40, gems=items, food=items, bones=items, respawn=0.0
    )
    rng = np.random.default_rng(1)
    blocked = 0
    for _ in range(5):
        env.reset(int(rng.integers(1000)))
        expected_planes = board(env, size)[0]
        assert [int(plane.sum()) for plane in expected_planes] == [agents, items, items, items]
        places: dict[str, tuple[int, int]] = {}
        earned = dict.fromkeys(env.agents, 0.0)
        while (agent := env.agent) is not None:
            planes, place = board(env, size)
            np.testing.assert_array_equal(planes, expected_planes)
            assert places.setdefault(agent, place) == place
            _, reward, _, truncated = env.last()
            assert reward == earned[agent]
            if truncated:
                env.step(None)
                continue
            action = int(rng.integers(4))
            expected_planes, places[agent], earned[agent] = moved(planes, place, action)
            blocked += places[agent] == place
            env.step(action)
    assert blocked > 0


def test_entities_come_back_before_any_agent_acts() -> None:
    """Entities come back at the start of a turn before any agent acts."""
    env = TreasureHunt(agents=2, size=3, view=3, horizon=30, gems=4, food=0, bones=0, respawn=1.0)
    rng = np.random.default_rng(2)
    total = 0
    for seed in range(10):
        env.reset(seed)
        taken = 0  # gems since the turn began
        while env.agent is not None:
            truncated = env.last()[3]
            planes, place = board(env, 3)
            if env.agent == "agent_0" and not truncated:
                taken = 0
            assert planes[1].sum() == 4 - taken
            action = None if truncated else int(rng.integers(4))
            if action is not None and moved(planes, place, action)[2]:
                taken += 1
                total += 1
            env.step(action)
    assert total > 100


def test_what_was_picked_up_stays_away_when_nothing_comes_back() -> None:
    env = TreasureHunt(agents=1, size=3, view=3, horizon=500, gems=2, food=2, bones=2, respawn=0.0)
    rewards = [turn.reward for turn in record(env, episodes=1)]
    assert sorted(reward for reward in rewards if reward) == [-10.0, -10.0, 5.0, 5.0, 10.0, 10.0]


def test_the_time_limit_truncates_after_the_last_action() -> None:
    """The time limit truncates every agent after its own last action."""
    turns = record(TreasureHunt(agents=3, horizon=12), episodes=1)
    assert [turn.agent for turn in turns] == ["agent_0", "agent_1", "agent_2"] * 13
    assert [turn.truncated for turn in turns] == [False] * 36 + [True] * 3
    assert not any(turn.terminated for turn in turns)


def test_observations_are_ones_and_zeros() -> None:
    """An observation shows walls and the agent itself in ones and zeros."""
    env = TreasureHunt(view=2)
    assert env.observations["agent_0"].shape == (5, 5, 5)
    for turn in record(env, episodes=3):
        assert set(np.unique(turn.obs)) <= {0.0, 1.0}
        assert (turn.obs.sum(axis=0) <= 1).all(), "a cell holds one thing"
        assert turn.obs[1, 2, 2] == 1.0


def forage(obs: NDArray[Any], rng: np.random.Generator) -> int:
    """Step towards what is worth most for its distance, around bones: scores spread from cell to cell."""
    _, _, gems, food, _ = obs
    free = (obs[[0, 1, 4]].sum(axis=0) == 0).astype(float)
    worth = 10 * gems + 5 * food
    score = np.pad(worth + 1e-3 * rng.random(worth.shape), 1)
    for _ in range(worth.size // 2):
        around = [score[:-2, 1:-1], score[2:, 1:-1], score[1:-1, :-2], score[1:-1, 2:]]
        score[1:-1, 1:-1] = free * np.maximum(score[1:-1, 1:-1], 0.6 * np.max(around, axis=0))
    y = x = len(worth) // 2 + 1
    return int(np.argmax([score[y - 1, x], score[y + 1, x], score[y, x - 1], score[y, x + 1]]))


def test_foraging_earns_far_more_than_chance() -> None:
    def mean_return(policy: Callable[[NDArray[Any], np.random.Generator], int], episodes: int) -> float:
        env, rng, earned = TreasureHunt(), np.random.default_rng(0), 0.0
        for seed in range(episodes):
            env.reset(seed)
            while env.agent is not None:
                obs, reward, _, truncated = env.last()
                earned += reward
                env.step(None if truncated else policy(obs, rng))
        return earned / episodes / len(env.agents)

    chance = mean_return(lambda obs, rng: int(rng.integers(4)), episodes=60)
    assert -12.0 < chance < 2.0
    assert mean_return(forage, episodes=3) > 80.0


def test_a_copy_of_a_treasure_hunt_goes_on_as_the_original_does() -> None:
    ours = TreasureHunt(horizon=20)
    record(ours, episodes=1)
    theirs = pickle.loads(pickle.dumps(ours))
    mine, copied = (list(play(env, None, np.random.default_rng(0))) for env in (ours, theirs))
    assert_same(mine, copied)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"agents": 0}, "TreasureHunt agents: expected at least 1, got 0"),
        ({"horizon": 0}, "TreasureHunt horizon: expected at least 1, got 0"),
        ({"bones": -1}, "TreasureHunt bones: expected at least 0, got -1"),
        ({"respawn": 1.5}, "TreasureHunt respawn: expected a probability, got 1.5"),
        ({"size": 3}, "TreasureHunt size: expected more than 19 cells, got 3x3"),
    ],
)
def test_treasure_hunt_says_which_option_is_wrong(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError) as error:
        make("treasure_hunt", **options)
    assert str(error.value) == line


# Gymnasium


def test_cart_pole_is_what_gymnasium_itself_gives() -> None:
    turns = record(make("gymnasium:CartPole-v1"), episodes=1)
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=7)
    np.testing.assert_array_equal(turns[0].obs, obs)
    for before, after in pairwise(turns):
        obs, reward, terminated, truncated, _ = env.step(before.action)
        np.testing.assert_array_equal(after.obs, obs)
        assert after[2:5] == (reward, terminated, truncated)


def test_a_fallen_pole_terminates_and_a_time_limit_truncates() -> None:
    fallen = record(make("gymnasium:CartPole-v1"), episodes=1)
    assert fallen[-1][3:] == (True, False, None)
    assert abs(fallen[-1].obs[0]) > 2.4 or abs(fallen[-1].obs[2]) > 0.2, "the final observation is the fallen one"
    cut = record(make("gymnasium:CartPole-v1", max_episode_steps=5), episodes=1)
    assert cut[-1][3:] == (False, True, None)
    assert len(cut) == 6


class Countdown(gymnasium.Env):
    """Action numbers start from 5; the reward is the number; the same buffer is observed throughout."""

    observation_space = gymnasium.spaces.Box(0, 255, (2,), np.uint8)
    action_space = gymnasium.spaces.Discrete(2, start=5)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.seen = np.full(2, 3, np.uint8)
        return self.seen, {}

    def step(self, action: int) -> tuple[Any, Any, Any, Any, Any]:
        self.seen -= 1
        return self.seen, action, np.bool_(self.seen[0] == 0), False, {}


def test_actions_count_from_zero_and_observations_are_copies() -> None:
    env = GymnasiumEnvironment(Countdown())
    turns = record(env, episodes=1)
    assert [int(turn.obs[0]) for turn in turns] == [3, 2, 1, 0]
    assert [turn.reward for turn in turns[1:]] == [5 + (turn.action or 0) for turn in turns[:-1]]


# PettingZoo


def test_spread_is_the_same_through_both_interfaces() -> None:
    aec = record(make("pettingzoo:mpe2.simple_spread_v3", max_cycles=10), episodes=3)
    parallel = record(make("pettingzoo-parallel:mpe2.simple_spread_v3", max_cycles=10), episodes=3)
    assert len(aec) == 3 * 3 * 11
    assert_same(aec, parallel)


def test_spread_is_what_pettingzoo_itself_gives() -> None:
    turns = record(make("pettingzoo-parallel:mpe2.simple_spread_v3", max_cycles=10), episodes=1)
    env = mpe2.simple_spread_v3.parallel_env(max_cycles=10)
    seen, _ = env.reset(seed=7)
    rewards = dict.fromkeys(seen, 0.0)
    for start in range(0, len(turns), 3):
        round_ = turns[start : start + 3]
        for turn in round_:
            np.testing.assert_array_equal(turn.obs, seen[turn.agent])
            assert turn.reward == rewards[turn.agent]
            assert turn.truncated == (start == 30)
        if env.agents:
            seen, rewards, *_ = env.step({turn.agent: turn.action for turn in round_})


def test_both_interfaces_show_agents_that_come_and_go() -> None:
    assert_same(
        record(ParallelEnvironment(Relay()), episodes=3),
        record(AECEnvironment(parallel_to_aec(Relay())), episodes=3),
    )


def test_a_dead_agents_last_turn_has_its_last_reward() -> None:
    """An agent that dies first takes its last turn with its last reward."""
    turns = record(ParallelEnvironment(Relay()), episodes=1)
    order = [turn.agent + ("!" if turn.action is None else "") for turn in turns]
    assert order == ["a", "b"] * 2 + ["a", "b", "c"] + ["a!", "b", "c"] + ["b", "c"] + ["b!", "c!"]
    for agent in "abc":
        mine = [turn for turn in turns if turn.agent == agent]
        assert [turn.reward for turn in mine[1:]] == [(turn.action or 0) - 1 for turn in mine[:-1]]
        assert (mine[-1].terminated, mine[-1].truncated) == (agent == "a", agent != "a")
        assert mine[-1].obs[0] == (3 if agent == "a" else 5), "the final observation, not a later one"


class Lingering(Relay):
    """Relay, but those who were truncated stay on the list of agents."""

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        result = super().step(actions)
        self.agents = self.agents or list(actions)
        return result


def test_an_ended_agent_still_listed_has_one_last_turn() -> None:
    """An agent that stays on the list after its end still has one last turn."""
    assert_same(
        record(ParallelEnvironment(Lingering()), episodes=2),
        record(ParallelEnvironment(Relay()), episodes=2),
    )


# Names and spaces


@pytest.mark.parametrize(
    "name",
    [
        "tresure_hunt",
        "",
        "gymnasium:",
        "gymnasium:NoSuch-v1",
        "gymnasium:CartPole-v99",
        "gymnasium:not an id",
        "pettingzoo:",
        "pettingzoo:no_such_package.env_v0",
        "pettingzoo:mpe2.no_such_v0",
        "pettingzoo:.relative",
        "pettingzoo:mpe2",
        "pettingzoo-parallel:classic.tictactoe_v3",
        "vizdoom:basic",
    ],
)
def test_an_unknown_name_is_answered_in_one_line(name: str) -> None:
    """An unknown name is answered in one line with what is expected."""
    with pytest.raises(ValueError) as error:
        make(name)
    message = str(error.value)
    assert message.startswith("environment: expected ")
    assert f"got {name!r}" in message
    assert "\n" not in message
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__ or error.value.__context__ is None


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("gymnasium:Pendulum-v1", {}, r"action space of agent_0: expected a Discrete, got Box\("),
        (
            "pettingzoo:mpe2.simple_spread_v3",
            {"continuous_actions": True},
            r"action space of agent_0: expected a Discrete, got Box\(",
        ),
        # a short name, found under the pettingzoo package
        ("pettingzoo:classic.rps_v2", {}, r"observation space of player_0: expected a Box, got Discrete\("),
    ],
)
def test_a_space_that_is_not_supported_is_named_with_its_agent(name: str, options: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=f"^{line}"):
        make(name, **options)


def test_each_adapter_refuses_other_kinds_of_environment() -> None:
    """Each adapter wants its own kind of environment with agents known beforehand."""
    with pytest.raises(ValueError, match=r"^AECEnvironment: expected a pettingzoo.AECEnv, got "):
        AECEnvironment(Relay())
    with pytest.raises(ValueError, match=r"^ParallelEnvironment: expected a pettingzoo.ParallelEnv, got "):
        ParallelEnvironment(parallel_to_aec(Relay()))
    nameless = Relay()
    nameless.possible_agents = [0, 1]
    with pytest.raises(ValueError, match=r"^possible_agents of .*: expected a list of names, got \[0, 1\]$"):
        ParallelEnvironment(nameless)


@pytest.mark.parametrize(
    ("package", "name"),
    [("gymnasium", "gymnasium:CartPole-v1"), ("pettingzoo", "pettingzoo:mpe2.simple_spread_v3")],
)
def test_a_missing_package_says_what_to_install(package: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"marlcore.envs.{package}")
    with pytest.raises(ImportError, match=r"pip install marlcore\[envs\]"):
        make(name)


def test_a_module_whose_own_import_fails_is_not_called_unknown(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needy_env_v0.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        make("pettingzoo:needy_env_v0")


def test_third_party_packages_wait_until_they_are_needed() -> None:
    check = "import sys, marlcore.envs; print(*{'gymnasium', 'pettingzoo', 'mpe2', 'torch'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == ""
