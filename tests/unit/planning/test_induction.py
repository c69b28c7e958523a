"""Values and policies of agents, and of robots among people, equal those of plain Python to the last bit."""

import math
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from induction_oracle import Induction, RobotInduction
from world_models import Diamonds, Doors, Slippery, Table

from marlcore import ClosedError
from marlcore.planning import Graph, Policies, backward_induction, build_graph, robot_induction

MODELS = {"doors": Doors(), "slippery": Slippery(horizon=3), "diamonds": Diamonds()}
STORED: dict[str, Callable[[float], float]] = {
    "float64": float,
    "float32": lambda value: float(np.float32(value)),
    "float16": lambda value: float(np.float16(value)),
}


def nth(state: Any, modulus: int, rest: int) -> bool:
    """Whether a state has a property that is the same in every process."""
    return sum(repr(state).encode()) % modulus == rest


def is_third(state: Any) -> bool:
    return nth(state, 3, 0)


def is_rare(state: Any) -> bool:
    return nth(state, 11, 4)


def is_never(state: Any) -> bool:
    return False


GOALS = [is_rare, is_third, is_never]


@pytest.fixture(params=MODELS)
def graph(request: pytest.FixtureRequest) -> Iterator[Graph]:
    with build_graph(MODELS[request.param], workers=1) as one:
        yield one


def oracle_of(graph: Graph, goals: Any, **options: Any) -> Induction:
    states, _, _, transitions = graph.to_lists()
    return Induction(states, transitions, graph.agents, graph.actions, goals, **options)


def check(graph: Graph, goals: dict[int, Sequence[Any]], dtype: str = "float64", oracle: Any = None, **options: Any):
    """Compares all values and policies with the oracle's, which may get further options."""
    expected = oracle_of(graph, goals, store=STORED[dtype], **{**options, **(oracle or {})})
    with backward_induction(graph, goals, dtype=dtype, workers=1, **options) as found:
        for agent, predicates in goals.items():
            its = found[agent]
            assert its.values.dtype == dtype
            assert its.values.T.astype(float).tolist() == expected.values[agent]
            policy = np.array(expected.policies[agent]).astype(its.policy.dtype)
            assert np.array_equal(its.policy, policy.transpose(1, 0, 2)), (agent, predicates)


@pytest.mark.parametrize("beta", [0.0, 5.0, 1e9, math.inf])
def test_values_and_policies_are_the_oracles(graph: Graph, beta: float) -> None:
    check(graph, {0: GOALS, 1: [is_third]}, beta=beta, gamma=0.9)


@pytest.mark.parametrize("optimistic", [False, True])
@pytest.mark.parametrize("robot", [0, 1])
def test_of_robots_the_worst_or_the_best_is_expected(graph: Graph, robot: int, optimistic: bool) -> None:
    check(graph, {1 - robot: GOALS}, robots=(robot,), optimistic=optimistic)


def test_float32_probabilities_count_as_they_are() -> None:
    with build_graph(Slippery(horizon=3), workers=1, probabilities="float32") as graph:
        assert graph.probability.dtype == np.float32
        check(graph, {0: GOALS, 1: [is_third]}, gamma=0.9)


def test_what_an_agent_believes_may_depend_on_all(graph: Graph) -> None:
    """A belief may also depend on the agent's action; the agent's own entry of a profile does not matter."""

    def believed(state: Any, agent: int, action: int) -> list[tuple[float, list[int]]]:
        other = (action + sum(repr(state).encode())) % graph.actions
        profiles = [[-1, -1], [-1, -1]]
        profiles[0][1 - agent], profiles[1][1 - agent] = other, 0
        return [(0.75, profiles[0]), (0.25, profiles[1])]

    oracle = {"believed": lambda *asked: [(p, [max(a, 0) for a in profile]) for p, profile in believed(*asked)]}
    goals = {0: GOALS, 1: [is_third]}
    try:
        check(graph, goals, oracle=oracle, believed=believed)
    except ValueError as error:
        assert "is possible in state" in str(error) and graph.actions == 5, "behind doors, not every belief is possible"


