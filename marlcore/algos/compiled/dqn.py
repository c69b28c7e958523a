"""Updates of DQN and CQL, each in one call of the core; the text is bases/q_learning.py and cql.py."""

from abc import abstractmethod
from typing import Any

import numpy as np
import torch

from ...compiled import Chain, Inputs, padded_zeros, pointer
from ...interfaces import Update
from ...memory import ffi, lib
from ..networks.qnetwork import Head, QNetwork
from ..networks.torso import Torso
from .plain import OTHER_SIZES, NotPlain, arrays_of, layers_of
from .trainer import CompiledTrainer, OptimizerArrays


class CompiledValues(CompiledTrainer):
    """The base: the core makes an update of action values, from the batch's arrays to its priorities."""

    network_class: type = QNetwork

    def networks(self) -> list[Any]:
        return [self.trainer.network]

    def describe(self, raw: Any) -> None:
        """Sets the part `values` of the core's struct, once the networks' chains are known."""
        trainer, hyper, network = self.trainer, self.hyper, self.trainer.network
        self._raw, self._values, self._batch = raw, raw.values, ffi.new("struct mc_batch *")
        self._inputs = Inputs(network.spaces)
        values = self._values
        values.actions, values.dueling = network.actions.count, network.head.dueling
        values.twice, values.reward_scale = hyper.double, hyper.reward_scale
        self._optimizer = OptimizerArrays(trainer.optimizer, list(trainer.target.parameters()))
        self._optimizer.describe(values.descent, hyper.max_grad_norm)
        self._rows = 0

    def check(self, inputs: int, outputs: int) -> None:
        """Raises NotPlain: the layers do not fit the spaces, or the network is of another kind."""
        network: Any = self.trainer.network
        part: Any
        for part, kind in ((network, self.network_class), (network.torso, Torso), (network.head, Head)):
            if type(part) is not kind:
                raise NotPlain(type(part).__name__)
        if (inputs, outputs) != (Inputs(network.spaces).size, network.actions.count + network.head.dueling):
            raise NotPlain(OTHER_SIZES)

    def grow(self, rows: int) -> None:
        """Makes the arrays fit for batches of this number of rows."""
        self._rows = self._values.rows = rows
        self._x = padded_zeros(2 * rows, self._inputs.size)  # observations, then next observations
        self._values.x, self._values.x_row = pointer(self._x), self._x.shape[1]
        self._fill_now, self._fill_after = self._inputs.into(self._x[:rows]), self._inputs.into(self._x[rows:])

    def compiled(self, batch: Any) -> Update:
        """Makes the trainer's update; see QNetworkTrainer and IQNTrainer."""
        rows, raw, values = len(batch.reward), self._batch, self._values
        self.trainer.follow_schedules(batch)
        if rows != self._rows:
            self.grow(rows)
        self._fill_now(batch.obs)
        self._fill_after(batch.next_obs)
        actions, error = self._numbers_of(batch.action), np.empty(rows, np.float32)
        raw.action = ffi.from_buffer("int64_t[]", actions)
        raw.reward, raw.discount, raw.weight = pointer(batch.reward), pointer(batch.discount), pointer(batch.weight)
        raw.error = pointer(error)
        masks = self._mask(batch) if self.trainer.network.spaces.masked else ()
        values.descent.adam.rate, values.descent.share = self._optimizer.rate, self._share()
        if self.update_values(raw):
            most = values.actions - 1
            raise ValueError(f"action: expected numbers from 0 to {most}, got {actions.min()} to {actions.max()}")
        self.trainer.updates += 1
        del masks  # which the core has read
        return Update(self.metrics(), error)

    @abstractmethod
    def update_values(self, raw: Any) -> int:
        """Makes the update on the core's `mc_batch`; returns 0, or an error if an action is none."""

    def metrics(self) -> dict[str, float]:
        values = self._values
        return {"loss": values.loss, "q_mean": values.q_mean, "grad_norm": values.norm}

    def _share(self) -> float:
        interval = self.hyper.target_update_freq
        if not interval:
            return self.hyper.tau  # type: ignore[no-any-return]
        return 0.0 if (self.trainer.updates + 1) % interval else 1.0

    def _numbers_of(self, action: Any) -> Any:
        if action.ndim > 1:
            action = self.trainer.network.actions.encode(torch.from_numpy(action)).numpy()
        return np.ascontiguousarray(action, np.int64)

    def _mask(self, batch: Any) -> list[Any]:
        """Sets the core's masks; returns the arrays, which it reads in the next update."""
        network = self.trainer.network
        masks = []
        for name, obs in (("allowed", batch.obs), ("allowed_after", batch.next_obs)):
            mask = network.actions.allowed(torch.from_numpy(network.spaces.mask_in(obs)))
            masks.append(np.ascontiguousarray(mask.numpy()))
            setattr(self._batch, name, ffi.from_buffer("uint8_t[]", masks[-1]))
        return masks


class CompiledDQN(CompiledValues):
    """Makes the updates of a DQNTrainer."""

    def build(self) -> None:
        trainer, network = self.trainer, self.trainer.network
        layers, modules = layers_of(network.torso, network.head)
        self.check(layers[0].inputs, layers[-1].outputs)
        self._online, self._target = Chain(layers, trains=True), Chain(layers)
        self._online.bind(arrays_of(modules), arrays_of(modules, gradients=True))
        self._target.bind(arrays_of(layers_of(trainer.target.torso, trainer.target.head)[1]))
        self.describe(ffi.new("struct mc_dqn *"))
        self._online.describe(self._raw.online)
        self._target.describe(self._raw.target)

    def grow(self, rows: int) -> None:
        super().grow(rows)
        self._online.grow(2 * rows)
        self._target.grow(rows)

    def update_values(self, raw: Any) -> int:
        return lib.mc_dqn_update(self._raw, raw)  # type: ignore[no-any-return]


class CompiledCQL(CompiledDQN):
    """Makes the updates of a CQLTrainer."""

    def build(self) -> None:
        super().build()
        self._raw.alpha = self.hyper.alpha

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "penalty": self._raw.penalty}
