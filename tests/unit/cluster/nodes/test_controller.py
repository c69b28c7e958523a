"""The controller of a run's nodes, and the end of a run, with agents, workers and a clock that the test makes up."""

from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import cloudpickle
import pytest
from batches import box_spaces

import marlcore as mc
from marlcore.cluster import Leases
from marlcore.cluster.nodes import actors, controller, learners, program, ray_cluster
from marlcore.cluster.nodes.uplink import Address
from marlcore.config import AssignedPolicy
from marlcore.processes import DONE, RESTARTS, SHARE, STEPS, UPDATES, Control, Telemetry
from marlcore.record import Hold
from marlcore.run import RunSpec, async_run, deal_steps
from marlcore.self_play import results_in

NODES = ["node-0", "node-1"]
CONFIG = mc.Config(total_steps=300, cluster=mc.ClusterConfig("auto", nodes=2, lease_seconds=2.0))


class Agent:
    """An agent that answers each call at once, unless it is silent."""

    def __init__(self, name: str, role: str = "acting") -> None:
        self.machine, self.role = SimpleNamespace(id=name, host=name), role
        self.status: Any = actors.Status() if role == "acting" else learners.LearnerStatus()
        self.silent = self.is_awaited = False
        self.asked: list[Any] = []

    def call(self, method: str, *args: Any) -> None:
        self.asked.append((method, *args))
        self.is_awaited = True

    def has_answered(self) -> bool:
        return self.is_awaited and not self.silent

    def answer(self) -> Any:
        self.is_awaited = False
        if isinstance(self.status, Exception):
            raise self.status
        return self.status if self.asked[-1][0] == "beat" else None

    take_check = answer


Learner = partial(Agent, role="learning")


class Scene:
    def __init__(
        self, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, config: mc.Config = CONFIG, policies: Any = (),
        uplinks: Any = MappingProxyType({}), holds: Any = None,
    ) -> None:  # fmt: skip
        self.now, self.silent, self.fenced = 100.0, list[int](), list[int]()
        about = {"policies": {"a": {"share": 1.0}}}
        workers = [*NODES, *(f"learner-{name}" for name in uplinks)]
        self.control = stack.enter_context(Control.create(["actor-0", *workers], [*uplinks], **about))
        telemetry = stack.enter_context(Telemetry.create(workers))
        self.games = stack.enter_context(Telemetry.create(NODES))
        self.agents = [Agent("a"), Agent("b"), *map(Learner, uplinks)]
        self.spare = [Agent("c")]
        self.leases = leases = SimpleNamespace(
            grant=lambda seat: 1, renew=lambda seat, epoch: True, expire=lambda: self.silent, fence=self.fenced.append,
            lease_seconds=2.0, epoch=lambda seat: 4, state=lambda seat: "held",
        )  # fmt: skip
        self.asked = 0  # how often Ray was asked for the nodes
        cluster: Any = SimpleNamespace(
            agents=[*self.agents], end_agents=lambda: None, discard=lambda agent: None, start=self._start,
            nodes=self._nodes, free=lambda role, nodes: iter(self.spare), lack=lambda role: f"no machine for {role}",
            namespace="", acting="acting", learning=dict.fromkeys(uplinks, "learning"),
        )  # fmt: skip
        monkeypatch.setattr(controller, "serve", lambda *_: {})
        monkeypatch.setattr(controller, "start_porter", lambda *_, **__: "opponents")
        monkeypatch.setattr(controller, "WeightsLink", lambda *_: None)
        monkeypatch.setattr("marlcore.cluster.leases.monotonic_ns", lambda: round(self.now * 1e9))
        self.table = stack.enter_context(Leases.create(len(workers), 2.0))
        monkeypatch.setattr(controller.Leases, "create", lambda *_: nullcontext(leases))
        monkeypatch.setattr(controller.ParameterStore, "attach", lambda _: nullcontext(SimpleNamespace(description={})))
        monkeypatch.setattr(controller.time, "monotonic", lambda: self.now)
        deal_steps(self.control, config, NODES)
        league = (SimpleNamespace(results=self.games.handle, pool=None),)
        spec = RunSpec(int, policies, config)
        memory: Any = SimpleNamespace(began=0.0, league=league, weights=dict.fromkeys(uplinks), holds=holds)
        self.controller = controller.Controller(stack, cluster, spec, memory, self.control, telemetry, uplinks)

    def _start(self, machine: Any, role: str) -> Any:
        agent = self.spare.pop()
        agent.call("check")
        return agent

    def _nodes(self) -> None:
        self.asked += 1

    def measure(self) -> None:
        """Lets a table measure the silence of the nodes, instead of the test."""
        assert [self.table.grant(seat) for seat in range(len(NODES))] == [1, 1]
        vars(self.leases).update(grant=self.table.grant, renew=self.table.renew, expire=self.table.expire)

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
    scene.agents[0].status, scene.agents[1].status = actors.Status(100, done=True), actors.Status(99)
    scene.tick(times=4)
    assert [scene.control.workers[name].load(STEPS) for name in NODES] == [100, 99]
    scene.agents[1].status = actors.Status(100, done=True)
    scene.tick(times=4)
    assert not scene.controller.done  # this machine's actor has steps to take
    scene.control.workers["actor-0"].store(STEPS, 100)
    assert scene.controller.done


