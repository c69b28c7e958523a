"""Real environments: through `vectorize`, each copy is bit for bit what the raw environment gives for its seed."""

import importlib
from collections import defaultdict
from functools import partial
from typing import Any

import gymnasium
import pytest
from random_play import aec, assert_same, child_seeds, parallel, play, single
from tiers import long_but

from marlcore.envs import NamedEnvironment, vectorize

COPIES = 3

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
    env = vectorize(env_fn, 2)
    masked = {agent: env.spaces[agent].masked for agent in env.agents}
    assert any(masked.values()) == (module.endswith(("connect_four_v3", "tictactoe_v3")))
    events, actions = play(env, 150)
    env.close()
    for copy, seed in enumerate(child_seeds(5, 2)):
        raw = getattr(importlib.import_module(module), function)(**options)
        mine = defaultdict(list, {agent: found for (number, agent), found in events.items() if number == copy})
        theirs = reference(raw, seed, defaultdict(list, {a: q for (n, a), q in actions.items() if n == copy}), masked)
        assert mine.keys() <= theirs.keys()
        for agent in mine:
            assert_same(mine[agent], theirs[agent])
        raw.close()
    assert env.episodes > 0
