"""A node's agent, without Ray: it ends in order whatever it is doing."""

import os
import sys
from collections.abc import Iterator
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from processes import until

from marlcore.errors import Fenced
from marlcore.training.nodes import agent
from marlcore.training.nodes.fleet import Call, Fleet, Hired, _connect
from marlcore.training.nodes.node import SUPERVISOR
from marlcore.training.nodes.traffic import Traffic


class Plan:
    """Makes a node's part once it may."""

    config = SimpleNamespace(cluster=SimpleNamespace(lease_seconds=2.0))

    def __init__(self) -> None:
        self.begun, self.may, self.closed = Event(), Event(), Event()
        self.failure: Exception | None = None

    def start(self, orders: Any) -> Any:
        self.begun.set()
        self.may.wait()
        if self.failure is not None:
            raise self.failure
        return SimpleNamespace(close=self.closed.set, error=None, beat=lambda orders: "a report")


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Iterator[Plan]:
    made = Plan()
    monkeypatch.setattr(agent.pickle, "loads", lambda _: made)
    monkeypatch.setattr(agent, "sweep", lambda: None)
    yield made
    made.may.set()


def test_an_agent_that_ends_while_it_begins_leaves_nothing(plan: Plan) -> None:
    """Its process is killed once `end` has returned, so that must close what is being made."""
    made = agent.Agent()
    made.begin(b"", None)
    plan.begun.wait()
    ends = Thread(target=made.end)
    ends.start()
    ends.join(0.2)
    assert ends.is_alive()
    plan.may.set()
    ends.join()
    assert plan.closed.is_set() and made.beat(None) is None


def test_an_agent_that_has_ended_begins_nothing(plan: Plan) -> None:
    made = agent.Agent()
    made.end()
    plan.may.set()
    made.begin(b"", None)
    until(lambda: not any(thread.name == "marlcore-node" for thread in agent.threading.enumerate()))
    assert not plan.begun.is_set()


def test_a_part_that_another_agent_may_make_counts_as_lost(plan: Plan) -> None:
    made, plan.failure = agent.Agent(), Fenced("another learner has taken this policy over")
    plan.may.set()
    made.begin(b"", None)
    assert until(lambda: made.beat(None)).failed.worker == SUPERVISOR
    made.end()


def test_an_agent_that_is_given_up_ends(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    made, exits = agent.Agent(), Event()
    monkeypatch.setattr(agent, "os", SimpleNamespace(_exit=lambda code: exits.set(), getpid=os.getpid))
    made.begin(b"", None)
    made._heard = float("-inf")
    plan.may.set()
    assert exits.wait(10.0) and plan.closed.is_set()


def test_traffic_moves_once_to_a_new_home() -> None:
    traffic, moves = Traffic.__new__(Traffic), list[str]()
    traffic.home, traffic.policy = None, SimpleNamespace(name="a")
    traffic.mirror = traffic.relay = SimpleNamespace(move=moves.append)
    home = SimpleNamespace(rows=lambda name: f"rows of {name}", weights=lambda name: f"weights of {name}")
    for _ in range(2):
        traffic.move(home)
    assert moves == ["weights of a", "rows of a"]


def test_unreachable_addresses_never_reach_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=bool, wait=lambda _, timeout: [not timeout]))
    with pytest.raises(ValueError, match="expected a Ray cluster at"):
        _connect("127.0.0.1:1")
    assert Call(None).wait(), "by default it looks once"


class Idle(Hired):
    """Answers nothing, such as while its machine still checks whether it can do the work."""

    killed = False

    def call(self, method: str, *args: Any) -> Any:
        raise AssertionError(f"{method} would wait for the check")

    def kill(self) -> None:
        self.killed = True


def test_a_process_is_told_from_a_later_one_by_its_beginning() -> None:
    assert int(agent.began(os.getpid())) > 0 and agent.began(2**22 + 1) == ""


def test_an_agent_that_has_not_begun_is_killed_at_once() -> None:
    fleet, idle = Fleet.__new__(Fleet), Idle(Any, None, Any)
    fleet.hired, fleet._burials = [idle], []
    fleet.end()
    assert idle.killed and not fleet.hired
