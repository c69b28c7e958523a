"""VMAS: rows are what VMAS itself gives for the same seed and actions."""

import numpy as np
import pytest
from random_play import play

from marlcore.envs import NamedEnvironment, vectorize
from marlcore.envs.joint import JointObservations
from marlcore.envs.team import Teams

vmas = pytest.importorskip("vmas", reason="needs vmas")

COPIES, ROUNDS = 3, 40


@pytest.mark.parametrize("continuous", [True, False])
def test_a_scenario_is_what_vmas_tells(continuous: bool) -> None:
    options = {"max_steps": 7, "continuous_actions": continuous}
    env = vectorize(NamedEnvironment("vmas:balance", options), COPIES)
    events, actions = play(env, ROUNDS, seed=5)
    raw = vmas.make_env("balance", COPIES, device="cpu", terminated_truncated=True, **options)
    obs, begins, ended = raw.reset(seed=5), [True] * COPIES, 0
    for number in range(ROUNDS):
        for i, agent in enumerate(env.agents):
            for copy in range(COPIES):
                kind, (seen,), fresh = events[copy, agent].pop(0)
                assert (kind, fresh) == ("turn", begins[copy])
                np.testing.assert_array_equal(seen, obs[i][copy])
        if number == ROUNDS - 1:
            break
        acted = [np.array([actions[copy, agent].popleft() for copy in range(COPIES)]) for agent in env.agents]
        obs, rewards, *ends, _ = raw.step([action.reshape(COPIES, -1) for action in acted])
        for i, agent in enumerate(env.agents):
            for copy in range(COPIES):
                terminated = bool(ends[0][copy])
                cut = bool(ends[1][copy]) and not terminated
                *told, final = events[copy, agent].pop(0)
                assert told == ["outcome", float(rewards[i][copy]), terminated, cut]
                if terminated or cut:
                    np.testing.assert_array_equal(final[0], obs[i][copy])
        begins = (ends[0] | ends[1]).tolist()
        for copy in np.flatnonzero(begins).tolist():
            obs, ended = raw.reset_at(copy), ended + 1
    assert not any(events.values())
    assert env.episodes == ended >= 15


@pytest.mark.parametrize("continuous", [True, False])
def test_a_team_has_the_columns_of_vmas(continuous: bool) -> None:
    options = {"max_steps": 7, "continuous_actions": continuous, "n_agents": 4}
    make, names = NamedEnvironment("vmas:balance", options), tuple(f"agent_{i}" for i in range(4))
    env = vectorize(JointObservations(Teams(make, {"team": names}), ("team",)), COPIES)
    events, actions = play(env, ROUNDS, seed=5)
    raw = vmas.make_env("balance", COPIES, device="cpu", terminated_truncated=True, **options)
    obs, begins = raw.reset(seed=5), [True] * COPIES
    for _ in range(ROUNDS - 1):
        for copy in range(COPIES):
            kind, seen, fresh = events[copy, "team"].pop(0)
            assert (kind, fresh) == ("turn", begins[copy])
            assert_seen(seen, obs, copy, alive=1)
        acted = np.array([actions[copy, "team"].popleft() for copy in range(COPIES)])
        obs, rewards, *ends, _ = raw.step([acted[:, i].reshape(COPIES, -1) for i in range(4)])
        for copy in range(COPIES):
            terminated = bool(ends[0][copy])
            cut = bool(ends[1][copy]) and not terminated
            *told, final = events[copy, "team"].pop(0)
            assert told == ["outcome", sum(float(reward[copy]) for reward in rewards), terminated, cut]
            if terminated or cut:
                assert_seen(final, obs, copy, alive=int(cut))
        begins = (ends[0] | ends[1]).tolist()
        for copy in np.flatnonzero(begins).tolist():
            obs = raw.reset_at(copy)
    assert env.episodes >= 15


def assert_seen(parts: list[np.ndarray], obs: list[np.ndarray], copy: int, alive: int) -> None:
    """The joint observation, who acts, and the members' observations are those of VMAS."""
    members = np.stack([np.asarray(of_agent[copy]) for of_agent in obs])
    for part, expected in zip(parts, (np.r_[[alive] * 4, members.ravel()], [alive] * 4, members), strict=True):
        np.testing.assert_array_equal(part, expected)
