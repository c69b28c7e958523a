"""marlcore.compat.empo returns what EMPO's callers expect, with the oracle's numbers."""

import math
import os
import pickle
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_oracle import graph_lists
from induction_oracle import Induction, rounded
from refused import Refused, check_refused, each_bad, refusals
from tiers import long_but
from world_models import Diamonds, Doors, Slippery

from marlcore.compat.empo import compute_human_policy_prior, get_dag_parallel


@dataclass(frozen=True)
class Reach:
    """A goal as EMPO's are: equal ones are one goal, though the generator makes them anew."""

    rest: int

    def is_achieved(self, state: Any) -> int:
        return int(sum(repr(state).encode()) % 5 == self.rest)

    __call__ = is_achieved  # for the oracle


@dataclass(frozen=True)
class Generator:
    def generate(self, state: Any, agent: int) -> Iterator[tuple[Reach, float]]:
        yield Reach(0), 0.25
        if sum(repr(state).encode()) % 2:
            yield Reach(1 + agent), 0.75


GOALS = {0: [Reach(0), Reach(1)], 1: [Reach(0), Reach(2)]}
MODELS = {"doors": Doors(horizon=3), "slippery": Slippery(agents=3, horizon=2), "diamonds": Diamonds(agents=3, depth=5)}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]


def planned(model: Any, humans: list[int], *beliefs: Any, use_float16: bool = False, **options: Any) -> Any:
    return compute_human_policy_prior(
        model, humans, Generator(), *beliefs, use_float16=use_float16, quiet=True, **options
    )


def oracle(model: Any, humans: list[int], use_float16: bool = False, **options: Any) -> Induction:
    """EMPO's values: stored as float16, with probabilities of float16 if asked for."""
    lists = graph_lists(model)
    transitions = [
        [(profile, [*map(rounded, p)] if use_float16 else p, successors) for profile, p, successors in rows]
        for rows in lists.transitions
    ]
    return Induction(
        lists.states, transitions, len(model.agents), model.action_space.n,
        {agent: GOALS[agent] for agent in humans},
        robots=[agent for agent in range(len(model.agents)) if agent not in humans],
        offered=lambda state, agent: [goal for goal, _ in Generator().generate(state, agent)], store=rounded,
        **options,
    )  # fmt: skip


def check(model: Any, humans: list[int], found: tuple[Any, Any], expected: Induction) -> None:
    prior, values = found
    assert [*values] == expected.states
    assert [*prior.values] == [state for state, rows in zip(expected.states, expected.rows, strict=True) if rows]
    for i, state in enumerate(expected.states):
        for agent in humans:
            offered = [goal for goal, _ in Generator().generate(state, agent)] if expected.rows[i] else []
            numbers = {goal: GOALS[agent].index(goal) for goal in offered}
            assert values[state][agent] == {goal: expected.values[agent][k][i] for goal, k in numbers.items()}
            for goal, k in numbers.items():
                assert prior(state, agent, goal).tolist() == expected.policies[agent][k][i]
                assert prior.values[state][agent][goal].tolist() == expected.policies[agent][k][i]


def test_the_dag_is_the_oracles(model: Any) -> None:
    expected = graph_lists(model)
    assert get_dag_parallel(model, return_probabilities=True, num_workers=1) == tuple(expected)
    assert get_dag_parallel(model) == tuple(expected)[:3]


def test_it_replaces_a_method_by_assignment() -> None:
    class Model(Slippery):
        get_dag_parallel = get_dag_parallel

    states, index, successors, transitions = Model().get_dag_parallel(return_probabilities=True, num_workers=1)
    assert [index[state] for state in states] == [*range(len(states))]
    assert [profile for profile, _, _ in transitions[0]][:4] == [(0, 0), (1, 0), (2, 0), (0, 1)]
    assert successors[0] == sorted({j for _, _, reached in transitions[0] for j in reached})


OPTIONS = [{}, {"beta": math.inf}, {"beta": 3.0}, {"gamma": 0.9}]
QUICK = [
    ({}, False, True),
    ({}, True, False),
    (OPTIONS[1], True, True),
    (OPTIONS[2], False, False),
    (OPTIONS[3], True, True),
]


