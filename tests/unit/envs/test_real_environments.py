"""Real environments: through `vectorize`, each copy is bit for bit what the raw environment gives for its seed.

And every reward counts: training and evaluation give what PettingZoo's own loops do, whenever and to whom it comes.
"""

import importlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import islice, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import mpe2
import numpy as np
import pytest
from chances import AtOnce, Chances, Told, script, told_at_once, told_by_turns
from hypothesis import given, settings
from hypothesis import strategies as st
from random_play import aec, assert_same, child_seeds, parallel, play, single
from tiers import long_but

import marlcore as mc
from marlcore import loops
from marlcore.envs import NamedEnvironment, team, vectorize
from marlcore.observations import each

COPIES = 2

GYMNASIUM: dict[str, dict[str, Any]] = {
    "CartPole-v1": {},
    "Pendulum-v1": {"max_episode_steps": 30},
    "LunarLander-v3": {},
    "FrozenLake-v1": {},
    "Taxi-v4": {"max_episode_steps": 40},
    "Blackjack-v1": {"natural": True},
    "HalfCheetah-v5": {"max_episode_steps": 40},
}
NEEDS = {
    ("HalfCheetah",): ("mujoco", "imageio"),
    ("LunarLander",): ("Box2D",),
    ("pettingzoo.butterfly", "pettingzoo.sisl"): ("pygame", "pymunk"),
    ("pettingzoo.sisl.multiwalker",): ("Box2D",),
    ("pettingzoo.classic",): ("pygame",),
    ("pettingzoo.classic.chess",): ("chess",),
    ("pettingzoo.classic.hanabi",): ("pyspiel", "shimmy"),
    ("pettingzoo.classic.leduc", "pettingzoo.classic.texas"): ("rlcard",),
}


def need(name):
    """Skips the test where a package is missing that the environment of this name needs."""
    for names, packages in NEEDS.items():
        for package in packages if name.startswith(names) else ():
            pytest.importorskip(package, reason=f"needs {package}")


@pytest.mark.parametrize("name", long_but(["CartPole-v1", "FrozenLake-v1"], GYMNASIUM))
def test_gymnasium(name):
    need(name)
    if name not in gymnasium.registry:
        pytest.skip(f"Gymnasium {gymnasium.__version__} has no {name}")
    make = partial(gymnasium.make, name, **GYMNASIUM[name])
    env = vectorize(make, COPIES)
    masked = env.spaces["agent_0"].masked
    assert masked == name.startswith("Taxi")
    events, actions = play(env, 300)
    env.close()
    for copy, seed in enumerate(child_seeds(5, COPIES)):
        raw = make()
        assert_same(events[copy, "agent_0"], single(raw, seed, actions[copy, "agent_0"], masked=masked))
        raw.close()
    ended = [event for mine in events.values() for event in mine if event[0] == "outcome" and (event[2] or event[3])]
    assert len(ended) == env.episodes > 0


AEC: dict[str, dict[str, Any]] = {
    "mpe2.simple_spread_v3": {"max_cycles": 12},
    "mpe2.simple_spread_v3 continuous": {"max_cycles": 12, "continuous_actions": True},
    "mpe2.simple_speaker_listener_v4": {"max_cycles": 12},
    "pettingzoo.classic.connect_four_v3": {},
    "pettingzoo.classic.tictactoe_v3": {},
    "pettingzoo.classic.rps_v2": {"max_cycles": 12},
    "pettingzoo.sisl.pursuit_v5": {"max_cycles": 12},
    "pettingzoo.sisl.multiwalker_v9": {"max_cycles": 20},
    "pettingzoo.butterfly.cooperative_pong_v6": {"max_cycles": 12, "render_mode": "rgb_array"},
    "pettingzoo.butterfly.knights_archers_zombies_v11": {"max_cycles": 12},
}
FORMS = [(name, form) for name in AEC for form in ("aec", "parallel") if "classic" not in name or form == "aec"]
QUICK = [case for case in FORMS if case[0] in ("mpe2.simple_spread_v3", "pettingzoo.classic.tictactoe_v3")]


