"""Updates of DQN on chains; the text is bases/q_learning.py."""

from typing import Any

import numpy as np
import torch

from ...compiled import Chain, Inputs, padded_zeros, pointer
from ...interfaces import Update
from ...memory import ffi, lib
from ..networks.qnetwork import QNetwork
from .plain import NotPlain, arrays_of, layers_of
from .trainer import CompiledTrainer, OptimizerArrays


class CompiledDQN(CompiledTrainer):
    """Makes the updates of a QNetworkTrainer."""

    def networks(self) -> list[Any]:
        return [self.trainer.network]

    def build(self) -> None:
        trainer, network = self.trainer, self.trainer.network
        if type(network) is not QNetwork:
            raise NotPlain(type(network).__name__)
        layers, modules = layers_of(network.torso, network.head)
        _, of_target = layers_of(trainer.target.torso, trainer.target.head)
        self._online, self._target = Chain(layers, trains=True), Chain(layers)
        self._online.bind(arrays_of(modules), arrays_of(modules, gradients=True))
        self._target.bind(arrays_of(of_target))
        self._inputs = Inputs(network.spaces)
        self._actions, self._dueling = network.actions.count, bool(network.head.dueling)
        self._optimizer = OptimizerArrays(trainer.optimizer, list(trainer.target.parameters()))
        self._rows = 0

    def _grow(self, rows: int) -> None:
        self._rows = rows
        self._x = padded_zeros(2 * rows, self._inputs.size)  # observations, then next observations
        self._best = np.empty(rows, np.int64)
        self._future, self._taken, self._slope = (np.empty(rows, np.float32) for _ in range(3))
        self._to_best = ffi.from_buffer("int64_t[]", self._best)
        self._to_future, self._to_taken, self._to_slope = map(pointer, (self._future, self._taken, self._slope))

    def compiled(self, batch: Any) -> Update:
        """See QNetworkTrainer.update."""
        hyper, trainer, rows = self.hyper, self.trainer, len(batch.reward)
        trainer.follow_schedules(batch)
        if rows != self._rows:
            self._grow(rows)
        now, after = self._x[:rows], self._x[rows:]
        self._inputs.fill(batch.obs, now)
        self._inputs.fill(batch.next_obs, after)
        self._online.pack()
        self._target.pack()
        outputs = self._online.forward(self._x if hyper.double else now)
        of_target = self._target.forward(after)
        row, choice = outputs.shape[1], (rows, self._actions, self._dueling)
        to_target = pointer(of_target)
        chooser = pointer(outputs[rows:]) if hyper.double else to_target
        lib.mc_values_best(rows, self._actions, chooser, row, self._allowed(batch.next_obs), self._to_best)
        lib.mc_values_taken(*choice, to_target, row, self._to_best, self._to_future)
        target = batch.discount * self._future
        target += np.float32(hyper.reward_scale) * batch.reward
        action = self._action_index(batch.action)
        to_action = ffi.from_buffer("int64_t[]", action)
        error = np.empty(rows, np.float32)
        lib.mc_values_taken(*choice, pointer(outputs), row, to_action, self._to_taken)
        loss = lib.mc_huber(
            rows, self._to_taken, pointer(target), pointer(batch.weight), self._to_slope, pointer(error)
        )
        gradient = self._online.gradient
        lib.mc_values_slopes(*choice, to_action, self._to_slope, pointer(gradient), row)
        self._online.backward(now)
        grad_norm = self._optimizer.step(hyper.max_grad_norm)
        self._move_target()
        q_mean = self._taken.mean() / hyper.reward_scale
        return Update({"loss": loss, "q_mean": q_mean, "grad_norm": grad_norm}, priority=error)

    def _move_target(self) -> None:
        trainer, interval = self.trainer, self.hyper.target_update_freq
        trainer.updates += 1
        if not interval:
            self._optimizer.move(self.hyper.tau)
        elif trainer.updates % interval == 0:
            self._optimizer.move(1.0)

    def _action_index(self, action: Any) -> Any:
        actions = self.trainer.network.actions
        return np.ascontiguousarray(actions.encode(torch.from_numpy(action)).numpy(), np.int64)

    def _allowed(self, obs: Any) -> Any:
        return ffi.NULL
