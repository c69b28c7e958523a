"""Players refuse observations, actions and states that are not of their spaces; what scripts see and may return."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from batches import acting_policy
from gymnasium import spaces as gym
from refused import check_refused, refusals

import marlcore as mc
from marlcore.algos.networks.torso import rows_in
from marlcore.evaluation import LoadedPolicy
from marlcore.loops import ActingPolicy, PolicyModel, Recorder, ScriptedPlayer

BOX = gym.Box(-1, 1, (2,), np.float32)
PLAIN = mc.Spaces(BOX, gym.Discrete(3))
MASKED = mc.Spaces(gym.Dict(noise=BOX, target=gym.Discrete(4)), gym.Discrete(3), masked=True)
NOISE, MASK = np.zeros(2, np.float32), np.array([False, True, False])


def loaded(spaces: mc.Spaces) -> LoadedPolicy:
    """A policy whose action is 1 whatever it sees."""
    algorithm: Any = SimpleNamespace(act=lambda *_, **__: mc.Action(np.array([1])))
    return LoadedPolicy(algorithm, PolicyModel(torch.nn.Identity()), spaces, "repeat", {})


def test_a_greedy_policy_with_dropout_is_deterministic() -> None:
    torch.manual_seed(0)
    algorithm = mc.DQN(network=lambda spaces: torch.nn.Sequential(torch.nn.Linear(2, 40), torch.nn.Dropout(0.9)))
    policy = LoadedPolicy(algorithm, PolicyModel(algorithm.make_model(PLAIN)), PLAIN, "repeat", {})
    assert len({policy.act(seen) for seen in [np.ones(2, np.float32)] * 60}) == 1
    policy._player.network.model.train()
    assert len({policy.act(seen) for seen in [np.ones(2, np.float32)] * 60}) > 1, "the control"


def player_of(spaces: mc.Spaces, action: Any) -> ActingPolicy:
    """A player of two copies whose algorithm always chooses these actions."""
    act = lambda _, obs, **__: mc.Action(np.array(action)[-rows_in(obs) :])  # noqa: E731
    algorithm = SimpleNamespace(act=act)
    return acting_policy(algorithm, torch.nn.Identity(), spaces, 2)


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
    says = f"action of the algorithm: expected an action of {space}, got {got.tolist()}"
    choose = player_of(mc.Spaces(gym.Box(-1, 1, (1,)), space), actions).choose
    check_refused(lambda: choose(np.zeros((2, 1), np.float32), slice(None), np.ones(2, bool)), ValueError, says)


def act(bad: float) -> None:
    spaces = mc.Spaces(gym.Box(-1, 1, (1,)), gym.Box(-np.inf, np.inf, (2,)))
    player = player_of(spaces, np.array([[0, 1], [0, bad]], np.float32))
    player.choose(np.zeros((2, 1), np.float32), slice(None), np.ones(2, bool))


def sit(fields: dict[str, mc.Field], extras: dict[str, Any], **state: torch.Tensor) -> None:
    """Lets a recorder remember the extras of an action, and the recurrent state before it."""
    spec = mc.TransitionSpec(mc.Field((2,)), mc.Field((), "int64"), fields)
    turn = mc.Turn("a", np.arange(2), np.zeros((2, 2), np.float32), np.ones(2, np.bool_))
    columns: dict[str, Any] = {"obs": np.zeros((2, 2)), "action": np.zeros(2)}
    rows: Any = SimpleNamespace(**columns, extras={name: field.zeros(2) for name, field in fields.items()})
    recorder = Recorder("a", rows, spec, np.arange(2))
    recorder.remember(turn, mc.Action(np.zeros(2, np.int64), extras), state, 1)


def remember(bad: float, name: str = "value") -> None:
    sit({name: mc.Field()}, {name: np.array([0, bad], np.float32)})


def change(at: Any, **later: torch.Tensor) -> None:
    """Lets a player choose actions with a state, and then with another one."""
    states = iter([{"h": torch.zeros(2, 3)}, later])
    algorithm = SimpleNamespace(act=lambda *_, **__: mc.Action(np.zeros(2, np.int64), state=next(states)))
    player = acting_policy(algorithm, torch.nn.Identity(), PLAIN, 2 if at == ALL else 3)
    for _ in range(2):
        player.choose(np.zeros((2, 2), np.float32), at, np.zeros(2, bool))


ALL = slice(None)
STATE = {"cell": mc.Field((3,)), "hidden": mc.Field((3,))}


def asked(obs: Any, *mask: Any, of: mc.Spaces = MASKED, **reward: Any) -> Callable[[], object]:
    """A call of a policy of these spaces."""
    return lambda: loaded(of).act(obs, *mask, **reward)


OBS = {"noise": NOISE, "target": 0}
SEVERAL = {"noise": np.zeros((2, 2), np.float32), "target": np.zeros(2, int)}
HIDDEN, WRONG_DTYPE = torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.complex64)
NINE, BITS = mc.Spaces(gym.Discrete(4), gym.Discrete(3)), mc.Spaces(gym.MultiBinary(2), gym.Discrete(3))
SAYS: dict[str, Callable[[], object]] = {
    "obs: expected Discrete(4), got 9": asked(9, of=NINE),
    "obs: expected finite numbers, got nan in [0.0, nan]": asked([0.0, np.nan], of=PLAIN),
    "obs: expected MultiBinary(2), got [0, 2]": asked([0, 2], of=BITS),
    "mask: expected None, since the policy learned without masks, got array": asked(NOISE, MASK, of=PLAIN),
    "reward: expected finite numbers, got nan in [nan]": asked(NOISE, of=PLAIN, reward=np.nan),
    "obs['target']: expected Discrete(4), got 9": asked({"noise": NOISE, "target": 9, "action_mask": MASK}),
    "action_mask: expected an allowed action, got [False, False": asked({**OBS, "action_mask": MASK & ~MASK}),
    "action_mask: expected bool (3,), got [True, False]": asked(OBS, [True, False]),
    "action_mask: expected bool (3,), got ([True], [[True], True])": asked(OBS, ([True], [[True], True])),
    "obs: expected at least one observation, got none": asked(np.zeros((0, 2), np.float32), of=PLAIN),
    "target: expected int64 (2,), got shape (3,)": asked(
        {**SEVERAL, "target": np.zeros(3, int)}, np.tile(MASK, (2, 1))
    ),
    "action_mask: expected bool (2, 3), got [False, True, False]": asked(SEVERAL, MASK.tolist()),
    "reward: expected float64 (2,), got shape (3,)": asked(np.zeros((2, 2)), of=PLAIN, reward=np.zeros(3)),
    "action_mask: expected 3 booleans, got None": asked({"observation": OBS}),
    "obs: expected a value with the keys 'noise', 'target', got {'noise': 0, 'action_mask': array([0, 1, 0])}": asked(
        {"noise": 0, "action_mask": np.array([0, 1, 0])}
    ),
    "extras of the algorithm: expected the names ['cell'], declared in its transition, got []": partial(
        sit, STATE, {}, hidden=HIDDEN
    ),
    "hidden of the algorithm's state: expected float32 (2, 3), got shape (2, 7)": partial(
        sit, STATE, {}, hidden=torch.zeros(2, 7), cell=HIDDEN
    ),
    "cell of the algorithm's state: expected float32 (2, 3), got dtype complex64": partial(
        sit, STATE, {}, hidden=HIDDEN, cell=WRONG_DTYPE
    ),
    "h of the algorithm's state: expected shape (2, 3), got (1, 2, 3)": partial(change, ALL, h=torch.zeros(1, 2, 3)),
    "h of the algorithm's state: expected shape (2, 3), got (1, 3)": partial(change, [0, 2], h=torch.zeros(1, 3)),
    "state of the algorithm: expected the fields ['h'], got ['h', 'c']": partial(change, ALL, h=HIDDEN, c=HIDDEN),
}
test_what_is_not_of_its_space_is_refused = refusals(
    {says: (call, TypeError if "dtype" in says else ValueError, says) for says, call in SAYS.items()}
)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("call", "name"), [(act, "action"), (remember, "value")])
def test_what_is_not_finite_is_refused(call: Callable[[float], object], name: str, bad: float) -> None:
    check_refused(lambda: call(bad), ValueError, f"{name} of the algorithm: expected finite numbers, got {bad} in")


def test_what_is_possible_is_accepted() -> None:
    assert loaded(PLAIN).act(5 * np.ones(2)) == 1  # bounds are not checked
    remember(np.nan, "priority")  # which stands for the highest so far


CHOICES, TWO = gym.Discrete(3), gym.MultiDiscrete([2, 3])
DQN, R2D2 = mc.DQN(hidden=(16,)), mc.R2D2(hidden=(8, 8), units=6, length=12, burn_in=4, period=8)
BATCHES: dict[str, tuple[Any, mc.Spaces]] = {
    "Box": (DQN, PLAIN),
    "Discrete": (DQN, mc.Spaces(gym.Discrete(9, start=2), gym.Discrete(3, start=4))),
    "masked Dict": (DQN, MASKED),
    "Tuple of several choices": (DQN, mc.Spaces(gym.Tuple((BOX, gym.Discrete(4))), TWO, masked=True)),
    "stack": (DQN, mc.Spaces(BOX, CHOICES, stack=3)),
    "memory": (R2D2, mc.Spaces(BOX, CHOICES)),
    "Box of actions": (mc.SAC(hidden=(16,)), mc.Spaces(BOX, BOX)),
    "joint": (mc.MAPPO(hidden=(16,)), mc.Spaces(gym.Dict(observation=BOX, joint_observation=BOX), CHOICES)),
}


def stacked(observations: list[Any]) -> Any:
    first = observations[0]
    if isinstance(first, dict):
        return {key: stacked([obs[key] for obs in observations]) for key in first}
    return tuple(map(stacked, zip(*observations, strict=True))) if isinstance(first, tuple) else np.stack(observations)


@pytest.mark.parametrize("case", BATCHES)
def test_a_batch_is_acted_on_as_each_of_it_alone(case: str) -> None:
    """With its mask, its stack, its memory and its reward; some begin an episode, and others go on."""
    algorithm, spaces = BATCHES[case]
    torch.manual_seed(0)
    model, rng = algorithm.make_model(spaces), np.random.default_rng(0)
    with torch.no_grad():
        for weights in model.parameters():
            weights *= 5 * (weights.ndim > 1)  # so that observations, and what lies before, matter
    acting = PolicyModel(model)
    together, *alone = (LoadedPolicy(algorithm, acting, spaces, "repeat", {}) for _ in range(4))
    seen = gym.Dict(observation=BOX)["observation"] if case == "joint" else spaces.observation
    seen.seed(0)
    different = set()
    for step in range(20):
        ended = np.array([step % 7 == 6, False, step % 5 == 4])
        together.reset(ended) if step else None
        for policy in (own for own, over in zip(alone, ended, strict=True) if over):
            policy.reset()
        obs, rewards = [seen.sample() for _ in alone], rng.normal(scale=20, size=3)
        masks = rng.random((3, spaces.choices)) < 0.6 if spaces.masked else [None] * 3
        if spaces.masked:
            masks[:, -1] = masks[:, 0] = True
        acted = together.act(stacked(obs), masks if spaces.masked else None, rewards)
        for row, expected in enumerate(map(LoadedPolicy.act, alone, obs, masks, rewards)):
            np.testing.assert_allclose(acted[row], expected, rtol=1e-5)
        different |= {str(action) for action in acted}
    assert len(different) > 1


def test_a_batch_with_memory_changes_size_only_at_a_reset() -> None:
    algorithm, spaces = BATCHES["memory"]
    policy = LoadedPolicy(algorithm, PolicyModel(algorithm.make_model(spaces)), spaces, "repeat", {})
    policy.act(np.zeros((2, 2), np.float32))
    check_refused(lambda: policy.act(NOISE), ValueError, "obs: expected 2 observations until a reset, got 1")
    policy.reset()
    assert policy.act(NOISE) in range(3)


def play(policy: LoadedPolicy, obs: Any) -> None:
    """As evaluations do."""
    policy.player(1).choose(obs[None], slice(None), np.ones(1, np.bool_))


@pytest.mark.parametrize("acts", [LoadedPolicy.act, play])
def test_a_loaded_policy_acts_with_the_runs_threads(monkeypatch: pytest.MonkeyPatch, acts: Any) -> None:
    """And gives the program its own number back, whatever the algorithm does."""
    threads = []

    def act_of(*_: Any, **__: Any) -> mc.Action:
        threads.append(torch.get_num_threads())
        raise OSError

    algorithm: Any = SimpleNamespace(act=act_of)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[-1])
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    for own in (1, 2):
        threads[:] = [7]
        with pytest.raises(OSError):
            acts(LoadedPolicy(algorithm, PolicyModel(torch.nn.Identity()), PLAIN, "repeat", {}, own), NOISE)
        assert threads == [7, own, own, 7]


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
    says = f"action of the algorithm: expected an action that action_mask allows, got {got}"
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
    says = f"action of anchor:mover: expected an action that action_mask allows, got {bad}"
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


@pytest.mark.parametrize("reward", [np.ones(1), np.float64(1), np.ones((2, 1)), np.ones(2, complex)])
def test_rewards_of_another_form_are_not_spread_over_rows(reward: Any) -> None:
    """A caller's own vector environment need not have passed `check_environment`."""
    spec = mc.TransitionSpec(mc.Field((2,)), mc.Field((), "int64"))
    recorder = Recorder("a", SimpleNamespace(reward=np.zeros(2, np.float32)), spec, np.arange(2))  # type: ignore[arg-type]
    outcome = mc.Outcome("a", np.arange(2), reward, np.zeros(2, bool), np.zeros(2, bool), None)
    with pytest.raises(mc.EnvironmentFailed, match=r"^a: reward: expected float32 \(2,\), got "):
        recorder.write(outcome)