@pytest.mark.parametrize(("name", "form"), long_but(QUICK, FORMS))
def test_pettingzoo(name, form):
    module, options = name.partition(" ")[0], AEC[name]
    need(module)
    kind, function, reference = {
        "aec": ("pettingzoo", "env", aec),
        "parallel": ("pettingzoo-parallel", "parallel_env", parallel),
    }[form]
    env_fn = NamedEnvironment(f"{kind}:{module}", options)
    env = vectorize(env_fn, COPIES)
    masked = {agent: env.spaces[agent].masked for agent in env.agents}
    assert any(masked.values()) == (module.endswith(("connect_four_v3", "tictactoe_v3")))
    events, actions = play(env, 150)
    env.close()
    for copy, seed in enumerate(child_seeds(5, COPIES)):
        raw = getattr(importlib.import_module(module), function)(**options)
        mine = defaultdict(list, {agent: found for (number, agent), found in events.items() if number == copy})
        theirs = reference(raw, seed, defaultdict(list, {a: q for (n, a), q in actions.items() if n == copy}), masked)
        assert mine.keys() <= theirs.keys()
        for agent in mine:
            assert_same(mine[agent], theirs[agent])
        raw.close()
    assert env.episodes > 0


SEED = 3  # whose children for both copies are below 2^31, as Hanabi needs

Rows = dict[Any, list[float]]  # by copy and agent: the rewards of its actions


def evaluated(env_fn: Any, episodes: int, seed: int) -> tuple[list[list[Told]], Rows]:
    """What an evaluation says of each copy's episodes, and the rewards that it told players."""
    rows: Rows = defaultdict(list)
    with closing(vectorize(env_fn, COPIES)) as env:
        players = {agent: loops.ScriptedPlayer("script", script, env.spaces[agent], COPIES) for agent in env.agents}
        for agent, player in players.items():
            player.reward = partial(note, rows, agent)  # type: ignore[method-assign]
        played = loops.play(env, players, COPIES * episodes, seed)
        columns = [{a: of_agent.tolist() for a, of_agent in by.items()} for by in (played.returns, played.lengths)]
    by_copy = [
        [Told(*({a: column[a][i] for a in column} for column in columns), {}) for i in range(at, at + episodes)]
        for at in range(0, COPIES * episodes, episodes)
    ]
    return by_copy, rows


def note(rows: Rows, agent: str, rewards: Any, copies: Any) -> None:
    for copy, reward in zip(copies.tolist(), rewards.tolist(), strict=True):
        rows[copy, agent].append(reward)


def trained(env_fn: Any, episodes: int, seed: int) -> tuple[list[list[Told]], Rows]:
    """What an actor reports of each copy's episodes, and the rewards of its rows by copy and agent."""
    reported: list[Any] = [defaultdict(list) for _ in range(COPIES)]
    rows: Rows = defaultdict(list)

    def report(ended: Any) -> None:
        for copy, *values in zip(ended.copies.tolist(), ended.returns.tolist(), ended.lengths.tolist(), strict=True):
            reported[copy][ended.agent].append(values)

    def held(agent: str, spec: mc.TransitionSpec) -> Any:
        def append(which: Any, *_: Any) -> None:
            note(rows, agent, reward[which], np.arange(COPIES)[which])

        reward = np.zeros(COPIES)
        columns = {"obs": each(lambda field: field.zeros(COPIES), spec.obs), "action": spec.action.zeros(COPIES)}
        writer = SimpleNamespace(new_episode=lambda lanes: None)
        return SimpleNamespace(**columns, reward=reward, extras={}, append=append, writer=writer)

    with closing(vectorize(env_fn, COPIES)) as env:
        policy: Any = SimpleNamespace(reward=lambda *_: None, state_before={}, copies=COPIES)
        weights: Any = SimpleNamespace(version=1, pull_if_due=lambda rounds: None)
        collectors = {}
        for agent, spaces in env.spaces.items():
            player = loops.ScriptedPlayer("script", script, spaces, COPIES)
            spec = mc.TransitionSpec(spaces.obs, spaces.action_field)
            recorder = loops.Recorder(agent, held(agent, spec), spec, np.arange(COPIES))
            collectors[agent] = loops.Collector(loops.ScriptedAtFirst(policy, player, lambda: False), weights, recorder)
        env.reset(seed)
        host: Any = SimpleNamespace(rounds=0, episodes=0, ended=env.ended.copy(), report_ended=report)
        host.begin, host.count_steps, host.report = lambda turn: None, lambda steps: None, lambda *_: None
        while env.ended.min() < episodes:
            loops.act(env, collectors, loops.observe(env, collectors, host), host)
    by_copy = [
        [Told(*({a: told[i][column] for a, told in of_copy.items()} for column in (0, 1)), {}) for i in range(episodes)]
        for of_copy in reported
    ]
    return by_copy, rows


