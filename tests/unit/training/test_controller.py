"""The controller of a run's nodes, with agents and a clock that the test makes up."""

from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

import marlcore as mc
from marlcore.processes import RESTARTS, SHARE, STEPS, Control, Telemetry
from marlcore.training.nodes import controller
from marlcore.training.nodes.fleet import AgentLost
from marlcore.training.nodes.node import Report
from marlcore.training.workers import deal_steps

NODES = ["node-0", "node-1"]
CONFIG = mc.Config(total_steps=300, cluster=mc.ClusterConfig("auto", nodes=2, lease_seconds=2.0))


class Agent:
    """Answers each call at once, unless it is silent."""

    def __init__(self, name: str) -> None:
        self.machine = SimpleNamespace(id=name, host=name)
        self.found: dict[str, Any] = {}
        self.report: Any = Report()
        self.silent = False
        self.asked: list[Any] = []

    def call(self, method: str, *args: Any) -> Any:
        self.asked.append((method, *args))
        return SimpleNamespace(wait=lambda: not self.silent, answer=lambda: self._answer(method))

    def _answer(self, method: str) -> Any:
        if isinstance(self.report, Exception):
            raise self.report
        return self.report if method == "beat" else None


class Scene:
    def __init__(self, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.silent, self.fenced = 100.0, list[int](), list[int]()
        self.control = stack.enter_context(Control.create(["actor-0", *NODES]))
        telemetry = stack.enter_context(Telemetry.create(NODES))
        self.agents = [Agent("a"), Agent("b")]
        self.spare = [Agent("c")]
        leases = SimpleNamespace(
            grant=lambda seat: 1, renew=lambda seat, epoch: True, expire=lambda: self.silent, fence=self.fenced.append
        )
        fleet: Any = SimpleNamespace(
            hired=[*self.agents], end=lambda: None, dismiss=lambda agent: None, free=lambda: [*self.spare],
            hire=lambda machine: self.spare.pop(), checked=lambda agent: agent.call("check"), check=lambda *_: None,
        )  # fmt: skip
        monkeypatch.setattr(controller, "Home", lambda *_: nullcontext(SimpleNamespace(leases=leases, links=None)))
        monkeypatch.setattr(controller.time, "monotonic", lambda: self.now)
        deal_steps(self.control, CONFIG, NODES)
        blueprint: Any = SimpleNamespace(config=CONFIG, policies=(), env_fn=None, began=0.0)
        self.controller = stack.enter_context(controller.Controller(fleet, blueprint, self.control, telemetry))

    def tick(self, seconds: float = 0.3, times: int = 1) -> None:
        for _ in range(times):
            self.now += seconds
            self.controller.tick()

    def shares(self) -> list[int]:
        return [self.control.notes[name].load(SHARE) for name in ("actor-0", *NODES)]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(stack, monkeypatch)


def test_reports_are_counted_and_the_end_is_seen(scene: Scene) -> None:
    assert scene.shares() == [100, 100, 100] and not scene.controller.done
    scene.agents[0].report, scene.agents[1].report = Report(100, done=True), Report(99)
    scene.tick(times=4)
    assert [scene.control.workers[name].load(STEPS) for name in NODES] == [100, 99]
    scene.agents[1].report = Report(100, done=True)
    scene.tick(times=4)
    assert not scene.controller.done  # this machine's actor has steps to take
    scene.control.workers["actor-0"].store(STEPS, 100)
    assert scene.controller.done


@pytest.mark.parametrize("how", ["silence", "its death", "its machine"])
def test_a_lost_agent_is_fenced_and_replaced(how: str, scene: Scene) -> None:
    scene.agents[0].report = Report(40)
    scene.tick(times=8)
    if how == "silence":
        scene.silent = [0]
    else:
        scene.agents[0].report = AgentLost("gone") if how == "its death" else ValueError("another version")
    scene.tick(times=2)
    scene.silent = []
    assert scene.fenced == [0] and scene.control.notes["node-0"].load(RESTARTS) == 1
    assert scene.shares() == [130, 0, 130]  # 260 are left for two
    scene.tick(times=4)
    assert scene.controller.seats[0].agent not in scene.agents and sum(scene.shares()) == 300


def test_a_driver_that_was_held_up_gives_nobody_up(scene: Scene) -> None:
    scene.tick(times=8)
    scene.silent = [0, 1]  # as the table says of all, after the driver was stopped
    scene.tick(60.0)
    scene.silent = []  # the answers have come meanwhile
    scene.tick(times=8)
    assert scene.fenced == []


def test_an_agent_that_never_starts_is_given_up(scene: Scene) -> None:
    late = scene.spare[0]
    late.silent = True
    scene.agents[0].report = AgentLost("gone")
    scene.tick(times=8)
    assert scene.controller.seats[0].agent is late
    scene.tick(controller.START_S)
    assert scene.controller.seats[0].agent is None and scene.fenced == [0, 0]


def test_a_failure_on_a_node_ends_the_run(scene: Scene) -> None:
    scene.agents[1].report = Report(failed=mc.WorkerFailed("actor-2", "environment", "Traceback: no screen"))
    with pytest.raises(mc.WorkerFailed, match="actor-2 on node-1, b's environment failed: Traceback: no screen"):
        scene.tick(times=8)