def test_a_discount_depends_on_the_duration(graph: Graph) -> None:
    def durations(state: Any, profile: tuple[int, ...], outcomes: list[tuple[float, Any]]) -> list[float]:
        return [0.5 + sum(profile) + i + p for i, (p, _) in enumerate(outcomes)]

    discounts: Any = (({"gamma": 0.9}, lambda time: 0.9**time), ({"rho": 0.2}, lambda time: math.exp(-0.2 * time)))
    for options, factor in discounts:
        discount = lambda *outcomes, factor=factor: [*map(factor, durations(*outcomes))]  # noqa: E731
        with backward_induction(graph, {0: GOALS}, durations=durations, **options) as found:
            assert found[0].values.T.tolist() == oracle_of(graph, {0: GOALS}, discount=discount).values[0]


def test_goals_may_depend_on_the_state(graph: Graph) -> None:
    """A goal that is not on offer has no value, but achieving it counts for the states before."""

    def offered(state: Any, agent: int) -> list[Any]:
        return [goal for i, goal in enumerate(GOALS) if nth(state, 2, 0) or i != agent]

    def generate(state: Any, agent: int) -> Iterator[tuple[Any, float]]:
        for i, goal in enumerate(offered(state, agent)):
            yield goal, i + 0.5

    expected = oracle_of(graph, {0: GOALS, 1: GOALS}, offered=offered)
    with backward_induction(graph, generate, [1, 0]) as found:
        assert found.agents == (1, 0)
        for agent in (0, 1):
            its = found[agent]
            order = [its.goals.index(goal) for goal in GOALS]
            assert its.values[:, order].T.tolist() == expected.values[agent]
            for i, state in enumerate(graph.states):
                weights = dict(generate(state, agent)) if graph.row_start[i] < graph.row_start[i + 1] else {}
                assert {its.goals[k]: its.weight[i, k] for k in np.flatnonzero(its.offered[i])} == weights
                assert [is_third(state), is_rare(state)] == [its.achieved[i, order[k]] for k in (1, 0)]


def tables(draw: st.DrawFn) -> tuple[Table, int]:
    agents, actions, states = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 12))
    table: dict[int, Any] = {}
    for i in range(states - 1):
        table[i] = {}
        for profile in product(range(actions), repeat=agents):
            successors = draw(st.lists(st.integers(i + 1, states - 1), max_size=3))
            if successors:
                parts = draw(st.lists(st.integers(1, 9), min_size=len(successors), max_size=len(successors)))
                table[i][profile] = [(part / sum(parts), j) for part, j in zip(parts, successors, strict=True)]
    return Table(agents, actions, table), draw(st.integers(0, agents - 1))


@settings(max_examples=30)
@given(st.composite(tables)(), st.sampled_from([0.0, 4.0, math.inf]), st.booleans(), st.sampled_from([*STORED]))
def test_random_graphs_have_the_oracles_values(one: Any, beta: float, optimistic: bool, dtype: str) -> None:
    model, agent = one
    goals = {agent: [lambda state: state % 3 == 2, lambda state: state > 6]}
    robots = tuple(other for other in range(len(model.agents)) if other != agent and optimistic)
    with build_graph(model, workers=1) as graph:
        check(graph, goals, dtype, beta=beta, gamma=0.95, robots=robots, optimistic=optimistic and agent > 0)


ONE_WAY, ANOTHER = ([(0.1 * i, i) for i in order] for order in ((1, 2, 3, 4), (3, 2, 1, 4)))  # sums round differently


def in_one_to_three(state: Any) -> bool:
    return state in (1, 2, 3)


