"""What backward induction refuses: one line that names the argument, what was expected and what came."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from refused import check_refused
from world_models import Slippery, Table

from marlcore import CallbackFailed
from marlcore.planning import Graph, backward_induction, build_graph, robot_induction


def goal(state: Any) -> bool:
    return state[1] == (3, 3)


@pytest.fixture(scope="module")
def graph() -> Iterator[Graph]:
    with build_graph(Slippery(), workers=1) as one:
        yield one


def nothing(state: Any, agent: int) -> list[Any]:
    return [] if state[0] == 2 else [(goal, 1.0)]


OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "no goal": ({"goals": {0: []}}, "goals: expected at least one goal of agent 0, got none"),
    "no agent": ({"goals": {}}, "agents: expected at least one"),
    "agent twice": ({"agents": [0, 0]}, "agents: expected at least one, and each once"),
    "agent out of range": ({"agents": [2]}, "agents: expected agents from 0 to 1, got 2"),
    "negative agent": ({"goals": {-1: [goal]}}, "agents: expected agents from 0 to 1, got -1"),
    "agent without goals": ({"agents": [1]}, "goals: expected goals of agent 1"),
    "robot out of range": ({"robots": [2]}, "robots: expected agents from 0 to 1, got 2"),
    "robot twice": ({"robots": [1, 1]}, "robots: expected each agent once"),
    "robot with goals": ({"robots": [0]}, "agents: expected agents that are no robots, got 0"),
    "negative beta": ({"beta": -1.0}, "beta: expected a number of at least 0, got -1.0"),
    "beta no number": ({"beta": math.nan}, "beta: expected a number of at least 0, got nan"),
    "beta a text": ({"beta": "1"}, "beta: expected a number of at least 0, got '1'"),
    "gamma a text": ({"gamma": "a"}, "gamma: expected a number above 0 and up to 1, got 'a'"),
    "rho a bool": ({"rho": True}, "rho: expected a finite number of at least 0, got True"),
    "one robot": ({"robots": 1}, "robots: expected a sequence of agents, got 1"),
    "one agent": ({"agents": 0}, "agents: expected a sequence of agents, got 0"),
    "one goal": ({"goals": {0: goal}}, "goals: expected a sequence of goals of agent 0, got "),
    "gamma 0": ({"gamma": 0.0}, "gamma: expected a number above 0 and up to 1, got 0.0"),
    "gamma above 1": ({"gamma": 1.5}, "gamma: expected a number above 0 and up to 1, got 1.5"),
    "negative rho": ({"rho": -0.1}, "rho: expected a finite number of at least 0, got -0.1"),
    "both": ({"rho": 0.1, "gamma": 0.9}, "expected gamma or rho, got both"),
    "dtype": ({"dtype": "int8"}, "dtype: expected one of float64, float32, float16, got 'int8'"),
    "workers": ({"workers": 0}, "workers: expected an integer of at least 1, got 0"),
    "generator without agents": ({"goals": nothing}, "agents: expected the agents whose goals"),
    "generator of nothing": (
        {"goals": nothing, "agents": [1]},
        r"goals: expected at least one goal of agent 1 in state \(2, .*\), got none",
    ),
    "negative weight": (
        {"goals": lambda state, agent: [(goal, -1.0)], "agents": [1]},
        r"goals: expected a finite weight of at least 0 of goal .* in state \(0, \(0, 0\)\), got -1.0",
    ),
    "negative duration": (
        {"gamma": 0.9, "durations": lambda state, profile, outcomes: [-1.0] * len(outcomes)},
        r"durations: expected 4 finite numbers of at least 0 for profile \(0, 0\) in state \(0, \(0, 0\)\), got",
    ),
    "too few durations": (
        {"gamma": 0.9, "durations": lambda state, profile, outcomes: [1.0]},
        r"durations: expected 4 finite numbers .* got \[1.0\]",
    ),
    "belief with sum 1/2": (
        {"believed": lambda state, agent, action: [(0.5, (0, 1))]},
        r"believed: expected the sum 1, got 0.5 of the profiles \[\(0, 1\)\] in state \(0, \(0, 0\)\), for action 0",
    ),
    "negative belief": (
        {"believed": lambda state, agent, action: [(-0.5, (0, 1)), (1.5, (0, 2))]},
        r"believed: expected probabilities of at least 0, got -0.5 of profile \(0, 1\) in state \(0, \(0, 0\)\)",
    ),
    "belief in no action": (
        {"believed": lambda state, agent, action: [(1.0, (0, 7))]},
        r"believed: expected profiles of 2 actions below 3, got \(0, 7\) in state",
    ),
    "belief in half an action": (
        {"believed": lambda state, agent, action: [(1.0, (0, 0.5))]},
        r"believed: expected profiles of 2 actions below 3, got \(0, 0.5\) in state",
    ),
    "belief in a short profile": (
        {"believed": lambda state, agent, action: [(1.0, (0,))]},
        r"believed: expected profiles of 2 actions below 3, got \(0,\) in state",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_a_bad_argument_is_refused_by_name(graph: Graph, name: str) -> None:
    options, message = OPTIONS[name]
    with pytest.raises(ValueError, match=message) as caught:
        backward_induction(graph, **{"goals": {0: [goal]}, "workers": 1, **options})
    assert "\n" not in str(caught.value)


def test_a_belief_must_be_possible() -> None:
    table = {0: {(0, 0): [(1.0, 1)], (1, 0): [(1.0, 2)]}, 1: {(0, 0): [(1.0, 2)]}}
    with (
        build_graph(Table(2, 2, table), workers=1) as graph,
        pytest.raises(ValueError, match="believed: no profile that agent 0 believes in is possible in state 1"),
    ):
        backward_induction(graph, {0: [bool]}, believed=lambda s, i, a: [(1.0, (0, int(s == 1)))])


def test_a_graph_without_probabilities_is_refused() -> None:
    with (
        build_graph(Slippery(), probabilities=False) as graph,
        pytest.raises(ValueError, match="graph: expected one with probabilities"),
    ):
        backward_induction(graph, {0: [goal]})


class Odd:
    """A goal that cannot be pickled."""

    def __call__(self, state: Any) -> bool:
        return False

    def __reduce__(self) -> Any:
        raise RuntimeError("it holds a lock")


def test_goals_that_cannot_be_pickled_are_refused(graph: Graph) -> None:
    says = "goals: expected something that can be pickled, got RuntimeError: it holds a lock"
    check_refused(lambda: backward_induction(graph, {0: [Odd()]}, workers=1), TypeError, says)


def late(value: Any) -> Any:
    """A function that fails in a late state."""

    def fails_late(state: Any, *others: Any) -> Any:
        if state[0] == 3:
            raise RuntimeError("no idea")
        return value

    return fails_late


# What raises, or returns something else than it should; in which state, and why
FAILING: dict[str, tuple[dict[str, Any], str, int, str]] = {
    "goal": ({"goals": {0: [late(False)]}}, "goal <function .*fails_late at .*>", 3, "RuntimeError: no idea"),
    "goals": (
        {"goals": late([(goal, 1.0)]), "agents": [0]}, "the goal generator of agent 0", 3, "RuntimeError: no idea",
    ),
    "belief": ({"believed": late([(1.0, (0, 0))])}, "what agent 0 believes", 3, "RuntimeError: no idea"),
    "durations": (
        {"durations": late([1.0] * 4), "rho": 0.1}, "the function of durations", 3, "RuntimeError: no idea",
    ),
    "weight a text": ({"goals": lambda s, i: [(goal, "much")], "agents": [0]}, "the goal gen", 0, "could not convert"),
    "weight None": ({"goals": lambda s, i: [(goal, None)], "agents": [0]}, "the goal generator", 0, "NoneType"),
    "goal a list": ({"goals": lambda s, i: [([], 1.0)], "agents": [0]}, "the goal generator", 0, "unhashable"),
    "no weight": ({"goals": lambda s, i: [goal], "agents": [0]}, "the goal generator", 0, "unpack"),
    "belief a text": (
        {"believed": lambda s, i, a: [("much", (0, 0))]}, "what agent 0 believes", 0, "could not convert",
    ),
    "duration a text": (
        {"durations": lambda s, p, o: ["long"], "rho": 0.1}, "the function of durations", 0, "could not convert",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILING)
def test_a_function_that_fails_is_named_with_the_state(graph: Graph, name: str) -> None:
    options, what, step, why = FAILING[name]
    with pytest.raises(CallbackFailed, match=rf"{what}.* failed in state \({step}, .*\), in this process") as caught:
        backward_induction(graph, **{"goals": {0: [goal]}, "workers": 1, **options})
    assert caught.value.state[0] == step
    assert why in str(caught.value) and "Traceback" in caught.value.traceback
    assert isinstance(caught.value.__cause__, Exception)


ROBOT_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "negative beta": ({"beta": -1.0}, "beta: expected a number of at least 0, got -1.0"),
    "gamma": ({"gamma": 2.0}, "gamma: expected a number above 0 and up to 1, got 2.0"),
    "positive values": ({"power": True}, "power: expected negative values of the robots, got a Q"),
    "too few rewards": ({"aggregate": lambda values, weights: 1.0}, r"aggregate: expected \(\d+,\) numbers, got \(\)"),
    "no number": ({"aggregate": lambda values, weights: values[0][:, 0] * math.nan}, "finite numbers, got nan"),
    "infinite rewards": (
        {"aggregate": lambda values, weights: values[0][:, 0] - math.inf},
        r"aggregate: expected finite numbers, got -inf in state \(",
    ),
    "terminal no number": ({"terminal": math.nan}, "terminal: expected a finite number, got nan"),
}  # fmt: skip


@pytest.mark.parametrize("name", ROBOT_OPTIONS)
def test_a_bad_argument_for_robots_is_refused_by_name(graph: Graph, name: str) -> None:
    options, message = ROBOT_OPTIONS[name]
    with backward_induction(graph, {0: [goal]}) as people, pytest.raises(ValueError, match=message):
        robot_induction(graph, people, **{"aggregate": lambda values, weights: values[0][:, 0], **options})


def test_people_of_another_graph_or_without_robots_are_refused(graph: Graph) -> None:
    def assist(people: Any) -> None:
        robot_induction(graph, people, lambda values, weights: values[0][:, 0])

    with (
        build_graph(Slippery(horizon=2)) as other,
        backward_induction(graph, {0: [goal], 1: [goal]}) as people,
        backward_induction(other, {0: [goal]}) as few,
    ):
        check_refused(lambda: assist(people), ValueError, "people: expected at least one agent to be a robot")
        check_refused(lambda: assist(few), ValueError, " states, got them in another graph's")
