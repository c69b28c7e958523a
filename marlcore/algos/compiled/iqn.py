"""Updates of IQN, each in one call of the core; the text is iqn.py."""

from typing import Any

import numpy as np
import torch

from ...compiled import Chain, Floats, padded_zeros, pointer
from ...memory import ffi, lib
from ..iqn import IQNNetwork
from .dqn import CompiledValues
from .plain import OTHER_SIZES, NotPlain, chain_of, layers_of


def chains_of(network: IQNNetwork, trains: bool) -> dict[str, Chain]:
    """Returns the chains of a network's torso, of its embedding of fractions, and of its head.

    A torso without layers has no chain.
    """
    parts = {name: getattr(network, name) for name in ("torso", "embedding", "head")}
    return {name: chain_of(part, trains=trains) for name, part in parts.items() if layers_of(part)[0]}


class CompiledIQN(CompiledValues):
    """Makes the updates of an IQNTrainer, whose generator draws the fractions."""

    network_class = IQNNetwork

    def build(self) -> None:
        trainer, hyper, network = self.trainer, self.hyper, self.trainer.network
        online, target = chains_of(network, trains=True), chains_of(trainer.target, trains=False)
        self._chains = online, target
        raw = ffi.new("struct mc_iqn *")
        raw.online, raw.target = ({name: chain.raw for name, chain in chains.items()} for chains in self._chains)
        self.describe(raw, online.get("torso", online["head"]).inputs, online["head"].outputs)
        embedding = online["embedding"]
        if (len(embedding.layers), embedding.inputs, embedding.outputs) != (1, hyper.n_cos, network.torso.size):
            raise NotPlain(OTHER_SIZES)
        raw.features, raw.cosines, raw.kappa = network.torso.size, hyper.n_cos, hyper.kappa
        raw.predicted, raw.sampled, raw.midpoints = hyper.n_tau, hyper.n_tau_prime, hyper.n_policy
        self._midpoints = network.midpoints.numpy()
        raw.shared = pointer(self._midpoints)

    def grow(self, rows: int) -> None:
        super().grow(rows)
        raw, hyper = self._raw, self.hyper
        most = max(hyper.n_tau, hyper.n_tau_prime, hyper.n_policy)
        for chains in self._chains:
            for name, chain in chains.items():
                chain.grow(rows if name == "torso" else rows * most)
        self._scratch = [padded_zeros(rows * most, size) for size in (raw.cosines, raw.features, raw.features)]
        self._scratch.append(padded_zeros(3, hyper.n_tau))
        raw.cosine, raw.product, raw.slope, raw.line = map(pointer, self._scratch)
        self._best = np.empty(rows, np.int64)
        raw.best = ffi.from_buffer("int64_t[]", self._best)

    def update_values(self, raw: Any) -> int:
        predicted, of_samples = (self._fractions(count) for count in (self._raw.predicted, self._raw.sampled))
        return lib.mc_iqn_update(self._raw, raw, pointer(predicted), pointer(of_samples))  # type: ignore[no-any-return]

    def _fractions(self, count: int) -> Floats:
        fractions: Floats = torch.rand(self._rows, count, generator=self.trainer.generator).numpy()
        return fractions