def test_equally_good_actions_share_whatever_the_order_of_their_sums() -> None:
    with build_graph(Table(1, 2, {0: {(0,): ONE_WAY, (1,): ANOTHER}}), workers=1) as graph:
        check(graph, {0: [in_one_to_three]}, beta=math.inf)
        with backward_induction(graph, {0: [in_one_to_three]}, beta=math.inf) as found:
            assert found[0].policy[graph.index[0], 0].tolist() == [0.5, 0.5]
        with backward_induction(graph, {0: [in_one_to_three]}, beta=1e18) as found:
            assert found[0].policy[graph.index[0], 0].tolist() != [0.5, 0.5]


@pytest.mark.parametrize("power", [False, True])
def test_equally_good_robots_profiles_share_too(power: bool) -> None:
    table = {0: {(0, robot): outcomes for robot, outcomes in enumerate((ONE_WAY, ANOTHER))}}
    table |= {i: {(0, 0): [(1.0, 5)]} for i in (1, 2, 3)}  # with values of the aggregate, unlike the terminal ones
    with (
        build_graph(Table(2, 2, table), workers=1) as graph,
        backward_induction(graph, {0: [in_one_to_three]}) as people,
    ):
        found = robot_induction(graph, people, reward, beta=math.inf, power=power, terminal=-1e-9)
        assert found.policy[graph.index[0]].tolist() == [0.5, 0.5]


def test_the_best_of_small_values_is_no_tie() -> None:
    """At first, the goal is so many steps away that all values are below 1e-12."""
    chain = {i: {(0,): [(1.0, i + 1)], (1,): [(0.5, i + 1), (0.5, i + 2)]} for i in range(60)}
    with build_graph(Table(1, 2, chain), workers=1) as graph:
        check(graph, {0: [lambda state: state == 61]}, beta=math.inf, gamma=0.5)
        with backward_induction(graph, {0: [lambda state: state == 61]}, beta=math.inf, gamma=0.5) as found:
            assert found[0].policy[graph.index[0], 0].tolist() == [0.0, 1.0]


