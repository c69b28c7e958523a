"""Makes each update of DQN and CQL in one call of the core; bases/q_learning.py and cql.py do the same in torch."""

from typing import Any

import numpy as np
import torch

from ...compiled import Chain, Inputs, pointer
from ...interfaces import Update
from ...memory import ffi, lib
from ..networks.qnetwork import Head, QNetwork
from ..networks.torso import Torso
from .plain import OTHER_SIZES, NotPlain, chain_of
from .trainer import CompiledTrainer, Descent


class CompiledDQN(CompiledTrainer):
    """Makes the updates of a DQNTrainer: copies each batch into its own arrays, on which the core makes the update."""

    network_class: type = QNetwork

    def networks(self) -> list[Any]:
        return [self.trainer.network]

    def build(self) -> None:
        trainer, hyper, network = self.trainer, self.hyper, self.trainer.network
        part: Any
        for part, kind in ((network, self.network_class), (network.torso, Torso), (network.head, Head)):
            if type(part) is not kind:
                raise NotPlain(type(part).__name__)
        self._chains = self.chains_of(network, trains=True), self.chains_of(trainer.target, trains=False)
        self._inputs, actions, online = Inputs(network.spaces), network.actions.count, self._chains[0]
        sizes = online.get("torso", online["head"]).inputs, online["head"].outputs
        if sizes != (self._inputs.size, actions + network.head.dueling):
            raise NotPlain(OTHER_SIZES)
        self._descent = Descent(trainer.optimizer, hyper.max_grad_norm, [*trainer.target.parameters()])
        self._raw = raw = ffi.new("struct mc_q_learning *")
        raw.online, raw.target = ({name: chain.raw for name, chain in chains.items()} for chains in self._chains)
        raw.actions, raw.dueling, raw.descent = actions, network.head.dueling, self._descent.raw
        raw.twice, raw.reward_scale, raw.kappa = hyper.double, hyper.reward_scale, 1.0
        raw.predicted = raw.sampled = raw.midpoints = 1
        self._is_masked, self._rows = network.spaces.masked, 0

    def chains_of(self, network: Any, trains: bool) -> dict[str, Chain]:
        """Returns the network's chains, by their names in the core's `struct mc_values_network`."""
        return {"head": chain_of(network.torso, network.head, trains=trains)}

    def grow(self, rows: int) -> None:
        """Makes the arrays for batches of this number of rows."""
        raw, actions = self._raw, self._raw.actions
        self._rows = raw.rows = rows
        size = self._inputs.size
        self._x = np.zeros(2 * rows * size + lib.MC_PAD, np.float32)  # the core reads whole vectors
        self._now, self._after = now, after = self._x[: -lib.MC_PAD].reshape(2, rows, size)
        self._reward, self._discount, self._weight, self._error = np.empty((4, rows), np.float32)
        self._line = np.empty(3 * raw.predicted, np.float32)
        self._action, self._best = np.empty((2, rows), np.int64)
        self._allowed, self._allowed_after = np.empty((2, rows, actions), np.bool_)
        raw.x, raw.after, raw.x_row = pointer(now), pointer(after), size
        raw.reward, raw.discount, raw.weight = map(pointer, (self._reward, self._discount, self._weight))
        raw.error, raw.line = pointer(self._error), pointer(self._line)
        raw.action, raw.best = (ffi.from_buffer("int64_t[]", array) for array in (self._action, self._best))
        if self._is_masked:
            raw.allowed = ffi.from_buffer("uint8_t[]", self._allowed)
            raw.allowed_after = ffi.from_buffer("uint8_t[]", self._allowed_after)
        most = max(raw.predicted, raw.sampled, raw.midpoints)
        for chains in self._chains:
            for name, chain in chains.items():
                chain.grow(rows if name == "torso" else rows * most)

    def compiled(self, batch: Any) -> Update:
        """Makes the trainer's update; see QTrainer and IQNTrainer."""
        trainer, raw, action = self.trainer, self._raw, batch.action
        trainer.follow_schedules(batch)
        if len(action) != self._rows:
            self.grow(len(action))
        if self._inputs.is_flat and batch.obs.ndim == 2:
            self._now[...] = batch.obs
            self._after[...] = batch.next_obs
        else:
            self._inputs.fill(batch.obs, self._now)
            self._inputs.fill(batch.next_obs, self._after)
        if action.ndim > 1:
            action = trainer.network.actions.encode(torch.from_numpy(action))
        self._action[...] = action
        self._reward[...] = batch.reward
        self._discount[...] = batch.discount
        self._weight[...] = batch.weight
        if self._is_masked:
            self._allowed[...] = self._mask(batch.obs)
            self._allowed_after[...] = self._mask(batch.next_obs)
        self._descent.prepare(self._share())
        if self.update_values():
            least, most = self._action.min(), self._action.max()
            raise ValueError(f"action: expected numbers from 0 to {raw.actions - 1}, got {least} to {most}")
        trainer.updates += 1
        return Update(self.metrics(), self._error.copy())

    def update_values(self) -> int:
        """Makes the update in the core; returns a nonzero number if an action of the batch does not exist."""
        return lib.mc_q_update(self._raw)  # type: ignore[no-any-return]

    def metrics(self) -> dict[str, float]:
        raw = self._raw
        return {"loss": raw.loss, "q_mean": raw.q_mean, "grad_norm": raw.norm}

    def _share(self) -> float:
        interval = self.hyper.target_update_freq
        if not interval:
            return self.hyper.tau  # type: ignore[no-any-return]
        return 0.0 if (self.trainer.updates + 1) % interval else 1.0

    def _mask(self, obs: Any) -> Any:
        network = self.trainer.network
        return network.actions.allowed(torch.from_numpy(network.spaces.mask_in(obs))).numpy()


class CompiledCQL(CompiledDQN):
    """Makes the updates of a CQLTrainer."""

    def build(self) -> None:
        super().build()
        self._raw.alpha = self.hyper.alpha

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "penalty": self._raw.penalty}
