"""A robot that does not know what a person wants, and gives her more options: exact planning in a small world.

    python examples/empo_planning.py

A person walks along a corridor with a door in its middle, which is open while the robot stands on its lever, at the end
of the robot's room. Her goal is one of the corridor's ends. The robot maximizes her power, the sum over goals of the
squared probability that she attains it (Heitzig & Potham 2025, arXiv:2508.00159). docs/planning.md explains the calls.
"""

from types import SimpleNamespace
from typing import Any

from marlcore.planning import backward_induction, build_graph, robot_induction

CELLS, DOOR, LEVER, STEPS = 7, 3, 2, 9
SLIP = 0.1  # a step of the person fails so often
PERSON, ROBOT = 0, 1
GOALS = {"left end": 0, "right end": CELLS - 1}
MOVES = ("left", "stay", "right")

State = tuple[int, int, int]  # step, the person's cell, the robot's place


class House:
    """A world model: what docs/planning.md asks of one."""

    agents = ("person", "robot")
    action_space = SimpleNamespace(n=len(MOVES))

    def reset(self) -> None:
        self.set_state((0, 1, 0))

    def get_state(self) -> State:
        return self.state

    def set_state(self, state: State) -> None:
        self.state = state

    def transition_probabilities(self, state: State, profile: tuple[int, ...]) -> list[tuple[float, State]] | None:
        step, person, robot = state
        if step == STEPS:
            return None
        robot = min(max(robot + profile[ROBOT] - 1, 0), LEVER)
        after = min(max(person + profile[PERSON] - 1, 0), CELLS - 1)
        if after == DOOR and robot != LEVER:
            after = person
        return [(1 - SLIP, (step + 1, after, robot)), (SLIP, (step + 1, person, robot))]


def power(attainable: dict[int, Any], weights: dict[int, Any]) -> Any:
    """The robot's reward in n states, of attainable [n, goals]."""
    return (attainable[PERSON] ** 2).sum(1)


def drawn(state: State) -> str:
    _, person, robot = state
    door = " " if robot == LEVER else "|"
    corridor = "".join("P" if cell == person else door if cell == DOOR else "." for cell in range(CELLS))
    return f"{corridor}   {''.join('R' if place == robot else '_.'[place < LEVER] for place in range(LEVER + 1))}"


def main() -> float:
    goals = [lambda state, cell=cell: state[1] == cell for cell in GOALS.values()]
    with (
        build_graph(House(), workers=1, progress=False) as graph,
        backward_induction(graph, {PERSON: goals}, beta=20.0, gamma=0.95, workers=1) as people,
    ):
        robot = robot_induction(graph, people, power, beta=50.0, gamma=0.95, people_gamma=0.95, workers=1)
        start = graph.index[(0, 1, 0)]
        print(f"{len(graph)} states")
        for number, goal in enumerate(GOALS):
            alone, helped = people[PERSON].values[start, number], robot.attainable[PERSON][start, number]
            print(f"{goal}: attained with {alone:.2f} beside a random robot, with {helped:.2f} beside this one")
        state, goal = (0, 1, 0), 1  # the robot does not know the goal, and the person does not slip
        while state[0] < STEPS and state[1] != GOALS["right end"]:
            i = graph.index[state]
            moves = int(people[PERSON].policy[i, goal].argmax()), int(robot.policy[i].argmax())
            print(f"{drawn(state)}   person {MOVES[moves[PERSON]]}, robot {MOVES[moves[ROBOT]]}")
            state = House().transition_probabilities(state, moves)[0][1]
        print(drawn(state))
    return float(helped)


if __name__ == "__main__":
    main()
