"""Workers evaluate slow functions of the caller, with the same results and the same errors."""

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from world_models import Slippery

from marlcore import CallbackFailed
from marlcore.planning import Graph, Policies, backward_induction, batches, build_graph


@pytest.fixture(scope="module")
def graph() -> Iterator[Graph]:
    with build_graph(Slippery(horizon=12), workers=1) as one:
        yield one


@dataclass(frozen=True)
class Log:
    """A file to which each process that evaluates something adds its pid."""

    path: Path
    owner: int

    def enter(self) -> None:
        """Adds this process's pid; the owner is slow until another process has come."""
        with self.path.open("a") as file:
            file.write(f"{os.getpid()}\n")
        sleep(0.05 if {*self.pids} == {self.owner} else 0.001)

    @property
    def pids(self) -> list[int]:
        return [*map(int, self.path.read_text().split())]


@dataclass(frozen=True)
class Slow:
    """A goal that notes which process evaluates it."""

    log: Log
    fails: tuple[Any, ...] = ()  # states that it raises for,
    elsewhere: bool = False  # only in another process than the owner
    kills: tuple[Any, ...] = ()  # states in which it kills its process, once, never the owner

    def __call__(self, state: Any) -> bool:
        is_owner = os.getpid() == self.log.owner
        self.log.enter()
        if state in self.fails and not (self.elsewhere and is_owner):
            raise RuntimeError(f"cannot judge {state}")
        mark = self.log.path.with_suffix(".killed")
        if state in self.kills and not is_owner and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return at_2(state)


def slow(tmp_path: Path, **options: Any) -> Slow:
    return Slow(Log(tmp_path / "log", os.getpid()), **options)


def at_2(state: Any) -> bool:
    return bool(state[1][0] == 2)


def bytes_of(policies: Policies) -> tuple[bytes, bytes]:
    return policies[0].values.tobytes(), policies[0].policy.tobytes()


def planned(graph: Graph, goal: Any, workers: int) -> tuple[bytes, bytes]:
    with backward_induction(graph, {0: [goal]}, workers=workers) as found:
        return bytes_of(found)


@pytest.mark.usefixtures("shared_fork_server")
@pytest.mark.parametrize("dies", [pytest.param(False, marks=pytest.mark.long), True])
def test_workers_evaluate_what_takes_long(graph: Graph, tmp_path: Path, dies: bool) -> None:
    """Two workers help or, if one dies, that worker and its successor."""
    goal, others = slow(tmp_path, kills=tuple(graph.states[20:]) if dies else ()), 0
    while others < 2:  # one may come only when the other has done everything
        for file in tmp_path.iterdir():
            file.unlink()
        assert planned(graph, goal, workers=2 if dies else 3) == planned(graph, at_2, workers=1)
        others = len({*goal.log.pids} - {os.getpid()})


def evaluated_by(goal: Slow, graph: Graph, monkeypatch: pytest.MonkeyPatch, seconds: float) -> set[int]:
    """Returns the pids that evaluated; this process's clock advances by `seconds` whenever it is read."""
    ticks = count(step=seconds)
    with monkeypatch.context() as patch:
        patch.setattr(batches, "perf_counter", lambda: next(ticks))
        planned(graph, goal, workers=3)
    return {*goal.log.pids}


