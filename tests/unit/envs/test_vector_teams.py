"""Teams and joint observations of vector environments: what single copies give, for the same seeds and actions."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from chances import Chances
from crowd import Rounds
from gymnasium import spaces as gym
from random_play import rows, sample
from refused import Refused, refusals
from spread import AGENTS, SingleSpread, Spread, Spreads
from tiers import long_but

from marlcore import EnvironmentFailed
from marlcore.envs import adapt, vectorize
from marlcore.envs.at_once import flat
from marlcore.envs.copies import Copies
from marlcore.envs.joint import JointObservations
from marlcore.envs.joint_vector import JointVector
from marlcore.envs.members import Team
from marlcore.envs.team import Teams
from marlcore.envs.team_vector import TeamVector
from marlcore.observations import ALONE
from marlcore.spaces import MASK, Spaces
from marlcore.testing import check_env

COPIES, ROUNDS = 3, 60
TWO, CHOICE = gym.Box(-99, 999, (2,), np.float32), gym.Discrete(3)
FOUND = gym.Dict({
    "place": gym.Discrete(3, start=1),
    "bits": gym.MultiBinary(2),
    "keys": gym.MultiDiscrete([2, 3]),
    "speed": gym.Box(0, 99, (1, 2), np.float64),
})  # fmt: skip
MASKED = gym.Dict({ALONE: TWO, MASK: gym.MultiBinary(3)})


class Party(Rounds):
    """Guests of different spaces come late, end alone or together, or leave without an end."""

    SPACES = {"a": (TWO, CHOICE), "b": (MASKED, CHOICE), "c": (FOUND, gym.Discrete(2, start=-1)), "d": (TWO, CHOICE)}  # noqa: RUF012
    possible_agents: Any = tuple(SPACES)

    def observation_space(self, agent: str) -> Any:
        return self.SPACES[agent][0]

    def action_space(self, agent: str) -> Any:
        return self.SPACES[agent][1]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.rng = np.random.default_rng(seed) if seed is not None else self.rng
        self.agents = [agent for agent in self.possible_agents if self.rng.random() < 0.7] or ["b"]
        self.waiting = {*self.possible_agents} - {*self.agents}
        return self._look(self.agents), self._infos(self.agents)

    def _look(self, agents: Any) -> Any:
        seen = {}
        for agent in agents:
            numbers = self.rng.integers(0, 99, 2).astype(np.float32)
            mask = np.array([1, *self.rng.integers(0, 2, 2)], np.int8)
            place, bits, keys = self.rng.integers(1, 4), self.rng.integers(0, 2, 2, np.int8), self.rng.integers([2, 3])
            found = {"place": place, "bits": bits, "keys": keys, "speed": np.float64([numbers])}
            seen[agent] = {"b": {ALONE: numbers, MASK: mask}, "c": found}.get(agent, numbers)
        return seen

    def _infos(self, agents: Any) -> Any:
        return {agent: {"tag": agent, "number": float(self.rng.random())} for agent in agents}

    def step(self, actions: Any) -> Any:
        acted = [agent for agent in self.possible_agents if agent in actions]
        ends = [{agent: bool(self.rng.random() < 0.1) for agent in acted} for _ in range(2)]
        over = {agent for agent in acted if ends[0][agent] or ends[1][agent]}
        left = {agent for agent in acted if agent not in over and self.rng.random() < 0.05}
        new = {agent for agent in sorted(self.waiting) if self.rng.random() < 0.3 and not left}
        self.waiting -= new
        told = [agent for agent in self.possible_agents if agent in {*acted, *new} - left]
        self.agents = [agent for agent in told if agent not in over]
        rewards = {agent: float(self.rng.normal()) + int(actions[agent]) for agent in acted if agent in told}
        return self._look(told), rewards, *ends, self._infos(told)


def told(outcomes: Any, turns: Any) -> Any:
    """All meaningful values of one `observe`, by agent and copy."""
    found = []
    for outcome in outcomes:
        assert outcome.acted
        infos = dict(outcome.infos)
        for row, copy in enumerate(outcome.copies.tolist()):
            ends = bool(outcome.terminated[row]), bool(outcome.truncated[row])
            final = rows(outcome.final_obs, row) if any(ends) else None
            earned = np.array(outcome.member_rewards[row], float) if len(outcome.member_rewards) else None
            found.append((outcome.agent, copy, float(outcome.reward[row]), *ends, final, infos.get(copy), earned))
    for turn in turns:
        assert turn.copies.dtype == np.int64
        for row, copy in enumerate(turn.copies.tolist()):
            tag = turn.tags.get(copy) if turn.begins[row] else None
            found.append((turn.agent, copy, bool(turn.begins[row]), rows(turn.obs, row), tag))
    return found


def assert_alike(one: Any, other: Any, seed: int = 0) -> None:
    """Both play the same random actions, and say the same, in the same dtypes."""
    assert one.agents == other.agents and one.spaces == other.spaces
    rng, said = np.random.default_rng(seed), 0
    for env in (one, other):
        env.reset(seed)
    for _ in range(ROUNDS):
        seen, expected = one.observe(), other.observe()
        for event, wanted in zip(told(*seen), told(*expected), strict=True):
            for value, right in zip(event, wanted, strict=True):
                np.testing.assert_equal(value, right)
                for array, like in zip(value, right, strict=True) if isinstance(right, list) else ():
                    assert array.dtype == like.dtype
            said += 1
        for turn, same in zip(seen[1], expected[1], strict=True):
            action = sample(one.spaces[turn.agent], turn.obs, rng)
            one.act(turn, action)
            other.act(same, action)
    assert one.episodes == other.episodes > 0 and said > ROUNDS
    np.testing.assert_array_equal(one.ended, other.ended)


PARTIES = {
    "one team": {"team": ("a", "b", "c", "d")},
    "beside an agent": {"pair": ("a", "d"), "other": ("b",)},
    "unlike members": {"mixed": ("d", "c"), "rest": ("b", "a")},
}


@pytest.mark.parametrize(
    ("teams", "seed"), long_but([(name, 0) for name in PARTIES], [(n, s) for n in PARTIES for s in range(20)])
)
def test_members_that_come_and_go_are_joined_as_in_single_copies(teams: str, seed: int) -> None:
    single = JointObservations(Teams(Party, PARTIES[teams]), tuple(PARTIES[teams]))
    columns = TeamVector(Copies([Party() for _ in range(COPIES)]), PARTIES[teams])
    assert_alike(JointVector(columns, tuple(PARTIES[teams])), vectorize(single, COPIES), seed)


@pytest.mark.parametrize("options", [{}, {"moves": True}, {"stated": True}], ids=str)
@pytest.mark.parametrize("teams", [{}, {"team": AGENTS}, {"pair": AGENTS[:2]}], ids=["none", "all", "a pair"])
def test_an_environment_computes_its_copies_together(options: Any, teams: Any) -> None:
    joint = tuple(teams) or AGENTS
    vectors = [
        vectorize(JointObservations(Teams(partial(kind, **options), teams), joint), COPIES)
        for kind in (Spread, SingleSpread)
    ]
    assert isinstance(vectors[0], JointVector) and not isinstance(vectors[1], JointVector)
    assert_alike(*vectors)


def test_the_comparison_sees_exchanged_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: columns that give each member the action of another."""
    act, teams = TeamVector.act, {"team": AGENTS}
    monkeypatch.setattr(TeamVector, "act", lambda env, turn, action: act(env, turn, action[:, ::-1]))
    with pytest.raises(AssertionError):
        assert_alike(*(vectorize(Teams(kind, teams), COPIES) for kind in (Spread, SingleSpread)))


