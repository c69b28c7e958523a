"""What backward induction refuses: one line that names the argument, what was expected and what came."""

import math
from collections.abc import Callable, Iterator
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
PROFILES = "believed: expected profiles of 2 actions below 3, got"
DURATIONS = f"durations: expected 4 finite numbers of at least 0 for profile (0, 0) {FIRST}, got"
REFUSED: dict[str, tuple[Callable[..., None], dict[str, Any], str]] = {
    "no goal": (plan, {"goals": {0: []}}, "goals: expected at least one goal of agent 0, got none"),
    "no agent": (plan, {"goals": {}}, "agents: expected at least one"),
    "agent twice": (plan, {"agents": [0, 0]}, "agents: expected at least one, and each once, got [0, 0]"),
    "agent out of range": (plan, {"agents": [2]}, "agents: expected agents from 0 to 1, got 2"),
    "negative agent": (plan, {"goals": {-1: [goal]}}, "agents: expected agents from 0 to 1, got -1"),
    "agent without goals": (plan, {"agents": [1]}, "goals: expected goals of agent 1, got those of [0]"),
    "robot out of range": (plan, {"robots": [2]}, "robots: expected agents from 0 to 1, got 2"),
    "robot twice": (plan, {"robots": [1, 1]}, "robots: expected each agent once, got [1, 1]"),
    "robot with goals": (plan, {"robots": [0]}, "agents: expected agents that are no robots, got 0"),
    "negative beta": (plan, {"beta": -1.0}, "beta: expected a number of at least 0, got -1.0"),
    "beta no number": (plan, {"beta": math.nan}, "beta: expected a number of at least 0, got nan"),
    "beta a text": (plan, {"beta": "1"}, "beta: expected a number of at least 0, got '1'"),
    "gamma a text": (plan, {"gamma": "a"}, "gamma: expected a number in (0, 1], got 'a'"),
    "rho a bool": (plan, {"rho": True}, "rho: expected a finite number of at least 0, got True"),
    "one robot": (plan, {"robots": 1}, "robots: expected a sequence of agents, got 1"),
    "one agent": (plan, {"agents": 0}, "agents: expected a sequence of agents, got 0"),
    "one goal": (plan, {"goals": {0: goal}}, "goals: expected a sequence of goals of agent 0, got "),
    "gamma 0": (plan, {"gamma": 0.0}, "gamma: expected a number in (0, 1], got 0.0"),
    "gamma above 1": (plan, {"gamma": 1.5}, "gamma: expected a number in (0, 1], got 1.5"),
    "negative rho": (plan, {"rho": -0.1}, "rho: expected a finite number of at least 0, got -0.1"),
    "both": (plan, {"rho": 0.1, "gamma": 0.9}, "expected gamma or rho, got both"),
    "dtype": (plan, {"dtype": "int8"}, "dtype: expected one of float64, float32, float16, got 'int8'"),
    "policies": (plan, {"policy_dtype": "float16"}, "policy_dtype: expected float64 or float32, got 'float16'"),
    "sums": (plan, {"sums": "float32"}, "sums: expected float64 or float16, got 'float32'"),
    "workers": (plan, {"workers": 0}, "workers: expected an integer of at least 1, got 0"),
    "generator without agents": (plan, {"goals": nothing}, "agents: expected the agents whose goals"),
    "generator of nothing": (
        plan, {"goals": nothing, "agents": [1]},
        "goals: expected at least one goal of agent 1 in state (2, (0, 0)), got none",
    ),
    "negative weight": (
        plan, {"goals": lambda state, agent: [(bool, -1.0)], "agents": [1]},
        f"goals: expected a finite weight of at least 0 of goal <class 'bool'> {FIRST}, got -1.0",
    ),
    "negative duration": (plan, lasting(lambda outcomes: [-1.0] * outcomes), f"{DURATIONS} [-1.0, -1.0,"),
    "too few durations": (plan, lasting(lambda outcomes: [1.0]), f"{DURATIONS} [1.0]"),
    "belief with sum 1/2": (
        plan, believing((0.5, (0, 1))),
        f"believed: expected the sum 1, got 0.5 of the profiles [(0, 1)] {FIRST}, for action 0",
    ),
    "negative belief": (
        plan, believing((-0.5, (0, 1)), (1.5, (0, 2))),
        f"believed: expected probabilities of at least 0, got -0.5 of profile (0, 1) {FIRST}",
    ),
    "belief in no action": (plan, believing((1.0, (0, 7))), f"{PROFILES} (0, 7) in state"),
    "belief in half an action": (plan, believing((1.0, (0, 0.5))), f"{PROFILES} (0, 0.5) in state"),
    "belief in a short profile": (plan, believing((1.0, (0,))), f"{PROFILES} (0,) in state"),
    "robots' beta": (assist, {"beta": -1.0}, "beta: expected a number of at least 0, got -1.0"),
    "robots' gamma": (assist, {"gamma": 2.0}, "gamma: expected a number in (0, 1], got 2.0"),
    "positive values": (assist, {"power": True}, "power: expected negative values of the robots, got a Q"),
    "too few rewards": (assist, rewarding(lambda values: 1.0), " numbers, got ()"),
    "no number": (assist, rewarding(lambda values: values * math.nan), "aggregate: expected finite numbers, got nan"),
    "infinite rewards": (
        assist, rewarding(lambda values: values - math.inf), "aggregate: expected finite numbers, got -inf in state (",
    ),
    "terminal no number": (assist, {"terminal": math.nan}, "terminal: expected a finite number, got nan"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(graph: Graph, case: str) -> None:
    door, options, says = REFUSED[case]
    check_refused(lambda: door(graph, **options), ValueError, says)


def test_a_belief_must_be_possible() -> None:
    table = {0: {(0, 0): [(1.0, 1)], (1, 0): [(1.0, 2)]}, 1: {(0, 0): [(1.0, 2)]}}
    says = "believed: no profile that agent 0 believes in is possible in state 1"
    with build_graph(Table(2, 2, table), workers=1) as graph:
        believed = {"believed": lambda state, agent, action: [(1.0, (0, int(state == 1)))]}
        check_refused(lambda: plan(graph, goals={0: [bool]}, **believed), ValueError, says)


def test_other_graphs_and_people_are_refused(graph: Graph) -> None:
    with (
        build_graph(Slippery(), probabilities=False) as bare,
        build_graph(Slippery(horizon=2)) as other,
        backward_induction(graph, {0: [goal], 1: [goal]}) as everybody,
        backward_induction(other, {0: [goal]}) as people,
    ):
        for call, says in (
            (lambda: plan(bare), "graph: expected one with probabilities"),
            (lambda: robot_induction(graph, everybody, len), "people: expected at least one agent to be a robot"),
            (lambda: robot_induction(graph, people, len), " states, got them in another graph's"),
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
    """A function that fails in a late state."""

    def fails_late(state: Any, *others: Any) -> Any:
        if state[0] == 3:
            raise RuntimeError("no idea")
        return value

    return fails_late


def generating(*pairs: Any) -> dict[str, Any]:
    return {"goals": lambda state, agent: [*pairs], "agents": [0]}


GOAL, GENERATOR, BELIEF = "goal <function late.<locals>.fails_late at ", "the goal generator of agent 0", "what agent 0"
DURATION, LATE, TEXT = "the function of durations", "RuntimeError: no idea", "could not convert"
FAILING: dict[str, tuple[dict[str, Any], str, int, str]] = {  # by case: options, what fails, in which step, and why
    "goal": ({"goals": {0: [late(False)]}}, GOAL, 3, LATE),
    "goals": ({"goals": late([(goal, 1.0)]), "agents": [0]}, GENERATOR, 3, LATE),
    "belief": ({"believed": late([(1.0, (0, 0))])}, BELIEF, 3, LATE),
    "durations": ({"durations": late([1.0] * 4), "rho": 0.1}, DURATION, 3, LATE),
    "weight a text": (generating((goal, "much")), GENERATOR, 0, TEXT),
    "weight None": (generating((goal, None)), GENERATOR, 0, "NoneType"),
    "goal a list": (generating(([], 1.0)), GENERATOR, 0, "unhashable"),
    "no weight": (generating(goal), GENERATOR, 0, "unpack"),
    "belief a text": (believing(("much", (0, 0))), BELIEF, 0, TEXT),
    "duration a text": ({"durations": lambda s, p, o: ["long"], "rho": 0.1}, DURATION, 0, TEXT),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_function_that_fails_is_named_with_the_state(graph: Graph, case: str) -> None:
    options, what, step, why = FAILING[case]
    with pytest.raises(CallbackFailed) as caught:
        plan(graph, **options)
    assert caught.value.state[0] == step and isinstance(caught.value.__cause__, Exception)
    assert why in str(caught.value) and "Traceback" in caught.value.traceback
    message = str(caught.value)
    assert message.startswith(what) and f" failed in state ({step}, " in message and "), in this process" in message