@pytest.mark.parametrize(
    ("options", "optimistic", "use_float16"), long_but(QUICK, product(OPTIONS, (False, True), (False, True)))
)
def test_priors_and_values_are_the_oracles(
    model: Any, options: dict[str, float], optimistic: bool, use_float16: bool
) -> None:
    """To the last bit."""
    told: dict[str, Any] = {"optimistic": optimistic, "use_float16": use_float16}
    half = use_float16 and "gamma" not in options  # where nothing is discounted, sums are float16 too
    for humans in ([0], [0, 1]):
        found = planned(model, humans, return_Vh=True, **told, **{f"{name}_h": by for name, by in options.items()})
        check(model, humans, found, oracle(model, humans, **told, half=half, **options))


def test_workers_levels_and_generators_change_nothing() -> None:
    model = Slippery()
    said: list[tuple[int, int]] = []
    plain = planned(model, [1])
    model.possible_goal_generator = Generator()
    other = compute_human_policy_prior(
        model, [1], parallel=True, num_workers=3, level_fct=lambda state: state[0], use_float16=False,
        progress_callback=lambda done, total: said.append((done, total)), quiet=True,
    )  # fmt: skip
    assert said[-1] == (len(graph_lists(model).states),) * 2
    for state in plain.values:
        for goal, policy in plain.values[state][1].items():
            assert other(state, 1, goal).tolist() == policy.tolist()


def test_beliefs_and_durations_are_those_given() -> None:
    class Timed(Slippery):
        def transition_durations(self, state: Any, actions: list[int], transitions: list[Any]) -> list[float]:
            assert isinstance(actions, list)
            return [1.0 + actions[0] + i for i in range(len(transitions))]

    def believed(state: Any, agent: int, action: int) -> list[tuple[float, Any]]:
        return [(0.25, np.array([-1, 0])), (0.75, np.array([-1, 2]))] if agent == 0 else [(1.0, np.array([1, -1]))]

    def discount(state: Any, profile: tuple[int, ...], outcomes: list[Any]) -> list[float]:
        return [math.exp(-0.1 * (1.0 + profile[0] + i)) for i in range(len(outcomes))]

    found = planned(Timed(), [0, 1], believed, rho_h=0.1, return_Vh=True)
    expected = oracle(
        Timed(), [0, 1], discount=discount,
        believed=lambda *asked: [(p, [max(a, 0) for a in profile.tolist()]) for p, profile in believed(*asked)],
    )  # fmt: skip
    check(Timed(), [0, 1], found, expected)


def test_keywords_about_memory_change_nothing(tmp_path: Path) -> None:
    plain = planned(Slippery(), [0])
    same, none = planned(
        Slippery(), [0], return_attainment_cache=True, use_attainment_cache=False, memory_check_interval=1,
        memory_pause_duration=0, memory_profile=True, use_disk_slicing=True, use_compression=True,
        disk_cache_dir=tmp_path / "slices", level_fct=lambda state: state[0], min_free_memory_fraction=0.0,
    )  # fmt: skip
    assert none is None and [*tmp_path.iterdir()] == []
    for state in plain.values:
        assert same(state, 0).tolist() == plain(state, 0).tolist()


def test_an_attainment_cache_tells_what_successors_achieve(model: Any) -> None:
    _, values, cache = planned(model, [0, 1], return_Vh=True, return_attainment_cache=True)
    states, _, _, transitions = get_dag_parallel(model, return_probabilities=True, num_workers=1)
    assert [*values] == states and cache.num_states() == len(states) and len(states) not in cache
    actions, goals = model.action_space.n, {*GOALS[0], *GOALS[1]}
    for i, rows in enumerate(transitions):
        by_profile = cache.get_slice(None)[i]
        for profile, _, successors in rows:
            number = sum(action * actions**agent for agent, action in enumerate(profile))
            expected = {goal: [goal.is_achieved(states[j]) for j in successors] for goal in goals}
            by_goal = by_profile[number]
            assert {goal: achieved.tolist() for goal, achieved in by_goal.items()} == expected
            assert all(achieved.dtype == np.int8 for achieved in by_goal.values())
        assert sum(map(bool, by_profile)) == len(rows)
    assert cache.get(0, 0, Reach(7)) is None and cache.get(len(states) - 1, 0, Reach(0)) is None


def test_an_archive_has_the_values_by_level(tmp_path: Path) -> None:
    for _ in range(2):  # the second replaces the first
        _, values = planned(Slippery(), [1], return_Vh=True, archive_dir=tmp_path / "new" / "archive")
    [path] = (tmp_path / "new" / "archive").iterdir()
    states, read, levels = get_dag_parallel(Slippery(), num_workers=1)[0], {}, []
    with open(path, "rb") as file:
        while file.peek():
            header = pickle.load(file)
            levels.append(header["level_value"])
            read |= {states[i]: pickle.load(file) for i in header["state_indices"]}
            assert header["num_states"] == len(header["state_indices"])
    assert path.name == "vh_values.pkl" and levels == sorted({*levels})
    assert read == {state: [{}, {**values[state][1]}] for state in states}