def test_joined_copies_keep_the_interface_of_an_environment() -> None:
    teams = Teams(partial(Spread, stated=True), {"pair": AGENTS[1:]})
    check_env(lambda: vectorize(JointObservations(teams, ("pair", "agent_0")), COPIES), steps=100)


def test_observations_are_flattened_as_gymnasium_flattens_one() -> None:
    FOUND.seed(1)
    spaces, seen = Spaces(FOUND, CHOICE), [FOUND.sample() for _ in range(20)]
    arrays = {part.name: np.stack([part.of(each) for each in seen]) for part in spaces.parts}
    np.testing.assert_array_equal(flat(spaces, arrays), [gym.flatten(FOUND, each) for each in seen])


def test_an_environment_without_such_agents_is_closed() -> None:
    """The caller cannot close what `vectorized` made."""
    closed = []

    class Own(Spread):
        def close(self) -> None:
            closed.append(self)

        def vectorized(self, copies: int) -> Any:
            vector = super().vectorized(copies)
            vector.close = partial(closed.append, vector)
            return vector

    with pytest.raises(EnvironmentFailed, match="teams: expected agents among"):
        vectorize(Teams(Own, {"team": ("agent_9",)}), 2)
    assert len(closed) == 1


def in_turns(join: Any) -> None:
    vector = join(Copies([adapt(Chances()) for _ in range(COPIES)]))
    vector.reset(0)
    for _ in range(ROUNDS):
        for turn in vector.observe()[1]:
            field = vector.spaces[turn.agent].action_field
            vector.act(turn, field.zeros(len(turn.copies)))


