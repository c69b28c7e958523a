"""`check_env` passes environments that keep the interface, and names each violation in one line."""

from functools import partial
from itertools import count
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from chances import Masked, OneShot
from crowd import Relay
from gymnasium import spaces as gym
from gymnasium.vector import SyncVectorEnv
from odd_spaces import VARIANTS, Counting
from pettingzoo.utils import parallel_to_aec
from puck import two_player_puck
from random_play import play
from refused import check_refused, each_bad, refusals
from rooms import WRONG, Room

from marlcore.envs import NamedEnvironment, ParallelEnvironment, Recall, TreasureHunt, vectorize
from marlcore.errors import EnvironmentFailed
from marlcore.testing import check_env, checked


class Returning(Relay):
    """A relay in which "a" is back a round after its end."""

    def step(self, actions):
        told = super().step(actions)
        if self.seen[0] == 4:
            self.agents.append("a")
            for by_agent, value in zip(told, (self.seen, 0.0, False, False, {}), strict=True):
                by_agent["a"] = value
        return told


FINE: dict[str, Any] = {
    "room": Room,
    "treasure hunt": lambda: TreasureHunt(horizon=9),
    "treasure hunts": lambda: TreasureHunt(horizon=9).vectorized(3),
    "checked": checked.CheckedEnvironment,
    "by name": NamedEnvironment("gymnasium:CartPole-v1"),
    "acrobot": lambda: gymnasium.make("Acrobot-v1", max_episode_steps=20),
    **{name: partial(Counting, **options) for name, options in VARIANTS.items()},
    "half a box": lambda: Counting(action=gym.Box(-np.inf, np.float32([1, np.inf]), (2,))),
    "relay": Relay,
    "returning": Returning,
    "relay in turns": lambda: parallel_to_aec(Relay()),
    "relay of an adapter": lambda: ParallelEnvironment(Relay()),
    "recall": lambda: Recall(3, 4),
    "recalls": lambda: Recall(3, 4).vectorized(2),
    "puck": two_player_puck,
    "puck of numbers": lambda: two_player_puck(discrete=False),
    "vector": lambda: SyncVectorEnv([Counting] * 3),
    "vector, same step": lambda: SyncVectorEnv([Counting] * 3, autoreset_mode="SameStep"),
    "copies": lambda: vectorize(lambda: parallel_to_aec(Relay()), 2),
    "parallel copies": lambda: vectorize(Relay, 2),
    "masked copies": lambda: vectorize(lambda: Counting(action=gym.MultiDiscrete([3, 2]), mask_in="info"), 2),
}


@pytest.mark.parametrize("name", FINE)
def test_a_right_environment_passes(name):
    assert check_env(FINE[name], steps=50) is None
    assert check_env(FINE[name](), steps=50) is None


@pytest.mark.parametrize("first", Masked.HOLDS)
@pytest.mark.parametrize("second", Masked.HOLDS)
def test_masks_of_infos_are_needed_where_an_agent_acts(first, second):
    """If the first turn has no mask, no later turn may have one. A run and a check agree."""
    make = partial(Masked, a=first, b=second)
    if "late" in (first, second) or (first, second) == ("never", "acting"):
        for call in (lambda: check_env(make, steps=30), lambda: play(vectorize(make, 2), 20)):
            check_refused(call, EnvironmentFailed, ": action_mask: expected a mask in every info or in none, got ")
        return
    check_env(make, steps=30)
    events, _ = play(env := vectorize(make, 2), 40)
    masked = [first != "never", second != "never" or first != "never"]
    assert env.episodes > 4 and [spaces.masked for spaces in env.spaces.values()] == masked
    for agent, when in {"a": first, "b": second}.items():
        masks = [event[1][-1].tolist() for event in events[0, agent] if event[0] == "turn" and len(event[1]) == 2]
        assert all(sum(mask) == (3 if when == "never" else 2) for mask in masks)


@pytest.mark.parametrize("value", [np.array([2.0]), np.array([[2.0]]), np.array(2.0), torch.tensor([2.0])])
def test_an_array_of_one_number_is_a_reward(value):
    make = partial(Room, "reward", value)
    check_env(make, steps=20)
    check_env(lambda: Room("terminated", np.array([False])), steps=20)
    events, _ = play(vectorize(make, 1), 10)
    assert 2.0 in [event[1] for event in events[0, "b"] if event[0] == "outcome"]


class Stated(Relay):
    state_space = gym.Box(0, 1, (3,), np.float32)

    def state(self):
        return np.zeros(2, np.float32)


def test_a_state_of_another_shape_is_named():
    check_refused(lambda: check_env(Stated), EnvironmentFailed, "state(): expected float32 (3,), got shape (2,)")


