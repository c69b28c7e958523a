"""Actors wait for their first weights, and for nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from mapped import Mapped

import marlcore as mc
from marlcore.algos import DQN
from marlcore.envs import TreasureHunt
from marlcore.processes.control import BEATS, Control
from marlcore.processes.telemetry import Telemetry
from marlcore.spaces import Spaces
from marlcore.spec import Field
from marlcore.training.actor_worker import ActorWorker
from marlcore.training.blueprint import Blueprint, PolicyPlan, build_model
from marlcore.training.config import ActorConfig, LearnerConfig, ReplayConfig
from marlcore.training.names import actor_names
from marlcore.training.policies import AssignedPolicy

AGENT = "agent_0"
HUNT = partial(TreasureHunt, agents=1, size=6, horizon=25, gems=3, food=1, bones=3)
CONFIG = mc.Config(
    actor=ActorConfig(envs=1), replay=ReplayConfig(capacity=500), learner=LearnerConfig(warmup=50, device="cpu")
)


class Scene:
    """A run of one actor, whose learner is the test."""

    def __init__(self) -> None:
        env = HUNT()
        spaces = Spaces(env.observation_spaces[AGENT], env.action_spaces[AGENT])
        names = actor_names(CONFIG)
        self.control, self.telemetry = Control.create(names), Telemetry.create(names)
        self.spec = DQN().transition(spaces)
        self.replay = mc.ReplayBuffer.create(self.spec, CONFIG.replay.capacity, CONFIG.lanes)
        self.network = build_model(AssignedPolicy(AGENT, (AGENT,), spaces, DQN()), CONFIG, 0).acting
        extras: dict[str, tuple[int, ...] | Field] = {"epsilon": (), "updates": ()}
        self.store = mc.ParameterStore.create(self.network, "snapshot", extras)
        plan = PolicyPlan(
            AGENT, (AGENT,), spaces, DQN(), Path(), None, mc.ReplaySource(), self.replay.handle, self.store.handle
        )
        self.blueprint = Blueprint(HUNT, CONFIG, (plan,), self.control.handle, self.telemetry.handle, time.monotonic())
        self.actors: list[ActorWorker] = []
        self.thread = threading.Thread(target=lambda: self.actors.append(ActorWorker(0, self.blueprint)), daemon=True)

    def publish(self) -> int:
        with self.store.publisher(self.network) as publisher:
            return publisher.publish(epsilon=1.0, updates=0)

    def tear(self) -> None:
        """As a learner leaves the store that dies in the middle of a publish."""
        counters = Mapped(self.store).counters()
        counters[1] = counters[0] + 1

    def waits(self) -> bool:
        """Whether the actor shows signs of life without an end of its start."""
        while self.thread.is_alive() and self.control.workers["actor-0"].load(BEATS) < 5:
            time.sleep(0.01)
        return not self.actors and self.thread.is_alive()

    def close(self) -> None:
        for thing in (*self.actors, self.store, self.replay, self.telemetry, self.control):
            thing.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.control.stop()
    made.thread.join()
    made.close()


@pytest.mark.long
@pytest.mark.parametrize("published", [0, 1])
def test_an_actor_waits_for_weights_that_were_torn(scene: Scene, published: int) -> None:
    """An actor waits with a heartbeat until weights that a dead learner tore are whole."""
    for _ in range(published):
        scene.publish()
    scene.tear()
    scene.thread.start()
    assert scene.waits()
    version = scene.publish()  # its successor's
    scene.thread.join()
    (actor,) = scene.actors
    for _ in range(100):
        actor.step()
    versions = scene.replay.sampler(8, min_size=1).sample().policy_version
    assert (versions == version).all()


@pytest.mark.long
def test_an_actor_that_is_told_to_stop_waits_for_no_weights(scene: Scene) -> None:
    scene.publish()
    scene.tear()
    scene.thread.start()
    assert scene.waits()
    scene.control.stop()
    scene.thread.join()
    assert len(scene.actors) == 1