def late_turns() -> None:
    """Outcomes come in one call of `observe`, and the turns after them in the next one."""
    vector = Spread().vectorized(COPIES)
    observe, held = vector.observe, []

    def apart() -> Any:
        if held:
            return [], held.pop()
        outcomes, turns = observe()
        if not outcomes:
            return outcomes, turns
        held.append(turns)
        return outcomes, []

    vector.observe = apart
    joint = JointVector(vector, AGENTS)
    joint.reset(0)
    for _ in range(3):
        for turn in joint.observe()[1]:
            joint.act(turn, np.zeros(COPIES, np.int64))


def other_arrays(agent: str, **changes: Any) -> None:
    """The first observation, or the first outcome, of an environment whose agent tells something else."""
    vector = Spread().vectorized(COPIES)
    observe = vector.observe

    def changed() -> Any:
        outcomes, turns = observe()
        of_turns = {"obs": changes["obs"]} if "obs" in changes else {}
        of_outcomes = {"reward": changes["reward"]} if "reward" in changes else {}
        return (
            [outcome._replace(**of_outcomes) if outcome.agent == agent else outcome for outcome in outcomes],
            [turn._replace(**of_turns) if turn.agent == agent else turn for turn in turns],
        )

    vector.observe = changed
    teams = TeamVector(vector, {"team": AGENTS})
    teams.reset(0)
    for _ in range(2):
        (turn,) = teams.observe()[1]
        teams.act(turn, np.zeros((COPIES, 3), np.int64))


def wrong_action() -> None:
    teams = TeamVector(Spread().vectorized(COPIES), {"team": AGENTS})
    teams.reset(0)
    (turn,) = teams.observe()[1]
    teams.act(turn, np.zeros((COPIES, 2), np.int64))


def another_state() -> None:
    vector = Spread(stated=True).vectorized(COPIES)
    joint = JointVector(vector, AGENTS)
    joint.reset(0)
    vector.states = lambda: (np.zeros((COPIES, 5)),) * 2
    joint.observe()


class Stateless(Spreads):
    states = property()  # type: ignore[assignment]


ODD = {"a": Spaces(TWO, CHOICE), "b": Spaces(TWO, gym.Box(-1, 1, (1,)))}
APART = "expected agents that act simultaneously, got agents that act one after another"
REFUSED: dict[str, Refused] = {
    "turns": (partial(in_turns, partial(TeamVector, teams={"team": ("a", "b", "c")})), EnvironmentFailed, APART),
    "turns of agents": (partial(in_turns, partial(JointVector, agents=("a",))), EnvironmentFailed, APART),
    "late turns": (late_turns, EnvironmentFailed, APART),
    "nobody": (
        lambda: TeamVector(Spread().vectorized(1), {"team": ("agent_7",)}),
        "teams: expected agents among ['agent_0', 'agent_1', 'agent_2'], got 'agent_7'",
    ),
    "mixed actions": (lambda: Team("red", ODD), "team red: expected only Discrete actions, or only Boxes of floats"),
    "ragged": (
        lambda: other_arrays("agent_1", obs=np.zeros((COPIES, 4), np.float32)), EnvironmentFailed,
        "team: obs of agent_1: expected float32 (3, 14), got shape (3, 4)",
    ),
    "another's rewards": (
        lambda: other_arrays("agent_2", reward=np.zeros(2)), EnvironmentFailed,
        "team: reward of agent_2: expected float64 (3,), got shape (2,)",
    ),
    "no states": (
        lambda: JointVector(Stateless(SingleSpread(stated=True), COPIES), AGENTS),
        "states: expected a method that returns all copies' states, got none in",
    ),
    "another state": (another_state, EnvironmentFailed, "states(): expected float32 (3, 12), got shape (3, 5)"),
    "an action of two": (wrong_action, "action: expected int64 (3, 3), got shape (3, 2)"),
}  # fmt: skip
test_it_is_refused_in_one_line = refusals(REFUSED)
