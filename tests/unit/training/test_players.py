"""Players refuse observations, actions and states that are not of their spaces; what scripts see and may return."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym
from refused import check_refused

import marlcore as mc
from marlcore.interfaces import Turn
from marlcore.training.evaluation import LoadedPolicy
from marlcore.training.loops import ActingModel, PolicyPlayer, ScriptedPlayer, Seat

BOX = gym.Box(-1, 1, (2,), np.float32)
PLAIN = mc.Spaces(BOX, gym.Discrete(3))
MASKED = mc.Spaces(gym.Dict(noise=BOX, target=gym.Discrete(4)), gym.Discrete(3), masked=True)
NOISE, MASK = np.zeros(2, np.float32), np.array([False, True, False])


def loaded(spaces: mc.Spaces) -> LoadedPolicy:
    """A policy whose action is 1 whatever it sees."""
    algorithm: Any = SimpleNamespace(act=lambda *_, **__: mc.Action(np.array([1])))
    return LoadedPolicy(algorithm, ActingModel(torch.nn.Identity(), None), spaces, "repeat", {})


def player_of(spaces: mc.Spaces, action: Any) -> PolicyPlayer:
    """A player of two copies whose policy always chooses these actions."""
    policy: Any = SimpleNamespace(act=lambda obs, at, state: mc.Action(np.array(action)[at]))
    return PolicyPlayer(policy, spaces, 2, "repeat")


@pytest.mark.parametrize(
    ("space", "bad"),
    [
        (gym.Discrete(3, start=1), 3),
        (gym.Discrete(3), -1),
        (gym.MultiDiscrete([3, 2]), [0, 2]),
        (gym.MultiBinary(2), [0, 2]),
        (gym.Box(-1, 1, (2,)), [0, 1.5]),
    ],
)
def test_an_action_outside_its_space_is_refused(space: gym.Space, bad: Any) -> None:
    actions = np.array([np.zeros_like(bad), bad], space.dtype)
    got = actions[1] + getattr(space, "start", 0)
    says = f"action of the algorithm: expected one of {space}, got {got.tolist()}"
    choose = player_of(mc.Spaces(gym.Box(-1, 1, (1,)), space), actions).choose
    check_refused(lambda: choose(np.zeros((2, 1), np.float32), slice(None), np.ones(2, bool)), ValueError, says)


def act(bad: float) -> None:
    spaces = mc.Spaces(gym.Box(-1, 1, (1,)), gym.Box(-np.inf, np.inf, (2,)))
    player = player_of(spaces, np.array([[0, 1], [0, bad]], np.float32))
    player.choose(np.zeros((2, 1), np.float32), slice(None), np.ones(2, bool))


def sit(fields: dict[str, mc.Field], extras: dict[str, Any], **state: torch.Tensor) -> None:
    """Lets a seat remember the extras of an action, and the recurrent state before it."""
    spec = mc.TransitionSpec(mc.Field((2,)), mc.Field((), "int64"), fields)
    chosen = mc.Action(np.zeros(2, np.int64), extras)
    player: Any = SimpleNamespace(choose=lambda *_: chosen, before=state, policy=SimpleNamespace(version=1))
    seat = Seat("a", player, None, spec, np.arange(2))  # type: ignore[arg-type]
    seat.act(Turn("a", np.arange(2), np.zeros((2, 2), np.float32), np.ones(2, np.bool_)))


def remember(bad: float, name: str = "value") -> None:
    sit({name: mc.Field()}, {name: np.array([0, bad], np.float32)})


def change(at: Any, **later: torch.Tensor) -> None:
    """Lets a player choose actions with a state, and then with another one."""
    states = iter([{"h": torch.zeros(2, 3)}, later])
    policy: Any = SimpleNamespace(act=lambda *_: mc.Action(np.zeros(2, np.int64), state=next(states)))
    player = PolicyPlayer(policy, PLAIN, 2 if at == ALL else 3, "repeat")
    for _ in range(2):
        player.choose(np.zeros((2, 2), np.float32), at, np.zeros(2, bool))


ALL = slice(None)
STATE = {"cell": mc.Field((3,)), "hidden": mc.Field((3,))}


OBS = {"noise": NOISE, "target": 0}
WRONG_SHAPE, WRONG_DTYPE = torch.zeros(2, 7), torch.zeros(2, 3, dtype=torch.complex64)
SAYS: dict[str, Callable[[], object]] = {
    "obs: expected Discrete(4), got 9": lambda: loaded(mc.Spaces(gym.Discrete(4), gym.Discrete(3))).act(9),
    "obs: expected finite numbers, got nan in [0.0, nan]": lambda: loaded(PLAIN).act([0.0, np.nan]),
    "obs: expected MultiBinary(2), got [0, 2]": lambda: loaded(mc.Spaces(gym.MultiBinary(2), gym.Discrete(3))).act(
        [0, 2]
    ),
    "mask: expected None, since the policy learned without masks, got array": lambda: loaded(PLAIN).act(
        NOISE, mask=MASK
    ),
    "reward: expected finite numbers, got nan in [nan]": lambda: loaded(PLAIN).act(NOISE, reward=np.nan),
    "obs['target']: expected Discrete(4), got 9": lambda: loaded(MASKED).act(
        {"noise": NOISE, "target": 9, "action_mask": MASK}
    ),
    "action_mask: expected an allowed action, got [False, False, False]": lambda: loaded(MASKED).act(
        {**OBS, "action_mask": MASK & ~MASK}
    ),
    "action_mask: expected bool (3,), got [True, False]": lambda: loaded(MASKED).act(OBS, mask=[True, False]),
    "action_mask: expected bool (3,), got ([True], [[True], True])": lambda: loaded(MASKED).act(
        OBS, mask=([True], [[True], True])
    ),
    "action_mask: expected 3 booleans, got None": lambda: loaded(MASKED).act({"observation": OBS}),
    "obs: expected a value with the keys 'noise', 'target', got {'noise': 0, 'action_mask': array([0, 1, 0])}": (
        lambda: loaded(MASKED).act({"noise": 0, "action_mask": np.array([0, 1, 0])})
    ),
    "extras of the algorithm: expected ['cell'], as its transition says, got []": lambda: sit(
        STATE, {}, hidden=torch.zeros(2, 3)
    ),
    "hidden of the algorithm's state: expected float32 (2, 3), got shape (2, 7)": lambda: sit(
        STATE, {}, hidden=WRONG_SHAPE, cell=torch.zeros(2, 3)
    ),
    "cell of the algorithm's state: expected float32 (2, 3), got dtype complex64": lambda: sit(
        STATE, {}, hidden=torch.zeros(2, 3), cell=WRONG_DTYPE
    ),
    "h of the algorithm's state: expected shape (2, 3), got (1, 2, 3)": lambda: change(ALL, h=torch.zeros(1, 2, 3)),
    "h of the algorithm's state: expected shape (2, 3), got (1, 3)": lambda: change([0, 2], h=torch.zeros(1, 3)),
    "state of the algorithm: expected the fields ['h'], got ['h', 'c']": lambda: change(
        ALL, h=torch.zeros(2, 3), c=torch.zeros(2)
    ),
}


@pytest.mark.parametrize("says", SAYS)
def test_what_is_not_of_its_space_is_refused(says: str) -> None:
    check_refused(SAYS[says], TypeError if "dtype" in says else ValueError, says)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("call", "name"), [(act, "action"), (remember, "value")])
def test_what_is_not_finite_is_refused(call: Callable[[float], object], name: str, bad: float) -> None:
    check_refused(lambda: call(bad), ValueError, f"{name} of the algorithm: expected finite numbers, got {bad} in")


def test_what_is_possible_is_accepted() -> None:
    assert loaded(PLAIN).act(5 * np.ones(2)) == 1  # bounds are not checked
    remember(np.nan, "priority")  # which stands for the highest so far


@pytest.mark.parametrize("mask", [list(MASK), MASK.tolist(), ([0, 1], [0])])
def test_act_takes_a_mask_as_a_list(mask: Any) -> None:
    assert loaded(MASKED).act(OBS, mask=mask) == 1


@pytest.mark.parametrize(
    ("action", "allowed", "forbidden"),
    [
        (gym.Discrete(3), [0, 2], [0, 1]),
        (gym.Discrete(3, start=5), [0, 2], [0, 1]),
        (gym.MultiDiscrete([3, 2]), [[0, 1], [2, 0]], [[0, 1], [2, 1]]),
    ],
)
@pytest.mark.parametrize("stack", [1, 3])
def test_a_forbidden_action_of_an_algorithm_is_refused(action: Any, allowed: Any, forbidden: Any, stack: int) -> None:
    spaces = mc.Spaces(BOX, action, masked=True, stack=stack)
    mask = np.array([[True, True, True, True, True], [True, False, True, True, False]])[:, : spaces.choices]
    obs, begins = {"observation": np.zeros((2, 2), np.float32), "action_mask": mask}, np.ones(2, np.bool_)
    second = {name: rows[1:] for name, rows in obs.items()}
    player_of(spaces, allowed).choose(obs, slice(None), begins)
    player = player_of(spaces, forbidden)
    got = (forbidden[1] + spaces.action_start).tolist()
    says = f"action of the algorithm: expected one that action_mask allows, got {got}"
    check_refused(lambda: player.choose(obs, slice(None), begins), ValueError, says)
    check_refused(lambda: player.choose(second, np.array([1]), begins[1:]), ValueError, says)


@pytest.mark.parametrize(
    ("space", "mask", "good", "bad"),
    [
        (gym.Discrete(3, start=5), [True, False, True], 7, 6),
        (gym.MultiDiscrete([2, 3]), [True, True, False, True, True], [1, 2], [1, 0]),
    ],
)
def test_an_anchor_keeps_to_the_mask(space: gym.Space[Any], mask: list[bool], good: Any, bad: Any) -> None:
    """An illegal move would lose each game, and the payoff table would not tell why."""
    spaces = mc.Spaces(gym.Box(-1, 1, (1,), np.float32), space, masked=True)
    obs: Any = {"observation": np.zeros((1, 1), np.float32), "action_mask": np.array([mask])}
    moves = iter([good, bad])
    player = ScriptedPlayer("anchor:mover", lambda _obs: np.asarray(next(moves), np.int64), spaces, 1)

    def choose() -> Any:
        return spaces.shifted(player.choose(obs, np.zeros(1, np.int64), np.ones(1, np.bool_)).action)

    assert choose().tolist() == [good]
    says = f"action of anchor:mover: expected one that action_mask allows, got {bad}"
    check_refused(choose, ValueError, says)


class Counter:
    """Returns how often it acted since its last reset, on top of a number."""

    def __init__(self, first: int = 0) -> None:
        self.first, self.acted = first, 0

    def reset(self) -> None:
        self.acted = 0

    def act(self, obs: Any) -> int:
        assert obs.shape == (1,), "a critic's part is not shown"
        self.acted += 1
        return self.first + self.acted


@pytest.mark.parametrize(("script", "first"), [(Counter, 0), (Counter(10), 10)])
def test_each_copy_has_a_script_of_its_own(script: Any, first: int) -> None:
    observation = gym.Dict({"observation": gym.Box(-1, 1, (1,)), "joint_observation": gym.Box(-1, 1, (2,))})
    spaces = mc.Spaces(observation, gym.Discrete(20))
    player = ScriptedPlayer("bot", script, spaces, 3, mc.MAPPO())

    def choose(copies: list[int], begins: list[bool]) -> list[int]:
        rows = {name: np.zeros((len(copies), *field.shape), np.float32) for name, field in spaces.obs.items()}
        return (player.choose(rows, np.array(copies), np.array(begins)).action - first).tolist()

    assert choose([0, 1, 2], [True] * 3) == [1, 1, 1]
    assert choose([0, 2], [False, False]) == [2, 2]
    assert choose([0, 1, 2], [False, False, True]) == [3, 2, 1]
