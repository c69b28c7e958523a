"""The robots' values and policies, and what people can attain, are what plain Python computes, to the last bit."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from induction_oracle import Induction, RobotInduction
from test_induction import GOALS, is_rare, is_third
from world_models import Diamonds, Doors, Slippery

from marlcore.planning import Graph, backward_induction, build_graph, robot_induction

MODELS = {"doors": Doors(), "slippery": Slippery(horizon=3), "diamonds": Diamonds(agents=3, depth=5)}


@pytest.fixture(params=MODELS)
def graph(request: pytest.FixtureRequest) -> Iterator[Graph]:
    with build_graph(MODELS[request.param], workers=1) as one:
        yield one


def reward(attainable: dict[int, Any], weights: dict[int, Any]) -> Any:
    """For the package and the oracle alike: people's goals count by the square of what they can attain, less 2."""
    total = 0.0
    for agent in attainable:
        for goal in range(attainable[agent].shape[-1]):
            value = attainable[agent][..., goal]
            total = total + weights[agent][..., goal] * (value * value)
    return total - 2.0


def generate(state: Any, agent: int) -> Iterator[tuple[Any, float]]:
    yield is_third, 0.25
    if sum(repr(state).encode()) % 2:
        yield is_rare, 0.5 + agent


def check(graph: Graph, goals: Any, people: list[int], **options: Any) -> None:
    states, _, _, transitions = graph.to_lists()
    options = {"beta": 5.0, **options}
    with backward_induction(graph, goals, people) as policies:
        found = robot_induction(graph, policies, reward, **options)
        order = {agent: policies[agent].goals for agent in people}
    offers = goals if callable(goals) else lambda state, agent: [(goal, 1 / len(GOALS)) for goal in GOALS]

    def weights(i: int, agent: int) -> dict[int, float]:
        return {order[agent].index(goal): weight for goal, weight in offers(states[i], agent)}

    def aggregate(i: int, attainable: dict[int, list[float]]) -> float:
        given = {agent: np.array([weights(i, agent).get(k, 0.0) for k in range(len(order[agent]))]) for agent in order}
        return reward({agent: np.array(values) for agent, values in attainable.items()}, given)

    human = Induction(
        states, transitions, graph.agents, graph.actions, order,
        offered=lambda state, agent: [goal for goal, _ in offers(state, agent)],
    )  # fmt: skip
    options["human_gamma"] = options.pop("people_gamma", 1.0)
    expected = RobotInduction(human, weights, aggregate, **options)
    assert found.robots == tuple(expected.robots)
    assert found.values.tolist() == expected.values
    assert found.policy.tolist() == expected.policies
    for agent in people:
        assert found.attainable[agent].T.tolist() == expected.attainable[agent]


@pytest.mark.parametrize("people", [[0], [1]])
def test_robots_are_as_the_oracle_says(graph: Graph, people: list[int]) -> None:
    check(graph, dict.fromkeys(people, GOALS), people)


def test_discounts_of_robots_and_people_differ(graph: Graph) -> None:
    check(graph, {0: GOALS}, [0], gamma=0.8, people_gamma=0.95, terminal=-1.5)


def test_a_power_law_is_the_oracles(graph: Graph) -> None:
    check(graph, {1: GOALS}, [1], power=True, terminal=-1e-10)
    check(graph, {1: GOALS}, [1], power=True, terminal=-1e-10, beta=math.inf)


def test_goals_of_people_may_depend_on_the_state(graph: Graph) -> None:
    check(graph, generate, [0])


def test_several_people_act_beside_robots() -> None:
    with build_graph(Diamonds(agents=3, depth=6), workers=1) as graph:
        check(graph, generate, [0, 2], beta=math.inf)
        check(graph, {2: GOALS, 1: GOALS}, [2, 1])


def test_any_number_of_workers_gives_the_same_robots(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlcore.planning.sweep.SPLIT", 1)
    monkeypatch.setattr("marlcore.planning.sweep.CHUNK", 300)
    found = []
    with backward_induction(graph, {0: GOALS}) as people:
        for workers in (1, 2, 3, 8):
            one = robot_induction(graph, people, reward, workers=workers)
            found.append([one.values.tobytes(), one.policy.tobytes(), one.attainable[0].tobytes()])
    assert all(one == found[0] for one in found)


def test_durations_are_asked_for_once(graph: Graph) -> None:
    asked: list[Any] = []

    def durations(state: Any, profile: tuple[int, ...], outcomes: list[Any]) -> list[float]:
        asked.append((state, profile))
        return [1.0] * len(outcomes)

    options = {"gamma": 0.8, "people_gamma": 0.9, "workers": 1}
    with backward_induction(graph, {0: GOALS}) as people:
        timed = robot_induction(graph, people, reward, durations=durations, **options)
        plain = robot_induction(graph, people, reward, **options)
    assert len(asked) == len({*asked}) == len(graph.profile)
    assert timed.values.tobytes() == plain.values.tobytes()
