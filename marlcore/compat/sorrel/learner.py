"""A learner: it calls one model's `train_step`, as often as its agents' epochs ask for, and publishes its weights."""

from __future__ import annotations

import logging
import math
import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ClosedError, TimedOut
from ...memory import interrupt_waits_with
from ...processes import READY, UPDATES
from ...weights import ParameterStore
from .memory import LearnersMemory
from .packing import unpack
from .role import MEMORY, MODEL, Plan, Role, networks
from .whole import copied, restore, save

EXTRAS = {"epsilon": (), "epochs": (), "updates": (), "saved": ()}  # published with the weights

log = logging.getLogger(__name__)


class Learner(Role):
    """One model's learner; a successor goes on from the last publication, and the last saved model.

    Args:
        index: the model's number.
        env: the packed environment, with this model alone.
    """

    def __init__(self, index: int, env: bytes, name: str, plan: Plan, mail: str, attempt: int) -> None:
        super().__init__(name, plan, mail, attempt)
        self._index = index
        self._mine = plan.models[index]
        self._memory = LearnersMemory(self._mine.rings)
        apart = {MODEL.format(i): None for i in range(len(plan.models))}
        self._env = unpack(env, {**apart, MEMORY.format(index): self._memory})
        self._agents = [self._env.agents[i] for i in self._mine.agents]
        self._model = self._agents[0].model
        self._updates = self._published = self._epoch = self._saved = 0
        store = self.hold(ParameterStore.attach(self._mine.weights))
        if store.version:
            self._take_over(store)
        self._publisher = self.hold(store.publisher(networks(self._model)))
        self._save_at = time.monotonic() + plan.options.save_seconds
        self._trained = False

    def _take_over(self, store: ParameterStore) -> None:
        """Becomes its killed predecessor, as of its last publication."""
        try:
            extras = restore(self._model, self._memory, store, self._mine.saved)
        except TimedOut:
            log.warning("%s: the published weights are torn, and it learns from those of the beginning", self.name)
        else:
            self._updates, self._epoch, self._saved = (int(extras[name]) for name in ("updates", "epochs", "saved"))
            self.clock.learn(self._index, self._epoch)  # it may have been killed between publishing and this

    def step(self) -> bool:
        """Learns from the next epoch once it has ended; False after the last one."""
        env, agents, epoch = self._env, self._agents, self._epoch
        if epoch >= self.plan.schedule.epochs:
            return False
        with self._memory.aside():
            for agent in agents:
                env._model_start_epoch_action(agent, epoch)
        self._await(epoch + 1)
        with self._memory.aside():
            for agent in agents:
                env._model_end_epoch_action(agent, epoch)
        loss = 0.0
        for agent in agents:
            losses = [self._update(agent) for _ in range(self._due(epoch))]
            loss += float(np.mean(losses)) if losses else 0.0
        self._end_epoch(epoch, loss)
        return True

    def _await(self, epochs: int) -> None:
        """Waits until so many epochs have ended; a learner that runs free learns meanwhile."""
        if self.plan.options.updates_per_epoch is None and epochs > 1:
            while self.clock.ended < epochs:
                for agent in self._agents:
                    self._update(agent)
                if self._updates - self._published >= self.plan.options.publish_interval:
                    self._publish()
        self.clock.wait_for_actor(epochs)

    def _due(self, epoch: int) -> int:
        """Updates for each agent that the end of this epoch asks for."""
        rate = self.plan.options.updates_per_epoch
        return 1 if rate is None else math.floor(rate * (epoch + 1)) - math.floor(rate * epoch)

    def _update(self, agent: Any) -> float:
        self.beat()
        loss = self._env._model_train_step(agent)
        self._updates += 1
        self.counters.store(UPDATES, self._updates)
        if not self._trained:
            self._trained = True
            self.counters.store(READY, self.attempt)
        return as_number(loss)

    def _end_epoch(self, epoch: int, loss: float) -> None:
        schedule = self.plan.schedule
        self.sender.send("loss", epoch, loss)
        for i, agent in zip(self._mine.agents, self._agents, strict=True):
            if schedule.epsilon_decay is not None:
                agent.model.epsilon_decay(schedule.epsilon_decay)
            if schedule.save_weights and schedule.record_period and epoch % schedule.record_period == 0:
                copied(self._model, self._memory).save(self._checkpoint(i))
        self._epoch = epoch + 1
        if time.monotonic() > self._save_at:
            self._save()
        self._publish()
        self.clock.learn(self._index, self._epoch)

    def _checkpoint(self, agent: int) -> Path:
        folder = Path(self.plan.options.output_dir or ".") / "checkpoints"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{datetime.now().strftime('%Y-%m-%d_%H-%M-%S')}-agent-{agent}.pkl"

    def finish(self) -> None:
        """Saves the whole model for the caller."""
        self._save()
        self._publish()

    def _save(self) -> None:
        """Writes the whole model to the file that is not the last save; the next publication makes it the last."""
        self._saved += 1
        save(self._model, self._memory, self._mine.saved[self._saved % 2])
        self._save_at = time.monotonic() + self.plan.options.save_seconds

    def _publish(self) -> None:
        self._publisher.publish(
            epsilon=float(self._model.epsilon), epochs=self._epoch, updates=self._updates, saved=self._saved
        )
        self._published = self._updates


def as_number(loss: Any) -> float:
    """A loss as a model returns it: a number, an array or a tensor."""
    detached = loss.detach().cpu() if hasattr(loss, "detach") else loss
    return float(np.mean(np.asarray(detached, np.float64)))


def run_learner(index: int, env: bytes, name: str, plan: Plan, mail: str, attempt: int) -> None:
    """Runs a learner in its own process."""
    os.nice(plan.options.niceness)
    with Learner(index, env, name, plan, mail, attempt) as learner:
        interrupt_waits_with(learner.beat)
        try:
            while learner.step():
                pass
        except ClosedError:
            if not learner.control.stopping:
                raise
        finally:
            interrupt_waits_with(None)
            learner.finish()