@pytest.fixture
def split_finely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the sweep split every level into parts of a few states."""
    monkeypatch.setattr("marlcore.planning.sweep.SPLIT", 1)
    monkeypatch.setattr("marlcore.planning.sweep.CHUNK", 300)


def bytes_of(policies: Policies) -> list[bytes]:
    return [array.tobytes() for agent in policies.agents for array in (policies[agent].values, policies[agent].policy)]


def test_any_number_of_workers_gives_the_same_bytes(graph: Graph, split_finely: None) -> None:
    results = set()
    with backward_induction(graph, {0: GOALS}) as people:
        for workers in (1, 2, 5):
            robot = robot_induction(graph, people, reward, workers=workers)
            arrays = robot.values, robot.policy, robot.attainable[0]
            with backward_induction(graph, {0: GOALS, 1: GOALS}, workers=workers) as policies:
                results.add((*bytes_of(policies), *(array.tobytes() for array in arrays)))
    assert len(results) == 1


def test_levels_that_are_split_have_the_oracles_values(graph: Graph, split_finely: None) -> None:
    check(graph, {0: GOALS, 1: [is_rare]})


def test_another_process_sees_the_same_policies(graph: Graph) -> None:
    with backward_induction(graph, {0: GOALS}) as policies, pickle.loads(pickle.dumps(policies)) as attached:
        assert attached.handle == policies.handle and attached.agents == (0,)
        assert bytes_of(attached) == bytes_of(policies)
        assert attached[0].goals == GOALS
        policies[0].values[0, 0] = 0.5
        assert attached[0].values[0, 0] == 0.5


def test_closed_policies_say_so(graph: Graph) -> None:
    policies = backward_induction(graph, {0: GOALS})
    policies.close()
    with pytest.raises(ClosedError):
        policies[0]
    assert repr(policies).startswith("<Policies ")


def test_progress_ends_with_all_states(graph: Graph, split_finely: None) -> None:
    said: list[tuple[int, int]] = []
    backward_induction(graph, {0: GOALS}, progress=lambda done, total: said.append((done, total))).close()
    assert said == sorted(said) and said[-1] == (len(graph), len(graph)) and len(said) == len(graph.levels)


def test_a_goal_may_have_a_method(graph: Graph) -> None:
    goal = SimpleNamespace(is_achieved=is_rare)
    with backward_induction(graph, {0: [goal]}) as one, backward_induction(graph, {0: [is_rare]}) as other:
        assert bytes_of(one) == bytes_of(other)


def reward(attainable: dict[int, Any], weights: dict[int, Any]) -> Any:
    """Rewards robots, in the package and the oracle, by the squares of what people can attain, less 2."""
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


def check_robots(graph: Graph, goals: Any, people: list[int], **options: Any) -> None:
    options = {"beta": 5.0, **options}
    with backward_induction(graph, goals, people) as policies:
        found = robot_induction(graph, policies, reward, **options)
        order = {agent: policies[agent].goals for agent in people}
    offers = goals if callable(goals) else lambda state, agent: [(goal, 1 / len(GOALS)) for goal in GOALS]

    def weights(i: int, agent: int) -> dict[int, float]:
        return {order[agent].index(goal): weight for goal, weight in offers(graph.states[i], agent)}

    def aggregate(i: int, attainable: dict[int, list[float]]) -> float:
        given = {agent: np.array([weights(i, agent).get(k, 0.0) for k in range(len(order[agent]))]) for agent in order}
        return reward({agent: np.array(values) for agent, values in attainable.items()}, given)

    human = oracle_of(graph, order, offered=lambda state, agent: [goal for goal, _ in offers(state, agent)])
    options["human_gamma"] = options.pop("people_gamma", 1.0)
    expected = RobotInduction(human, weights, aggregate, **options)
    assert found.robots == tuple(expected.robots)
    assert found.values.tolist() == expected.values
    assert found.policy.tolist() == expected.policies
    for agent in people:
        assert found.attainable[agent].T.tolist() == expected.attainable[agent]


ROBOTS: dict[str, tuple[Any, list[int], dict[str, Any]]] = {
    "the second agent": ({0: GOALS}, [0], {}),
    "the first agent": ({1: GOALS}, [1], {}),
    "other discounts": ({0: GOALS}, [0], {"gamma": 0.8, "people_gamma": 0.95, "terminal": -1.5}),
    "a power law": ({1: GOALS}, [1], {"power": True, "terminal": -1e-10}),
    "the best of a power law": ({1: GOALS}, [1], {"power": True, "terminal": -1e-10, "beta": math.inf}),
    "goals by state": (generate, [0], {}),
}


@pytest.mark.parametrize("case", ROBOTS)
def test_robots_are_as_the_oracle_says(graph: Graph, case: str) -> None:
    goals, people, options = ROBOTS[case]
    check_robots(graph, goals, people, **options)


def test_several_people_or_robots_act_together() -> None:
    with build_graph(Diamonds(agents=3, depth=6), workers=1) as graph:
        check_robots(graph, generate, [0, 2], beta=math.inf)
        check_robots(graph, {2: GOALS, 1: GOALS}, [2, 1])
        check_robots(graph, generate, [1])


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


DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "planning.md"


def test_the_documents_examples_run(capsys: Any) -> None:
    """The second example continues the first one, inside its `with` block."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    plan = next(block for block in blocks if "class Corridor" in block)
    assist = next(block for block in blocks if "robot_induction" in block)
    names: dict[str, Any] = {"assist": assist}
    exec(plan.replace("    print(", "    exec(assist)\n    print("), names)
    states, value, *policy = capsys.readouterr().out.replace("[", "").replace("]", "").split()
    assert int(states) == len(names["graph"].states) > 50
    assert 0 < float(value) < 1 and abs(sum(map(float, policy)) - 1) < 1e-6
    robot = names["robot"]
    assert robot.policy.shape == (int(states), 3) and robot.attainable[0].max() > float(value)
