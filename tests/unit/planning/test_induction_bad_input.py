"""Errors of backward induction: one line names the argument, the expected value and the given one."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from refused import check_refused, each_bad
from world_models import Slippery, Table

from marlcore import CallbackFailed
from marlcore.planning import Graph, backward_induction, build_graph, robot_induction


def goal(state: Any) -> bool:
    return state[1] == (3, 3)


@pytest.fixture(scope="module")
def graph() -> Iterator[Graph]:
    with build_graph(Slippery(), workers=1) as built:
        yield built


def plan(graph: Graph, **options: Any) -> None:
    backward_induction(graph, **{"goals": {0: [goal]}, "workers": 1, **options})


def assist(graph: Graph, **options: Any) -> None:
    with backward_induction(graph, {0: [goal]}) as people:
        robot_induction(graph, people, **{"aggregate": lambda values, weights: values[0][:, 0], **options})


def nothing(state: Any, agent: int) -> list[Any]:
    return [] if state[0] == 2 else [(goal, 1.0)]


def rewarding(reward: Callable[[Any], Any]) -> dict[str, Any]:
    return {"aggregate": lambda values, weights: reward(values[0][:, 0])}


def believing(*pairs: Any) -> dict[str, Any]:
    return {"believed": lambda state, agent, action: [*pairs]}


def lasting(durations: Callable[[int], list[float]]) -> dict[str, Any]:
    return {"gamma": 0.9, "durations": lambda state, profile, outcomes: durations(len(outcomes))}


FIRST = "in state (0, (0, 0))"
PROFILES = "believed: expected profiles of 2 actions from 0 to 2, got"
DURATIONS = f"durations: expected 4 finite numbers of at least 0 for profile (0, 0) {FIRST}, got"
NUMBER, GAMMA = "a number of at least 0", "a number in (0, 1]"
EACH: list[tuple[Callable[..., None], str, dict[str, Any]]] = [  # bad values of one argument
    (plan, NUMBER, {"beta": [-1.0, math.nan, "1"]}),
    (plan, GAMMA, {"gamma": ["a", 0.0, 1.5]}),
    (plan, "a finite number of at least 0", {"rho": [True, -0.1]}),
    (plan, "a sequence of agents", {"robots": [1], "agents": [0]}),
    (plan, "float64, float32 or float16", {"dtype": ["int8"]}),
    (plan, "float64 or float32", {"policy_dtype": ["float16"]}),
    (plan, "float64 or float16", {"sums": ["float32"]}),
    (plan, "an integer of at least 1", {"workers": [0]}),
    (assist, NUMBER, {"beta": [-1.0]}),
    (assist, GAMMA, {"gamma": [2.0]}),
    (assist, "a finite number", {"terminal": [math.nan]}),
]
REFUSED: list[tuple[Callable[..., None], dict[str, Any], str]] = [
    (plan, {"goals": {0: []}}, "goals: expected at least one goal of agent 0, got none"),
    (plan, {"goals": {}}, "agents: expected at least one agent"),
    (plan, {"agents": [0, 0]}, "agents: expected each agent once, got [0, 0]"),
    (plan, {"agents": [2]}, "agents: expected agents from 0 to 1, got 2"),
    (plan, {"goals": {-1: [goal]}}, "agents: expected agents from 0 to 1, got -1"),
    (plan, {"agents": [1]}, "goals: expected goals of agent 1, got goals of the agents [0]"),
    (plan, {"robots": [2]}, "robots: expected agents from 0 to 1, got 2"),
    (plan, {"robots": [1, 1]}, "robots: expected each agent once, got [1, 1]"),
    (plan, {"robots": [0]}, "agents: expected agents that are no robots, got 0"),
    (plan, {"goals": {0: goal}}, "goals: expected a sequence of goals of agent 0, got "),
    (plan, {"rho": 0.1, "gamma": 0.9}, "expected gamma or rho, got both"),
    (plan, {"goals": nothing}, "agents: expected the agents whose goals"),
    (plan, {"goals": nothing, "agents": [1]},
        "goals: expected at least one goal of agent 1 in state (2, (0, 0)), got none"),
    (plan, {"goals": lambda state, agent: [(bool, -1.0)], "agents": [1]},
        f"goals: expected a finite weight of at least 0 of goal <class 'bool'> {FIRST}, got -1.0"),
    (plan, lasting(lambda outcomes: [-1.0] * outcomes), f"{DURATIONS} [-1.0, -1.0,"),
    (plan, lasting(lambda outcomes: [1.0]), f"{DURATIONS} [1.0]"),
    (plan, believing((0.5, (0, 1))),
        f"believed: expected probabilities that sum to 1, got 0.5 for [(0, 1)] {FIRST}, for action 0"),
    (plan, believing((-0.5, (0, 1)), (1.5, (0, 2))),
        f"believed: expected probabilities of at least 0, got -0.5 for profile (0, 1) {FIRST}"),
    *((plan, believing((1.0, profile)), f"{PROFILES} {profile} in state") for profile in ((0, 7), (0, 0.5), (0,))),
    (assist, {"power": True}, "power: expected the robots' Q to be negative, got a Q"),
    (assist, rewarding(lambda values: 1.0), "), got shape ()"),
    (assist, rewarding(lambda values: values * math.nan), "aggregate: expected finite numbers, got nan"),
    (assist, rewarding(lambda values: values - math.inf),
        "aggregate: expected finite numbers, got -inf in state ("),
]  # fmt: skip


def test_refuses(graph: Graph, subtests: pytest.Subtests) -> None:
    rows = [row for door, expected, values in EACH for row in each_bad(partial(door, graph), expected, **values)]
    rows += [(partial(door, graph, **options), ValueError, says) for door, options, says in REFUSED]
    for call, error, says in rows:
        with subtests.test(says):
            check_refused(call, error, says)


def test_a_belief_must_be_possible() -> None:
    table = {0: {(0, 0): [(1.0, 1)], (1, 0): [(1.0, 2)]}, 1: {(0, 0): [(1.0, 2)]}}
    says = "believed: no profile that agent 0 believes in is possible in state 1"
    with build_graph(Table(2, 2, table), workers=1) as graph:
        believed = {"believed": lambda state, agent, action: [(1.0, (0, int(state == 1)))]}
        check_refused(lambda: plan(graph, goals={0: [bool]}, **believed), ValueError, says)


PATH = {0: {(0, 0): [(1.0, 1)]}}


def test_other_graphs_and_people_are_refused(graph: Graph) -> None:
    with (
        build_graph(Slippery(), probabilities=False) as bare,
        build_graph(Slippery(horizon=2)) as other,
        backward_induction(graph, {0: [goal], 1: [goal]}) as everybody,
        backward_induction(other, {0: [goal]}) as people,
        build_graph(Table(2, 2, PATH), workers=1) as small,
        build_graph(Table(2, 3, PATH), workers=1) as more_actions,
        build_graph(Table(3, 2, {0: {(0, 0, 0): [(1.0, 1)]}}), workers=1) as more_agents,
        backward_induction(small, {0: [bool]}) as few,
        backward_induction(more_agents, {2: [bool]}) as third,
    ):
        for call, says in (
            (lambda: plan(bare), "graph: expected a graph with probabilities"),
            (lambda: robot_induction(graph, everybody, len), "people: expected at least one agent to be a robot"),
            (lambda: robot_induction(graph, people, len), " states and 3 actions, of agents below 2, got another gra"),
            (lambda: robot_induction(more_actions, few, len), "policies in 2 states and 3 actions, of agents below 2"),
            (lambda: robot_induction(small, third, len), "policies in 2 states and 2 actions, of agents below 2"),
        ):
            check_refused(call, ValueError, says)


class Odd:
    """A goal that cannot be pickled."""

    def __call__(self, state: Any) -> bool:
        return False

    def __reduce__(self) -> Any:
        raise RuntimeError("it holds a lock")


def test_goals_that_cannot_be_pickled_are_refused(graph: Graph) -> None:
    says = "goals: expected something that can be pickled, got RuntimeError: it holds a lock"
    check_refused(lambda: plan(graph, goals={0: [Odd()]}), TypeError, says)


def late(value: Any) -> Any:
    """Returns a function that fails in late states, and returns `value` in the others."""

    def fails_late(state: Any, *others: Any) -> Any:
        if state[0] == 3:
            raise RuntimeError("no idea")
        return value

    return fails_late


def generating(*pairs: Any) -> dict[str, Any]:
    return {"goals": lambda state, agent: [*pairs], "agents": [0]}


GOAL, GENERATOR, BELIEF = "goal <function late.<locals>.fails_late at ", "the goal generator of agent 0", "what agent 0"
DURATION, LATE, TEXT = "the function of durations", "RuntimeError: no idea", "could not convert"
FAILING: list[tuple[dict[str, Any], str, int, str]] = [  # options, what fails, in which step, and why
    ({"goals": {0: [late(False)]}}, GOAL, 3, LATE),
    ({"goals": late([(goal, 1.0)]), "agents": [0]}, GENERATOR, 3, LATE),
    ({"believed": late([(1.0, (0, 0))])}, BELIEF, 3, LATE),
    ({"durations": late([1.0] * 4), "rho": 0.1}, DURATION, 3, LATE),
    (generating((goal, "much")), GENERATOR, 0, TEXT),
    (generating((goal, None)), GENERATOR, 0, "NoneType"),
    (generating(([], 1.0)), GENERATOR, 0, "unhashable"),
    (generating(goal), GENERATOR, 0, "unpack"),
    (believing(("much", (0, 0))), BELIEF, 0, TEXT),
    ({"durations": lambda s, p, o: ["long"], "rho": 0.1}, DURATION, 0, TEXT),
]


@pytest.mark.parametrize(("options", "what", "step", "why"), FAILING)
def test_a_function_that_fails_is_named_with_the_state(
    graph: Graph, options: dict[str, Any], what: str, step: int, why: str
) -> None:
    with pytest.raises(CallbackFailed) as caught:
        plan(graph, **options)
    assert caught.value.state[0] == step and isinstance(caught.value.__cause__, Exception)
    assert why in str(caught.value) and "Traceback" in caught.value.traceback
    message = str(caught.value)
    assert message.startswith(what) and f" failed in state ({step}, " in message and "), in this process" in message