def test_each_game_is_told_to_the_learner_once(scene: Scene) -> None:
    """Games of a program that has died since count; games of an agent that lost its lease do not."""
    for won, status in (
        (1, actors.Status(40)),
        (-1, actors.Status(failed=mc.WorkerFailed(program.SUPERVISOR, "death", "killed"))),
    ):
        scene.agents[0].status = replace(status, results=[(3, won), (-1, 0)])
        games: list[tuple[int, int]] = []
        for _ in range(8):
            scene.tick(0.25)
            if games := results_in(scene.games):
                break
        assert sorted(games) == [(-1, 0), (3, won)]
        scene.agents[0].status = actors.Status(40)
        scene.tick(times=4)
        assert not results_in(scene.games)
    assert scene.fenced == [0]
    scene.agents[1].status, scene.leases.renew = actors.Status(results=[(3, 1)]), lambda seat, epoch: False
    scene.tick(times=8)
    assert scene.fenced[-1] == 1 and not results_in(scene.games)


@pytest.mark.parametrize("how", ["silence", "its death", "its machine"])
def test_a_lost_agent_is_fenced_and_replaced(how: str, scene: Scene) -> None:
    scene.agents[0].status = actors.Status(40)
    scene.tick(times=8)
    if how == "silence":
        scene.silent = [0]
    else:
        scene.agents[0].status = ray_cluster.AgentLost("gone") if how == "its death" else ValueError("another version")
    scene.tick(times=2)
    scene.silent = []
    assert scene.fenced == [0] and scene.control.notes["node-0"].load(RESTARTS) == 1
    assert scene.shares() == [130, 0, 130]  # 260 are left for two
    scene.tick(times=4)
    assert scene.controller.actors[0].agent not in scene.agents and sum(scene.shares()) == 300


def test_a_driver_that_was_held_up_gives_nobody_up(scene: Scene) -> None:
    scene.measure()
    scene.tick(times=8)
    for agent in scene.agents:
        agent.silent = True  # answers that have come are read a moment later
    scene.tick(60.0)
    for agent in scene.agents:
        agent.silent = False
    scene.tick(times=8)
    assert scene.fenced == []


def test_a_slow_driver_gives_up_who_is_silent(scene: Scene) -> None:
    """It ticks less often than twice in `lease_seconds`."""
    scene.measure()
    scene.agents[0].silent = True
    scene.tick(1.05, times=40)
    assert scene.fenced == [0]


def test_ray_is_asked_once_for_all_empty_seats(scene: Scene) -> None:
    for agent in scene.agents:
        agent.status = ray_cluster.AgentLost("gone")
    scene.spare = []
    scene.tick(times=2)
    scene.tick(2.0)
    before = scene.asked
    scene.tick(2.0)
    assert scene.asked == before + 1