test_a_violation_is_named_in_one_line = refusals(
    {
        case: (partial(check_env, partial(Room, field, value), steps=100), EnvironmentFailed, says)
        for case, (field, value, _, says) in WRONG.items()
        if says
    }
)


class Rigid(Room):
    """Its seed is that of its making, as some environments' are."""

    numbers = count()

    def __init__(self):
        super().__init__()
        self.made = next(self.numbers)

    def reset(self, seed=None):
        super().reset(seed if seed is None else seed + self.made)


def test_another_environment_with_the_same_seed_should_repeat():
    check_env(Rigid(), steps=100)
    with pytest.warns(UserWarning, match=r"^reset: expected another environment, reset with the same seed"):
        check_env(Rigid, steps=100)


def test_a_reset_that_does_not_repeat_is_a_warning_with_its_cost():
    """Some games alternate who begins, whatever the seed; they can be trained on."""
    says = r"^reset: expected the same environment, .* to repeat event 0, a: array\(.*, got .*; training works, but"
    with pytest.warns(UserWarning, match=says) as warned:
        check_env(lambda: Room("seed"), steps=100)
    assert len(warned) == 1 and "\n" not in str(warned[0].message)


def test_episodes_that_never_end_are_a_warning():
    """An end after the turns that are compared counts, too."""
    pendulum = "Pendulum-v1"  # a wrapper alone ends its episodes
    for steps, limit in ((20, 20 * 10 - 1), (20, 19)):
        check_env(lambda limit=limit: gymnasium.make(pendulum, max_episode_steps=limit), steps)
    endless = partial(gymnasium.make, pendulum, max_episode_steps=-1)
    for env_fn in (endless, lambda: SyncVectorEnv([endless] * 2), lambda: vectorize(endless, 2)):
        with pytest.warns(UserWarning, match=r"^episodes: expected an end, got none in 200 turns; endless episodes"):
            check_env(env_fn, 20)


def test_what_a_check_made_is_closed_whatever_it_finds():
    closed = []

    class Closing(Room):
        def close(self):
            closed.append(self)

    with pytest.raises(EnvironmentFailed):
        check_env(lambda: Closing("room", 3), steps=100)
    assert len(closed) == 1
    check_env(Closing, steps=100)
    assert len(closed) == 3
    check_env(Closing(), steps=100)
    assert len(closed) == 3, "the caller closes what the caller made"


def test_a_space_or_kind_that_is_not_supported_is_refused():
    room = Room()
    room.action_spaces["a"] = gym.Text(3)
    check_refused(lambda: check_env(room), ValueError, "a: action space: expected a Box, Discrete, MultiBinary")
    says = "env_fn: expected a marlcore, PettingZoo or Gymnasium environment, got 5"
    check_refused(lambda: check_env(lambda: 5), TypeError, says)
    says = "env_or_fn: expected an environment, or a function that makes one, got 5"
    check_refused(lambda: check_env(5), TypeError, says)


test_what_would_check_nothing_is_refused = refusals(
    each_bad(partial(check_env, Room), "an integer of at least 1", steps=[0, -5, "a"])
)


class Rooms:
    """A right VectorEnvironment, whose outcomes, turns or counts a test breaks from the fourth round on."""

    def __init__(self, part, change):
        self.inner = TreasureHunt(horizon=4, agents=2).vectorized(3) if part != "bits" else vectorize(Counting, 2)
        self.part, self.change = part, change
        self.round = 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    @property
    def ended(self):
        return self.inner.ended + (self.change(self.round) if self.part == "ended" else 0)

    def reset(self, seed):
        self.inner.reset(seed)
        self.round = 0

    def observe(self):
        outcomes, turns = self.inner.observe()
        self.round += 1
        if (self.round < 4 and self.part != "first turn") or self.part == "ended":
            return outcomes, turns
        if self.part == "round":
            return self.change(outcomes, turns)
        if self.part == "outcome":
            return [outcome._replace(**self.change) for outcome in outcomes], turns
        return outcomes, [turn._replace(**self.change(turn)) for turn in turns]


