"""Actors wait for their first weights, and for nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from mapped import Mapped

import marlcore as mc
from marlcore.algos import DQN
from marlcore.envs import TreasureHunt, checked, vectorize
from marlcore.processes.control import BEATS, Control
from marlcore.processes.telemetry import Telemetry
from marlcore.spaces import Spaces
from marlcore.spec import Field
from marlcore.training.config import ActorConfig, LearnerConfig, ReplayConfig, actor_names
from marlcore.training.config.policies import AssignedPolicy
from marlcore.training.loops import PolicyPlayer, act, observe
from marlcore.training.workers.actor_worker import ActorWorker
from marlcore.training.workers.blueprint import Blueprint, PolicyPlan, build_model
from marlcore.training.workers.worker import Worker

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
        act(actor.env, actor.seats, actor.policies, observe(actor.env, actor.seats, actor), actor)
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


def test_a_metrics_name_is_cut_by_its_bytes() -> None:
    with Control.create(["actor-0"]) as control, Telemetry.create(["actor-0"]) as telemetry:
        worker = Worker("actor-0", control.handle, telemetry.handle, 0.0)
        worker.report(AGENT, "win_rate/" + "\xfc" * 60, 0.5)
        worker.close()
        assert [metric.name for metric in telemetry.tail()] == ["win_rate/" + "\xfc" * 27]


class Foreign:
    """A caller's own VectorEnvironment, of which one number is infinite."""

    def __init__(self, what: str) -> None:
        self.env = vectorize(partial(mc.NamedEnvironment("gymnasium:CartPole-v1")), 3)
        self.spaces, self.what = self.env.spaces, what
        self.env.reset(0)

    def observe(self) -> Any:
        outcomes, [turn] = self.env.observe()
        if self.what == "obs":
            turn.obs[1, 0] = np.inf
        if self.what == "reward" and outcomes:
            outcomes[0].reward[1] = np.inf
        if self.what == "final_obs" and outcomes:
            last = np.where(np.arange(3)[:, None] == 1, np.inf, turn.obs)
            outcomes = [outcomes[0]._replace(final_obs=last, terminated=np.ones(3, bool))]
        self.env.act(turn, np.zeros(3, np.int64))
        return outcomes, [turn]


@pytest.mark.parametrize("what", ["obs", "reward", "final_obs"])
def test_values_of_a_callers_own_vector_environment_are_checked(what: str) -> None:
    env = checked(Foreign(what))  # type: ignore[arg-type]
    name = "reward" if what == "reward" else "obs"
    line = f"^environment copy 1, {AGENT}: {name}: expected (a )?finite numbers?.*, got inf"
    with pytest.raises(mc.EnvironmentFailed, match=line):
        for _ in range(2):
            env.observe()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_action_that_is_not_finite_reaches_no_environment(bad: float) -> None:
    spaces = Spaces(Box(-1, 1, (1,)), Box(-np.inf, np.inf, (2,)))
    policy: Any = SimpleNamespace(act=lambda obs, at, state: mc.Action(np.array([[0, 1], [0, bad]], np.float32)))
    player = PolicyPlayer(policy, spaces, 2, "repeat")
    with pytest.raises(ValueError, match=f"^action of the algorithm: expected finite numbers, got {bad} in"):
        player.choose(np.zeros((2, 1), np.float32), slice(None), np.ones(2, bool))
