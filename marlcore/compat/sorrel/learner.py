"""A learner: calls one model's `train_step` as often as the ended epochs require, and publishes the weights."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from ...errors import TimedOut
from ...processes import READY, UPDATES
from .memory import learners_memory, take_rollout, writes_ignored
from .messages import as_number
from .options import saves_models, setting_of
from .packing import move, networks, pack, restore, unpack
from .role import LEARNER, MEMORY, MODEL, ExperimentSpec, Role, ended_epochs

EXTRAS = {"epsilon": (), "epochs": (), "updates": (), "saves": ()}  # published with the weights

log = logging.getLogger(__name__)


class Learner(Role):
    """One model's learner. After a restart, it continues from the last published weights and the last saved model."""

    def __init__(self, name: str, env: bytes, spec: ExperimentSpec, attempt: int) -> None:
        super().__init__(name, spec, attempt)
        index = int(name.removeprefix(LEARNER.format("")))
        self._model_spec = spec.models[index]
        self._memory = learners_memory(self._model_spec.rings)
        others = {MODEL.format(i): None for i in range(len(spec.models))}
        self._env = unpack(env, {**others, MEMORY.format(index): self._memory})
        self._agents = [self._env.agents[i] for i in self._model_spec.agents]
        self._model = self._agents[0].model
        if device := spec.options.of("device", name):
            move(self._model, device)
        if self._memory is None:
            self._memory = self._model.memory
        self._updates = self._epoch = self._saves = 0
        if self._model_spec.weights.version:
            self._take_over(name)
        self._publisher = self.hold(self._model_spec.weights.publisher(networks(self._model)))
        self._published = self._updates
        self._ended = [ended.subscriber(ended_epochs()) for ended in spec.ended]
        self._save_at = time.monotonic() + spec.options.save_seconds

    def _take_over(self, name: str) -> None:
        """Restores the state that this learner published last before it was killed."""
        try:
            extras = restore(self._model, self._memory, self._model_spec.weights, self._model_spec.saves)
        except TimedOut:
            log.warning("%s: the published weights are torn, so it starts again from the initial weights", name)
        else:
            self._updates, self._epoch, self._saves = (int(extras[key]) for key in ("updates", "epochs", "saves"))

    def step(self) -> bool:
        """Waits for the end of the next epoch and learns from it; returns False after the last one."""
        env, epoch = self._env, self._epoch
        if epoch == self.spec.epochs:
            return False
        self._call(env._model_start_epoch_action, epoch)
        self._await_end(epoch)
        self._call(env._model_end_epoch_action, epoch)
        if self._model_spec.rollouts:
            take_rollout(self._model_spec.rollout(epoch), self._memory)
        due = self._due(epoch)
        loss = sum(sum(self._update(agent) for _ in range(due)) / max(due, 1) for agent in self._agents)
        self.send(epoch, loss)
        self._decay_and_save_weights(epoch)
        self._epoch = epoch + 1
        if time.monotonic() > self._save_at:
            self._save()
        self._publish()
        return True

    def _call(self, hook: Callable[[Any, int], object], epoch: int) -> None:
        with writes_ignored(self._memory):
            for agent in self._agents:
                hook(agent, epoch)

    def _await_end(self, epoch: int) -> None:
        """Waits until the epoch has ended; while it waits, a learner without `updates_per_epoch` keeps learning."""
        options, needed = self.spec.options, self.spec.must_have_ended(epoch)
        while options.updates_per_epoch is None and epoch and not self._have_ended(needed):
            for agent in self._agents:
                self._update(agent)
            if self._updates - self._published >= options.publish_interval:
                self._publish()
        for actor, count in needed.items():
            self._ended[actor].wait(newer_than=count - 1, timeout=math.inf)

    def _have_ended(self, epochs: Mapping[int, int]) -> bool:
        return all(self._ended[actor].newest >= count for actor, count in epochs.items())

    def _due(self, epoch: int) -> int:
        rate = self.spec.options.updates_per_epoch
        return 1 if rate is None else math.floor(rate * (epoch + 1)) - math.floor(rate * epoch)

    def _update(self, agent: Any) -> float:
        self.check_wait()
        loss = self._env._model_train_step(agent)
        self._updates += 1
        self.counters.store(UPDATES, self._updates)
        self.counters.store(READY, self.attempt)
        return as_number(loss)

    def _decay_and_save_weights(self, epoch: int) -> None:
        """Decays epsilon and saves the weights, as sorrel's loop does at the end of an epoch."""
        config, folder = self._env.config, self.spec.options.output_dir / "checkpoints"
        decay = setting_of(config, "model", "epsilon_decay")
        for i, agent in zip(self._model_spec.agents, self._agents, strict=True):
            if decay is not None:
                agent.model.epsilon_decay(decay)
            if saves_models(self._env) and epoch % config.experiment.record_period == 0:
                folder.mkdir(parents=True, exist_ok=True)
                # A copy, since the model's own tensors are parts of one row
                copied = unpack(self._packed(), {"memory": self._memory})
                copied.save(folder / f"{datetime.now().strftime('%Y-%m-%d_%H-%M-%S')}-agent-{i}.pkl")

    def _packed(self) -> bytes:
        return pack(self._model, {"memory": self._memory})

    def finish(self) -> None:
        """Saves the whole model for the caller."""
        self._save()
        self._publish()

    def _save(self) -> None:
        """Writes the whole model to the older of two files, which the next publication makes the valid one."""
        self._saves += 1
        Path(self._model_spec.saves[self._saves % 2]).write_bytes(self._packed())
        self._save_at = time.monotonic() + self.spec.options.save_seconds

    def _publish(self) -> None:
        self._publisher.publish(
            epsilon=float(self._model.epsilon), epochs=self._epoch, updates=self._updates, saves=self._saves
        )
        self._published = self._updates
