"""The treasure hunt and the test of memory: their rules, and their vector forms beside plain copies."""

import numpy as np
import pytest
from random_play import assert_same, play, record
from refused import Refused, refusals
from tiers import long_but

from marlcore.envs import Copies, Recall, TreasureHunt, adapt, lockstep, make, recall, treasure_hunt, vectorize


def board(env, size):
    """The planes of agents, gems, food and bones inside the walls, and where the agent is that acts.

    For environments whose `view` is their `size`, so that each observation shows everything.
    """
    walls, *planes = env.last()[0]
    inside = np.argwhere(walls == 0)
    (top, left), (bottom, right) = inside.min(axis=0), inside.max(axis=0)
    assert bottom - top == right - left == size - 1
    assert (walls[top : bottom + 1, left : right + 1] == 0).all()
    return np.array(planes)[:, top : bottom + 1, left : right + 1], (size - top, size - left)


def moved(planes, place, action):
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
def test_agents_act_one_after_another(agents, size, items):
    """On the board that the previous one left. Walls and agents block the way; rewards come at the own next turn."""
    env = TreasureHunt(agents, size, size, 40, gems=items, food=items, bones=items, respawn=0.0)
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
            _, reward, _, truncated, _ = env.last()
            assert reward == earned[agent]
            if truncated:
                env.step(None)
                continue
            action = int(rng.integers(4))
            expected_planes, places[agent], earned[agent] = moved(planes, place, action)
            blocked += places[agent] == place
            env.step(action)
    assert blocked > 0


def test_entities_come_back_before_any_agent_acts():
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


def test_a_collected_entity_returns_with_its_probability():
    env = TreasureHunt(agents=1, size=3, view=3, horizon=1500, gems=4, food=0, bones=0, respawn=0.3)
    rng, missing, returned = np.random.default_rng(3), 0, 0
    env.reset(3)
    for _ in range(1499):
        planes, place = board(env, 3)
        action = int(rng.integers(4))
        left = moved(planes, place, action)[0][1].sum()
        env.step(action)
        missing += 4 - left
        returned += board(env, 3)[0][1].sum() - left
    assert missing > 700 and abs(returned / missing - 0.3) < 5 * np.sqrt(0.3 * 0.7 / missing)


def test_the_time_limit_truncates_after_the_last_action():
    turns = record(TreasureHunt(agents=3, horizon=12), episodes=1)
    assert [turn.agent for turn in turns] == ["agent_0", "agent_1", "agent_2"] * 13
    assert [turn.truncated for turn in turns] == [False] * 36 + [True] * 3
    assert not any(turn.terminated for turn in turns)


COUNT = "expected an integer of at least"
REFUSED: dict[str, Refused] = {
    f"{world} {name}": (lambda name=name, value=value, world=world: make(world, **{name: value}), f"{name}: {says}")
    for world, name, value, says in [
        ("treasure_hunt", "agents", 0, f"{COUNT} 1, got 0"),
        ("treasure_hunt", "horizon", 0, f"{COUNT} 1, got 0"),
        ("treasure_hunt", "bones", -1, f"{COUNT} 0, got -1"),
        ("treasure_hunt", "respawn", 1.5, "expected a number from 0 to 1, got 1.5"),
        ("treasure_hunt", "size", 3, "expected more than 19 cells, got 3x3"),
        ("recall", "cues", 1, f"{COUNT} 2, got 1"),
        ("recall", "delay", 0, f"{COUNT} 1, got 0"),
    ]
}
test_refuses = refusals(REFUSED)


CROWDED = {"agents": 6, "size": 4, "view": 3, "gems": 3, "food": 3, "bones": 3, "horizon": 15, "respawn": 0.9}
WORLDS = [
    (TreasureHunt, {"horizon": 40}),
    (TreasureHunt, {"agents": 1, "horizon": 7}),
    (TreasureHunt, CROWDED),
    (TreasureHunt, {"agents": 2, "size": 2, "gems": 1, "food": 0, "bones": 0, "respawn": 1.0, "horizon": 60}),
    (TreasureHunt, {"agents": 2, "gems": 0, "food": 0, "bones": 0, "horizon": 60}),
    (Recall, {"cues": 3, "delay": 4}),
]