def test_no_half_of_an_archive_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by an error nor by a process that was killed; the file of a living one stays."""
    with subprocess.Popen(["true"]) as killed:
        killed.wait()
    for pid in (killed.pid, os.getppid()):
        (tmp_path / f".vh_values.pkl.{pid}").touch()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr(pickle, "dump", fail)
    check_refused(lambda: planned(Slippery(), [1], archive_dir=tmp_path), OSError, "no room")
    assert [path.name for path in tmp_path.iterdir()] == [f".vh_values.pkl.{os.getppid()}"]


START = (0, (0, 0))


@pytest.fixture(scope="module")
def prior() -> Any:
    return planned(Slippery(), [0, 1], beta_h=2.0, use_float16=True)


def test_without_a_goal_a_prior_is_the_weighted_mean(prior: Any) -> None:
    for state in prior.values:
        offers = [*Generator().generate(state, 0)]
        mean = sum(weight * prior(state, 0, goal) for goal, weight in offers) / sum(weight for _, weight in offers)
        assert np.allclose(prior(state, 0), mean) and abs(prior(state, 0).sum() - 1) < 1e-12


def test_profiles_of_several_humans_are_independent(prior: Any) -> None:
    for found, first in (
        (prior.profile_distribution(START), prior(START, 0)),
        (prior.profile_distribution_with_fixed_goal(START, 0, Reach(0)), prior(START, 0, Reach(0))),
    ):
        assert abs(sum(p for p, _ in found) - 1) < 1e-12
        for p, (one, other) in found:
            assert p == pytest.approx(first[one] * prior(START, 1)[other])


def test_actions_are_drawn_by_the_policy(prior: Any) -> None:
    np.random.seed(0)
    drawn = np.bincount([prior.sample(START, 0, Reach(0)) for _ in range(3000)], minlength=3) / 3000
    assert np.allclose(drawn, prior(START, 0, Reach(0)), atol=0.03)
    assert len(prior.sample(START)) == 2


def test_a_prior_is_pickled_whole_without_its_model(prior: Any) -> None:
    copy = pickle.loads(pickle.dumps(prior))
    assert copy.world_model is None
    copy.set_world_model(prior.world_model)
    assert copy.world_model is prior.world_model and [*copy.values] == [*prior.values]
    for state in prior.values:
        assert copy(state, 0).tolist() == prior(state, 0).tolist()


def test_terminal_states_and_unknown_goals_have_no_policy() -> None:
    prior, values = planned(Slippery(), [0], return_Vh=True)
    end = next(state for state in values if state[0] == 4)
    assert values[end] == {0: {}} and end not in prior.values and len(prior.values) < len(values)
    for asked in ((end, 0, Reach(0)), (START, 0, Reach(7)), ("nowhere", 0, Reach(0))):
        with pytest.raises(KeyError):
            prior(*asked)


def planned_with(**options: Any) -> Any:
    return planned(Slippery(), [0], **options)


REFUSED: list[Refused] = [
    (lambda: compute_human_policy_prior(Slippery(), [0], quiet=True), ValueError,
        "possible_goal_generator: expected a generator here or in world_model, got None"),
    (lambda: planned_with(gamma_h=0.9, rho_h=0.1), ValueError, "gamma or rho, got both"),
    (lambda: planned(Slippery(), [5]), ValueError, "agents: expected agents from 0 to 1, got 5"),
    *each_bad(planned_with, "True or False", return_Vh=[2], return_attainment_cache=["no"], memory_profile=[2],
        use_attainment_cache=[None], use_disk_slicing=["yes"], use_compression=["gzip"]),
    *each_bad(planned_with, "text", archive_dir=[3], disk_cache_dir=[3]),
    *each_bad(planned_with, "an integer of at least 1", memory_check_interval=[0]),
    *each_bad(planned_with, "a finite number of at least 0", memory_pause_duration=[-1.0]),
    *each_bad(planned_with, "a number in [0, 1)", min_free_memory_fraction=[1.0]),
    (lambda: planned_with(use_disk_slicing=True), "level_fct: expected a function for use_disk_slicing, got None"),
    (lambda: planned_with().sample(START, possible_goal=Reach(0)), ValueError, "possible_goal: expected None"),
]  # fmt: skip
test_refuses = refusals(REFUSED)
