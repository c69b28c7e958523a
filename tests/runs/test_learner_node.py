"""A learner on a machine of its own, without Ray: its program, its versions, and the learner that follows it."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import until
from whole_runs import policy_of

import marlcore as mc
from marlcore.cluster.nodes import learners
from marlcore.record import Hold, load_checkpoint
from marlcore.run import RunSpec, attach_transitions

ENV = mc.NamedEnvironment("gymnasium:CartPole-v1")
CONFIG = mc.Config(
    total_steps=1000, updates_per_step=None, cluster=mc.ClusterConfig("auto", learners={"agent_0": "CPU=1"}),
    learner=mc.LearnerConfig(device="cpu", warmup=50, batch_size=8, checkpoint_interval=5, publish_interval=2),
)  # fmt: skip


class Scene:
    """The machines of a policy's learners, one after another, with a run directory that they share."""

    def __init__(self, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._stack = stack
        self.placed: list[Any] = []  # by machine
        self.policy = policy_of("agent_0", mc.DQN(), ENV, CONFIG)
        (folder / "checkpoints").mkdir()
        self.hold = Hold(folder / "checkpoints" / "agent_0.pt", "run", 0)
        monkeypatch.setattr(learners, "serve", self._serve)

    def _serve(self, stack: ExitStack, policies: Any, memory: Any, *_: Any, **__: Any) -> Any:
        self.placed.append(memory.transitions["agent_0"])
        return {"agent_0": len(self.placed)}

    def begin(self, version: int) -> learners.LearnerNode:
        self.hold = replace(self.hold, epoch=self.hold.epoch + 1)
        self.hold.take()
        node = learners.LearnerNode(
            self._stack, learners.LearnerOrders(0, [0]), spec=RunSpec(ENV, (self.policy,), CONFIG), share=1.0,
            hold=self.hold, version=version, elapsed=0.0, namespace="",
        )  # fmt: skip
        with attach_transitions(self.placed[-1]) as replay, replay.writer(lane=0) as writer:
            for i in range(100):
                writer.add(np.ones(4, np.float32), i % 2, 1.0)
        return node

    @property
    def saved(self) -> int:
        return int(load_checkpoint(self.hold.checkpoint).get("updates", 0))


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(stack, monkeypatch, tmp_path)


def status(node: learners.LearnerNode, **orders: Any) -> learners.LearnerStatus:
    told = node.beat(learners.LearnerOrders(10, [0], **orders))
    assert told.failed is None, told.failed
    return told


@pytest.mark.long
def test_a_learner_continues_its_predecessor_of_another_machine(scene: Scene) -> None:
    """The successor starts from the last checkpoint with higher versions; the earlier learner stops saving."""
    first = scene.begin(0)
    until(lambda: status(first).updates > 20 and scene.saved > 20)
    before = scene.saved
    second = scene.begin(10**6)
    begun = until(lambda: (told := status(second)).ready and told)
    assert begun.updates >= before and begun.version > 10**6 and begun.address == 2
    failed = until(lambda: first.beat(learners.LearnerOrders(10, [0])).failed)
    assert "another learner has taken over this policy" in failed.traceback
    until(lambda: status(second).updates > begun.updates + 20)
    last = until(lambda: (told := status(second, stopping=True, finishing=True)).done and told)
    assert scene.saved == last.updates and load_checkpoint(scene.hold.checkpoint)["version"] == last.version