@pytest.mark.parametrize("copies", long_but([3], [1, 3]))
@pytest.mark.parametrize(("kind", "options"), long_but([WORLDS[2], WORLDS[-1]], WORLDS))
def test_the_vector_form_is_what_plain_copies_give(kind, options, copies):
    ours = vectorize(lambda: kind(**options), copies)
    theirs = Copies([adapt(kind(**options)) for _ in range(copies)])
    assert isinstance(ours, (treasure_hunt.TreasureHunts, recall.Recalls))
    assert ours.agents == theirs.agents
    assert ours.spaces == theirs.spaces
    for seed in (1, 2):
        together, alone = play(ours, 200, seed)[0], play(theirs, 200, seed)[0]
        assert together.keys() == alone.keys()
        for key in alone:
            assert_same(together[key], alone[key])
        assert ours.episodes == theirs.episodes > 0


@pytest.mark.parametrize(("cues", "delay"), [(2, 1), (4, 20)])
def test_only_the_last_action_counts_and_must_name_the_cue(cues, delay):
    env, rng, shown = Recall(cues, delay), np.random.default_rng(0), set()
    for episode in range(60):
        obs, _ = env.reset(seed=7 if episode == 0 else None)
        cue = int(obs.argmax())
        shown.add(cue)
        assert obs.tolist() == np.eye(cues + 1)[cue].tolist() and cue < cues
        for step in range(1, delay + 1):
            obs, reward, terminated, truncated, _ = env.step(np.int64(rng.integers(cues)))
            assert (reward, terminated, truncated) == (0.0, False, False)
            assert obs.tolist() == [0.0] * cues + [float(step == delay)]
        answer = int(rng.integers(cues))
        _, reward, terminated, _, _ = env.step(np.int64(answer))
        assert terminated and reward == float(answer == cue)
    assert shown == set(range(cues))


def test_what_was_observed_stays_until_the_next():
    env = TreasureHunt(agents=1, size=3, gems=7, food=0, bones=0, respawn=1.0, horizon=50).vectorized(3)
    rng = np.random.default_rng(0)
    env.reset(0)
    for _ in range(40):
        outcomes, [turn] = env.observe()
        before = [turn.obs.copy(), *(outcome.reward.copy() for outcome in outcomes)]
        env.act(turn, rng.integers(4, size=3))
        for kept, now in zip(before, [turn.obs, *(outcome.reward for outcome in outcomes)], strict=True):
            np.testing.assert_array_equal(now, kept)


@pytest.mark.parametrize("action", [np.zeros(2, np.int64), np.array([0, 4, 0]), np.array([-1, 0, 0]), np.zeros(3)])
def test_the_vector_form_refuses_other_actions(action):
    env = TreasureHunt().vectorized(3)
    env.reset(0)
    _, [turn] = env.observe()
    with pytest.raises(ValueError, match=r"^action: expected 3 integers from 0 to 3, got array\("):
        env.act(turn, action)


def test_draws_are_splitmix64():
    """Beside the first numbers of the reference implementation for the seed 1234567."""
    reference = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    draws = lockstep.Draws([0])
    draws.keys[:] = 1234567
    assert draws.peek([0] * 4, np.arange(1, 5)).tolist() == [(number >> 11) * 2.0**-53 for number in reference]
    assert [draws.take()[0] for _ in range(5)][1:] == draws.peek([0] * 4, np.arange(-4, 0)).tolist()


def test_draws_are_uniform_and_seeds_apart():
    sequences = lockstep.Draws(range(200))
    draws = np.array([sequences.take() for _ in range(200)])
    assert len(np.unique(draws)) == draws.size
    counts = np.histogram(draws, bins=20, range=(0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 45  # chi-squared, 19 degrees of freedom: p < 0.001
    correlation = np.corrcoef(draws.T)
    assert np.abs(correlation - np.eye(200)).max() < 0.36