def test_what_is_quick_is_evaluated_here(
    graph: Graph, tmp_path: Path, python_is: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_is("/nowhere/python")  # no worker could start
    goal = Slow(Log(tmp_path / "log", owner=0))
    assert evaluated_by(goal, graph, monkeypatch, 1e-6) == {os.getpid()}
    with pytest.raises(OSError, match="nowhere"):
        evaluated_by(goal, graph, monkeypatch, 1.0)


class Locked:
    """A belief that cannot be pickled, and takes `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._lock = threading.Lock()
        self._seconds = seconds

    def __call__(self, state: Any, agent: int, action: int) -> list[tuple[float, tuple[int, int]]]:
        with self._lock:
            sleep(self._seconds)
        return [(1.0, (0, 0))]


@pytest.mark.long
def test_what_cannot_be_pickled_is_evaluated_here(graph: Graph) -> None:
    policies = [
        backward_induction(graph, {0: [at_2]}, believed=Locked(seconds), workers=workers)
        for workers, seconds in ((1, 0.0), (2, 0.004))
    ]
    assert bytes_of(policies[0]) == bytes_of(policies[1])


@pytest.mark.usefixtures("shared_fork_server")
def test_a_workers_exception_is_raised_with_its_state(graph: Graph, tmp_path: Path) -> None:
    wrong = tuple(graph.states[len(graph) // 2 :])
    with pytest.raises(CallbackFailed, match=r"failed in state .*, in planner-\d+") as caught:
        planned(graph, slow(tmp_path, fails=wrong, elsewhere=True), workers=3)
    assert caught.value.state in wrong
    assert "in __call__" in caught.value.traceback and "cannot judge" in caught.value.traceback


@pytest.mark.long
def test_the_first_state_that_fails_is_named(graph: Graph, tmp_path: Path) -> None:
    """The first state is named, whichever process evaluates it."""
    wrong = tuple(graph.states[len(graph) // 2 :])
    for _ in range(5):
        with pytest.raises(CallbackFailed) as caught:
            planned(graph, slow(tmp_path, fails=wrong), workers=3)
        assert caught.value.state == wrong[0]


@dataclass(frozen=True)
class SlowGoals:
    """A generator of goals that notes which process calls it."""

    log: Log
    goals: tuple[Any, ...]

    def __call__(self, state: Any, agent: int) -> Iterator[tuple[Any, float]]:
        self.log.enter()
        for i, goal in enumerate(self.goals):
            if sum(state[1]) % 3 != i:
                yield goal, i + 1.0


@dataclass(frozen=True)
class At:
    place: int

    def __call__(self, state: Any) -> bool:
        return bool(state[1][0] == self.place)


class Anonymous(At):
    """A goal that equals only itself."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


@dataclass(frozen=True)
class LateGoals(SlowGoals):
    """The first states offer a goal that equals its copies; later ones offer one that does not, too."""

    def __call__(self, state: Any, agent: int) -> Iterator[tuple[Any, float]]:
        self.log.enter()
        yield self.goals[0], 1.0
        if state[0] > 1:
            yield self.goals[1], 1.0


@pytest.mark.long
@pytest.mark.usefixtures("shared_fork_server")
def test_goals_that_later_states_offer_stay_the_callers(graph: Graph, tmp_path: Path) -> None:
    goals = At(0), Anonymous(1)
    with backward_induction(graph, LateGoals(Log(tmp_path / "log", os.getpid()), goals), [0], workers=3) as found:
        assert found[0].goals == [*goals]


@pytest.mark.long
@pytest.mark.usefixtures("shared_fork_server")
@pytest.mark.parametrize("kind", [At, pytest.param(Anonymous, marks=pytest.mark.long)])
def test_goals_of_a_generator_stay_the_callers(graph: Graph, tmp_path: Path, kind: type[At]) -> None:
    """This process alone makes goals that pickling would change."""
    goals = tuple(kind(place) for place in range(4))
    generate = SlowGoals(Log(tmp_path / "log", os.getpid()), goals)
    with (
        backward_induction(graph, generate, [0], workers=3) as found,
        backward_induction(graph, lambda state, agent: generate(state, agent), [0], workers=1) as alone,
    ):
        assert bytes_of(found) == bytes_of(alone)
        assert found[0].goals == alone[0].goals and {*found[0].goals} == {*goals}
        assert found[0].weight.tobytes() == alone[0].weight.tobytes()
    others = {*generate.log.pids} - {os.getpid()}
    assert bool(others) == (kind is At) == batches.stays_equal(goals[0])
