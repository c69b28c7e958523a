"""A node's part of a run, without Ray: its program, its actors, and the rows and weights between it and the learner."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from crowd import Corridor, collapse
from processes import await_gone, family, until
from whole_runs import policy_of

import marlcore as mc
from marlcore.cluster import Bookings, DirectLink, Ingest, Leases, Porter
from marlcore.cluster.nodes import actors, program, uplink
from marlcore.config import crews
from marlcore.errors import Fenced
from marlcore.loops import build_model
from marlcore.run import RunSpec, transition_spec

ENV = mc.NamedEnvironment("gymnasium:CartPole-v1")
SETTINGS: dict[str, Any] = {
    "total_steps": 400, "updates_per_step": None, "actor": mc.ActorConfig(processes=1, envs=2),
    "cluster": mc.ClusterConfig("auto", actors_per_node=2, flush_seconds=0.05),
}  # fmt: skip


class Scene:
    """The learner's end of a run of one policy, in this process."""

    def __init__(self, stack: ExitStack, env_fn: Any = ENV, **changes: Any) -> None:
        self.config, self.env_fn = (config := mc.Config(**{**SETTINGS, **changes})), env_fn
        self.policy = policy = policy_of("agent_0", mc.DQN(), env_fn, config)
        crew = crews(config)[1]
        begins, lanes = crew.block_begins(1, 2), crew.count * 2
        self.replay = stack.enter_context(mc.ReplayBuffer.create(transition_spec(policy, config), 8000, config.lanes))
        bookings = stack.enter_context(Bookings.create(config.lanes))
        self.leases = stack.enter_context(Leases.create(1))
        target = mc.ReplayBuffer, self.replay.handle, bookings.handle, [range(begins, begins + lanes)]
        made = uplink.make_ingests({policy.name: target}, self.leases.handle, follows=False)
        ingest = stack.enter_context(made[policy.name])
        model = build_model(policy, config).acting
        store = stack.enter_context(mc.ParameterStore.create(model, extras={"epsilon": (), "updates": ()}))
        self.publisher = stack.enter_context(store.publisher(model))
        self.version = self.publisher.publish(epsilon=1.0, updates=0)
        self.address = SimpleNamespace(rows=lambda _: DirectLink(ingest), weights=lambda _: Porter(store))
        self.epoch = self.leases.grant(0)
        self.descriptions, self._stack = {policy.name: store.description}, stack

    def node(self, share: int, taken: int = 0) -> actors.ActorNode:
        orders: Any = actors.ActorOrders(share, 0, {self.policy.name: self.address})
        return actors.ActorNode(
            self._stack, orders, spec=RunSpec(self.env_fn, (self.policy,), self.config), seat=0, epoch=self.epoch,
            taken=taken, elapsed=0.0, descriptions=self.descriptions,
        )  # fmt: skip


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as held:
        yield held


def finished(node: actors.ActorNode, orders: actors.ActorOrders) -> Any:
    def look() -> Any:
        status = node.beat(orders)
        assert status.failed is None, status.failed
        return status if status.done else None

    return until(look)


@pytest.mark.long
def test_a_nodes_rows_arrive_and_wait_for_a_due_evaluation(stack: ExitStack) -> None:
    """Rows arrive in the lanes of the node's seat; its actors take at most one round too many."""
    scene = Scene(stack, evaluation=mc.EvaluationConfig(interval=60, wait=True))
    node = scene.node(100)
    for steps in until(
        lambda: held if min(held := [node.beat(actors.ActorOrders(100, 0)).steps for _ in range(50)]) >= 60 else None
    ):
        assert steps < 64
    status = finished(node, actors.ActorOrders(100, 5, evaluated=60))
    assert 100 <= status.steps < 104 and status.restarts == 0 and status.versions == {scene.policy.name: 1}
    written = [scene.replay._mapped.native.written(lane) for lane in range(scene.config.lanes)]
    assert written[:2] == [0, 0] and min(written[2:]) >= 20  # of 25 steps a copy, the last has no outcome yet
    batch = scene.replay.sampler(32, min_size=1).sample()
    assert (batch.policy_version == scene.version).all()
    status = finished(node, actors.ActorOrders(160, 5, evaluated=120))  # its share has grown
    assert 160 <= status.steps < 164


@pytest.mark.long
def test_a_fenced_node_learns_of_it_and_its_rows_are_refused(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: while nobody looks for the fence, its late rows are taken."""
    scene, orders = Scene(stack), actors.ActorOrders(10**6, 0)
    node = scene.node(10**6)
    until(lambda: node.beat(orders).figures["rows"] > 50)
    with monkeypatch.context() as unchecked:
        unchecked.setattr(Ingest, "_check_epoch", lambda *_: None)
        scene.leases.fence(0)
        before = scene.replay.inserted
        until(lambda: node.beat(orders) and scene.replay.inserted > before + 50)
    until(lambda: node.error is not None)
    before = scene.replay.inserted
    with pytest.raises(Fenced):
        node.beat(orders)
    assert scene.replay.inserted == before


@pytest.mark.long
def test_a_failing_environment_is_named(stack: ExitStack) -> None:
    """What the controller does then: test_a_failure_on_a_node_ends_the_run."""
    node = Scene(stack, partial(Corridor, 1, collapse)).node(10**6)
    failed = until(lambda: node.beat(actors.ActorOrders(10**6, 0)).failed)
    assert failed.worker in ("actor-1", "actor-2") and failed.reason == "environment"
    assert "the floor gave way" in failed.traceback


@pytest.mark.long
def test_a_successor_takes_the_steps_that_are_left_and_dies_with_its_actors(stack: ExitStack) -> None:
    node, more = Scene(stack).node(60, taken=40), actors.ActorOrders(10**6, 0)
    assert 60 <= finished(node, actors.ActorOrders(60, 0)).steps < 64
    until(lambda: node.beat(more).steps > 64)
    led_to = family(node._program._process.pid)
    os.kill(node._program._process.pid, signal.SIGKILL)
    failed = until(lambda: node.beat(more).failed)
    assert (failed.worker, failed.reason) == ("supervisor", "death") and len(led_to) >= 3
    await_gone(led_to)


@pytest.mark.long
def test_an_agents_successor_draws_other_random_numbers(stack: ExitStack) -> None:
    """It begins at the same steps, as after an agent that was lost early; no observation comes twice."""
    scene = Scene(stack)
    finished(scene.node(40), actors.ActorOrders(40, 0))
    scene.leases.fence(0)
    scene.epoch = scene.leases.grant(0)
    before = len(scene.replay)
    finished(scene.node(40), actors.ActorOrders(40, 0))
    seen = np.concatenate([batch.obs for batch in scene.replay.batches(64)])
    assert len(np.unique(seen, axis=0)) == len(seen) >= before + 30 >= 60


def test_a_program_that_does_not_start_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `leaves_nothing_behind` sees."""

    def fail(_: Any) -> None:
        raise OSError("no process is left")

    monkeypatch.setattr(program, "start_child", fail)
    with pytest.raises(OSError, match="no process is left"):
        program.Program(SimpleNamespace(), SimpleNamespace())
