"""OpenSpiel's games: each turn is what OpenSpiel says of the same history, and rewards add up to its returns."""

import numpy as np
import pytest

import marlcore as mc
from marlcore.envs import make

pyspiel = pytest.importorskip("pyspiel", reason="needs open_spiel")

GAMES = {
    "kuhn_poker": {},
    "kuhn_poker of three": {"players": 3},
    "leduc_poker": {},
    "tic_tac_toe": {},
    "goofspiel(num_cards=3,imp_info=True)": {},
    "pig(winscore=3)": {},  # a race that the first player may win before the second moves
    "coop_box_pushing": {"horizon": 8},
}


@pytest.mark.parametrize("name", GAMES)
def test_a_game_is_what_openspiel_says_of_its_history(name: str) -> None:
    env = make(f"openspiel:{name.partition(' ')[0]}", **GAMES[name])
    generator = np.random.default_rng(0)
    for seed in range(20):
        env.reset(seed)
        told, seen = dict.fromkeys(env.agents, 0.0), []
        while env.agent is not None:
            obs, reward, terminated, truncated, _ = env.last()
            assert env.observation_spaces[env.agent].contains(obs)
            told[env.agent] += reward
            action = None if terminated else int(generator.choice(np.flatnonzero(obs["action_mask"])))
            seen.append((env.agent, obs, action))
            assert not truncated
            env.step(action)
        state, turns = env.game.new_initial_state(), iter(seen)
        for action in env.state.history():
            if not state.is_chance_node():
                agent, obs, acted = next(turns)
                player = int(agent.removeprefix("player_"))
                complete = env.game.get_type().provides_information_state_tensor
                tensor = state.information_state_tensor(player) if complete else state.observation_tensor(player)
                assert (player, action) == (state.current_player(), acted)
                np.testing.assert_array_equal(obs["observation"].ravel(), tensor)
                np.testing.assert_array_equal(obs["action_mask"], state.legal_actions_mask(player))
            state.apply_action(action)
        assert [(agent, acted) for agent, _, acted in turns] == [(agent, None) for agent in env.agents]
        np.testing.assert_allclose([*told.values()], state.returns())


def test_a_seed_determines_what_chance_draws() -> None:
    def deals(seed: int) -> list[list[int]]:
        env = make("openspiel:leduc_poker")
        env.reset(seed)
        first = env.state.history()
        env.reset()
        return [first, env.state.history()]

    assert deals(3) == deals(3)
    assert len({str(deals(seed)) for seed in range(10)}) > 3


def test_exploitability_takes_openspiels_states() -> None:
    """Uniform play in Kuhn poker has 11 / 24, by the closed form."""
    env = make("openspiel:kuhn_poker")

    def uniform(state: object) -> dict[int, float]:
        mask = env.seen(state, state.current_player())["action_mask"]
        return {int(action): 1 / mask.sum() for action in np.flatnonzero(mask)}

    assert mc.exploitability(env.game.new_initial_state(), uniform) == pytest.approx(11 / 24)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kuhn_pokr", "did you mean kuhn_poker"),
        ("mfg_crowd_modelling", "whose states have tensors"),
        ("kuhn_poker(foo=1)", "expected parameters that the game of OpenSpiel takes"),
    ],
)
def test_other_games_are_refused(name: str, expected: str) -> None:
    with pytest.raises(ValueError, match=f"^environment: .*{expected}"):
        make(f"openspiel:{name}")