def check_equal(env_fn: Any, loop: Any, episodes: int, seed: int) -> None:
    """Returns and lengths of episodes, in training and evaluation, and rows, are those of a plain loop."""
    plays = trained(env_fn, episodes, seed), evaluated(env_fn, episodes, seed)
    for copy, child in enumerate(child_seeds(seed, COPIES)):
        expected = list(islice(loop(env_fn(), child), episodes))
        for by_copy, rows in plays:
            for one, other in zip(by_copy[copy], expected, strict=True):
                assert {agent: one.lengths[agent] for agent in other.lengths} == other.lengths
                assert one.returns == pytest.approx(other.returns, rel=1e-9, abs=1e-9)
            for agent in {agent for one in expected for agent in one.rows}:
                of_agent = [reward for one in expected for reward in one.rows.get(agent, [])]
                assert rows[copy, agent][: len(of_agent)] == of_agent


def told_of_team(env: Any, seed: int) -> Iterator[Told]:
    """The plain loop's returns, those of "a" and "b" added up."""
    for one in told_at_once(env._env, seed):
        yield Told({"team": one.returns["a"] + one.returns["b"], "c": one.returns["c"]}, {}, {})


ANY = {
    "turns": (Chances, told_by_turns),
    "rounds": (AtOnce, told_at_once),
    "a team": (team.Teams(AtOnce, {"team": ("a", "b")}), told_of_team),
}


@pytest.mark.parametrize(("kind", "games"), long_but([(kind, 5) for kind in ANY], product(ANY, (5, 100))))
def test_any_reward_at_any_time_counts(kind: str, games: int) -> None:
    @given(st.integers(0, 2**32 - 1))
    @settings(max_examples=games)
    def check(seed: int) -> None:
        check_equal(*ANY[kind], 5, seed)

    check()


GAMES = {  # by name: episodes
    "mpe2.simple_tag_v3": 2,
    "pettingzoo.classic.tictactoe_v3": 10,
    "pettingzoo.classic.connect_four_v3": 5,
    "pettingzoo.classic.rps_v2": 2,
    "pettingzoo.classic.chess_v6": 1,
    "pettingzoo.classic.go_v5": 1,
    "pettingzoo.classic.hanabi_v5": 1,  # its resets without a seed do not repeat
    "pettingzoo.classic.leduc_holdem_v4": 300,
    "pettingzoo.classic.texas_holdem_v4": 50,
    "pettingzoo.classic.texas_holdem_no_limit_v6": 50,
    **{f"mpe2.{path.stem}": 3 for path in Path(mpe2.__file__).parent.glob("*_v[0-9].py")},
}


@pytest.mark.filterwarnings("ignore:.*Box (low|high).s precision lowered")  # of the games themselves
@pytest.mark.parametrize("name", long_but([*GAMES][:2], GAMES))
def test_a_games_returns_are_those_of_pettingzoos_loop(name: str) -> None:
    need(name)
    check_equal(NamedEnvironment(f"pettingzoo:{name}"), told_by_turns, GAMES[name], SEED)