def test_an_agent_that_never_starts_is_given_up(scene: Scene) -> None:
    late = scene.spare[0]
    late.silent = True
    scene.agents[0].status = ray_cluster.AgentLost("gone")
    scene.tick(times=8)
    assert scene.controller.actors[0].agent is late
    scene.tick(ray_cluster.START_S)
    assert scene.controller.actors[0].agent is None and scene.fenced == [0, 0]


def test_an_agent_has_a_share_once_it_begins(scene: Scene) -> None:
    late = scene.spare[0]
    late.silent = True  # as on a machine whose CPUs another job holds
    scene.agents[0].status = ray_cluster.AgentLost("gone")
    scene.tick(times=8)
    assert scene.controller.actors[0].agent is late and scene.shares() == [150, 0, 150]
    late.silent = False
    scene.tick(times=2)
    (method, _, orders, _) = late.asked[-1]
    assert method == "begin" and orders.share == 100 and scene.shares() == [100, 100, 100]


def test_a_run_does_not_wait_for_an_agent_that_has_not_begun(scene: Scene) -> None:
    scene.spare[0].silent = True
    scene.agents[0].status = ray_cluster.AgentLost("gone")
    scene.tick(times=8)
    assert scene.shares() == [150, 0, 150]
    scene.agents[1].status = actors.Status(150, done=True)
    scene.control.workers["actor-0"].store(STEPS, 150)
    scene.tick(times=4)
    assert scene.controller.actors[0].agent is not None and scene.controller.done


def test_a_failure_on_a_node_ends_the_run(scene: Scene) -> None:
    scene.agents[1].status = actors.Status(failed=mc.WorkerFailed("actor-2", "environment", "Traceback: no screen"))
    with pytest.raises(mc.WorkerFailed, match="actor-2 on node-1, b's environment failed: Traceback: no screen"):
        scene.tick(times=8)


HOME = Address("ingest", "porter", "")


class Apart(Scene):
    """A run whose policy's learner is on a further machine."""

    def __init__(self, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.mirror, hold = SimpleNamespace(version=6), Hold(folder / "a.pt", "run", 0)
        self.moved: list[Any] = []
        uplink = SimpleNamespace(mirror=self.mirror, move=self.moved.append, drained=lambda: True, check=lambda: None)
        policy = AssignedPolicy("a", (), box_spaces(), mc.PPO())
        config = replace(CONFIG, cluster=replace(CONFIG.cluster, learners={"a": "CPU=1"}))
        super().__init__(stack, monkeypatch, config, (policy,), {"a": uplink}, {"a": hold})
        self.learner, self.spare = self.agents[2], [Learner("d")]

    def nodes_report(self, home: Address | None, *versions: int) -> None:
        for agent, version in zip(self.agents, versions, strict=False):
            agent.status = actors.Status(1, addresses={"a": home}, versions={"a": version})
        self.tick(times=4)


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Apart]:
    with ExitStack() as stack:
        yield Apart(stack, monkeypatch, tmp_path)


def test_a_successor_waits_until_no_machine_takes_old_weights(apart: Apart) -> None:
    apart.learner.status = learners.LearnerStatus(ready=True, updates=70, version=7, address=HOME)
    apart.nodes_report(HOME, 7, 9)
    orders = apart.agents[0].asked[-1][1]
    assert orders.addresses == {"a": HOME} and apart.moved[-1] == HOME
    assert apart.control.tallies["a"].load(UPDATES) == 70
    successor = apart.spare[0]
    apart.learner.status = ray_cluster.AgentLost("gone")
    apart.tick(times=12)
    assert apart.fenced == [2] and apart.control.notes["learner-a"].load(RESTARTS) == 1
    assert apart.agents[0].asked[-1][1].addresses == {"a": None} and apart.moved[-1] is None
    assert [method for method, *_ in successor.asked] == ["check"]  # the nodes have not said that they moved
    apart.nodes_report(None, 7, 9)
    (_, work, orders, _) = successor.asked[1]
    assert cloudpickle.loads(work).keywords["version"] == 9 and orders.ended == [3, 3]
    successor.status = learners.LearnerStatus(ready=True, restarts=1)
    apart.tick(times=4)
    assert apart.control.notes["learner-a"].load(RESTARTS) == 2


