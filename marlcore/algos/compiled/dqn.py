"""Updates of DQN and CQL, each in one call of the core; the text is bases/q_learning.py and cql.py."""

from abc import abstractmethod
from functools import partial
from typing import Any

import numpy as np
import torch

from ...compiled import Inputs, padded_zeros, pointer
from ...interfaces import Update
from ...memory import ffi, lib
from ..networks.qnetwork import Head, QNetwork
from ..networks.torso import Torso
from .plain import OTHER_SIZES, NotPlain, chain_of
from .trainer import CompiledTrainer, Descent

_floats = partial(np.ascontiguousarray, dtype=np.float32)


class CompiledValues(CompiledTrainer):
    """The base: the core makes an update of action values, from the batch's arrays to its priorities."""

    network_class: type = QNetwork

    def networks(self) -> list[Any]:
        return [self.trainer.network]

    def describe(self, raw: Any, inputs: int, outputs: int) -> None:
        """Sets the part `values` of the core's struct; takes the chains' sizes.

        Raises NotPlain: the layers do not fit the spaces, or the network is of another kind.
        """
        trainer, hyper, network = self.trainer, self.hyper, self.trainer.network
        part: Any
        for part, kind in ((network, self.network_class), (network.torso, Torso), (network.head, Head)):
            if type(part) is not kind:
                raise NotPlain(type(part).__name__)
        self._raw, self._values, self._batch = raw, raw.values, ffi.new("struct mc_batch *")
        self._inputs, values = Inputs(network.spaces), self._values
        if (inputs, outputs) != (self._inputs.size, network.actions.count + network.head.dueling):
            raise NotPlain(OTHER_SIZES)
        values.actions, values.dueling = network.actions.count, network.head.dueling
        values.twice, values.reward_scale = hyper.double, hyper.reward_scale
        self._descent = Descent(trainer.optimizer, hyper.max_grad_norm, [*trainer.target.parameters()])
        values.descent = self._descent.raw
        self._rows = 0

    def grow(self, rows: int) -> None:
        """Makes the arrays fit for batches of this number of rows."""
        self._rows = self._values.rows = rows
        self._x = padded_zeros(2 * rows, self._inputs.size)  # observations, then next observations
        self._values.x, self._values.x_row = pointer(self._x), self._x.shape[1]
        self._now, self._after = self._x[:rows], self._x[rows:]

    def compiled(self, batch: Any) -> Update:
        """Makes the trainer's update; see QNetworkTrainer and IQNTrainer."""
        rows, raw, values = len(batch.reward), self._batch, self._values
        self.trainer.follow_schedules(batch)
        if rows != self._rows:
            self.grow(rows)
        self._inputs.fill(batch.obs, self._now)
        self._inputs.fill(batch.next_obs, self._after)
        actions, error = self._numbers_of(batch.action), np.empty(rows, np.float32)
        raw.action = ffi.from_buffer("int64_t[]", actions)
        reward, discount, weight = map(_floats, (batch.reward, batch.discount, batch.weight))
        raw.reward, raw.discount, raw.weight = pointer(reward), pointer(discount), pointer(weight)
        raw.error = pointer(error)
        masks = self._mask(batch) if self.trainer.network.spaces.masked else ()
        self._descent.prepare(self._share())
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
        self._online = chain_of(network.torso, network.head, trains=True)
        self._target = chain_of(trainer.target.torso, trainer.target.head)
        raw = ffi.new("struct mc_dqn *", {"online": self._online.raw, "target": self._target.raw})
        self.describe(raw, self._online.inputs, self._online.outputs)

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