HALF = {"truncated": np.ones(3, bool), "final_obs": None}
TURNS: dict[str, tuple[Any, str]] = {  # by case: what is wrong in a turn, and what is said of it
    "copies": (lambda turn: {"copies": np.array([0, 2, 1])}, "copies: expected ascending numbers below 3, got array(["),
    "rows": (lambda turn: {"obs": turn.obs[:2]}, "obs: expected float32 (3, 5, 5, 5), got array"),
    "kind": (lambda turn: {"obs": turn.obs.astype(np.float64)}, "obs: expected float32 (3, 5, 5, 5), got array"),
    "infinite": (lambda turn: {"obs": np.full_like(turn.obs, np.inf)}, "obs: expected finite numbers, got inf in"),
    "fields": (lambda turn: {"obs": {"place": turn.obs}}, "obs: expected the fields ['observation'], got ['place']"),
}
OUTCOMES: dict[str, tuple[Any, str]] = {  # the same of an outcome
    "reward": ({"reward": np.full(3, np.inf)}, "reward: expected finite numbers of float32, got [inf"),
    "ends": ({"truncated": np.zeros(3)}, "truncated: expected bools (3,), got array([0., 0., 0.])"),
    "small ends": ({"truncated": np.zeros(3, np.int8)}, "truncated: expected bools (3,), got array([0, 0, 0], dtype="),
    "final": (HALF, "final_obs: expected observations, since an episode ended, got None"),
}
BITS, NEVER = {"doors": np.full((2, 3), 2, np.int8)}, np.zeros(3, bool)
SEVERAL: dict[str, tuple[str, Any, str]] = {  # by case: the part that is wrong, how, and what is said
    **{case: ("turn", change, f"turn of agent_1: {says}") for case, (change, says) in TURNS.items()},
    **{case: ("outcome", change, f"outcome of agent_1: {says}") for case, (change, says) in OUTCOMES.items()},
    "ended": ("ended", lambda number: min(number, 1), "ended: expected a sum of 0, as in `episodes`, got [1 1 1]"),
    "ended before": ("ended", lambda number: 1, "ended: expected zeros after a reset, got [1 1 1]"),
    "kind of ended": ("ended", lambda number: 0.0, "ended: expected integers (3,), got array([0., 0., 0.])"),
    "no turn": ("round", lambda outcomes, turns: (outcomes, []), "observe: expected at least one turn, got none"),
    "lost": ("round", lambda told, turns: ([], turns), "copy 0: expected an outcome of its last action before"),
    "two": ("round", lambda told, turns: (told * 2, turns), "copy 0: expected no outcome, since the agent has not act"),
    "agent": ("turn", lambda turn: {"agent": "z"}, "turn of z: expected an agent of ('agent_0', 'agent_1')"),
    "bits": ("bits", lambda turn: {"obs": turn.obs | BITS}, "obs['doors']: expected MultiBinary(3), got 2"),
    "begins": ("first turn", lambda turn: {"begins": NEVER}, "copy 0: expected begins to be True in an ep"),
}
test_a_violation_of_several_copies_is_named_in_one_line = refusals(
    {
        case: (partial(check_env, partial(Rooms, part, change), steps=100), EnvironmentFailed, says)
        for case, (part, change, says) in SEVERAL.items()
    }
)


class Unset(Rooms):
    """The final observations of those copies whose `ended` is, or is not, `where` are not set."""

    def __init__(self, where: bool) -> None:
        super().__init__("bits", None)
        self.where = where

    def observe(self) -> Any:
        outcomes, turns = self.inner.observe()
        return [outcome if outcome.final_obs is None else self._unset(outcome) for outcome in outcomes], turns

    def _unset(self, outcome: Any) -> Any:
        rows = (outcome.terminated | outcome.truncated) == self.where
        final = {name: array.copy() for name, array in outcome.final_obs.items()}
        for array in final.values():
            array[rows] = np.nan if array.dtype.kind == "f" else 99
        return outcome._replace(final_obs=final)


def test_only_the_final_observations_of_ended_copies_are_looked_at() -> None:
    check_env(lambda: Unset(where=False))
    check_refused(lambda: check_env(lambda: Unset(where=True)), EnvironmentFailed, "final_obs[")


def test_a_mask_at_an_end_may_forbid_all_actions_but_has_their_number() -> None:
    class Longer(Counting):
        def look(self) -> Any:
            seen, _ = super().look()
            return seen, {"action_mask": np.append(self.mask, 0) if self.steps == self.length else self.mask.copy()}

    check_env(lambda: Counting(mask_in="info"))
    says = "action_mask: expected bool (5,)"
    check_refused(lambda: check_env(lambda: Longer(mask_in="info")), EnvironmentFailed, says)


class OutAtOnce(OneShot):
    """Its first agent is out before anybody acts."""

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed)
        self.agent_selection, self.terminations["a"] = "b", True
        self._deads_step_first()

    def play(self, me: str, action: Any) -> None:
        self.terminations = dict.fromkeys(self.agents, True)


def test_an_agent_may_be_out_before_anybody_acts() -> None:
    check_env(OutAtOnce)