def test_a_run_ends_when_a_learners_last_weights_have_come(apart: Apart) -> None:
    apart.control.finish()
    apart.learner.status = learners.LearnerStatus(ready=True, done=True, version=7, address=HOME)
    apart.tick(times=4)
    assert apart.controller.unfinished == ["learner-a"]  # of version 6 are those here
    apart.mirror.version = 7
    apart.tick(times=4)
    assert apart.controller.unfinished == [] and apart.control.workers["learner-a"].load(DONE)


def test_a_learner_lost_before_its_last_weights_is_replaced(apart: Apart) -> None:
    """A stopped run does not replace it."""
    apart.control.finish()
    apart.learner.status = ray_cluster.AgentLost("gone")
    apart.nodes_report(None, 0, 0)
    apart.tick(times=8)
    assert apart.controller.unfinished == ["learner-a"] and apart.controller.learners[0].agent is not None
    apart.controller.learners[0].lose("again")
    apart.control.stop()
    assert apart.controller.unfinished == []


def test_a_learner_that_no_machine_can_have_is_told_once(apart: Apart, caplog: pytest.LogCaptureFixture) -> None:
    apart.spare.clear()
    for loss in (1, 2):
        apart.controller.learners[0].agent = apart.learner
        apart.controller.learners[0].lose("gone")
        apart.tick(10.0, times=12)
        assert caplog.text.count("no machine for learning; the run waits for a machine") == loss


def end_of_a_run(monkeypatch: pytest.MonkeyPatch, grace: float, remote: Any, stop: Any = int, **parts: Any) -> None:
    """Runs the end of a stopped run, whose workers, supervisor and monitor the test makes up."""
    monkeypatch.setattr(async_run, "grace_of", lambda _: grace)
    supervisor: Any = SimpleNamespace(**{"workers": {}, "unfinished": [], "stand_down": int, "watch": int, **parts})
    monitor: Any = SimpleNamespace(tick=int, say_stopping=int, say=parts.get("say"))
    interrupts: Any = SimpleNamespace(stopping=True, again=False, finishing=False)
    memory: Any = SimpleNamespace(crew=SimpleNamespace(names=[]))
    control: Any = SimpleNamespace(stop=stop)
    async_run.run_async(supervisor, RunSpec(int, (), mc.Config()), memory, control, monitor, interrupts, remote)


def test_a_stop_in_the_last_moment_of_grace_ends_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner elsewhere that has no machine is not awaited any more; workers that still start are killed at once."""
    ended: list[bool] = []
    workers = [SimpleNamespace(ready=ready, end=partial(ended.append, ready)) for ready in (True, False)]
    remote: Any = SimpleNamespace(done=True, unfinished=["learner-a"], tick=lambda: None)
    end_of_a_run(monkeypatch, -1.0, remote, remote.unfinished.clear, running=workers)
    assert remote.unfinished == [] and ended == [False]


def test_a_stopped_learner_is_named_and_not_long_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [0.0], list[str]()
    learner = SimpleNamespace(name="learner-a", ready=True, process=SimpleNamespace(is_stopped=True))
    later: Any = lambda seconds: now.__setitem__(0, now[0] + 1)  # noqa: E731
    monkeypatch.setattr(async_run.time, "monotonic", lambda: now[0])
    parts = {"unfinished": [learner], "running": [learner], "watch": later, "say": said.append}
    end_of_a_run(monkeypatch, 120.0, async_run.Remote(), **parts)
    assert said == ["still waiting for learner-a, which a signal has stopped"] and 10 < now[0] < 13
