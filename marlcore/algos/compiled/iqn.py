"""Makes each update of IQN in one call of the core; algos/iqn.py does the same in torch."""

from typing import Any

import torch

from ...compiled import Chain, padded_zeros, pointer
from ..iqn import IQNNetwork
from .dqn import CompiledDQN
from .plain import OTHER_SIZES, NotPlain, chain_of, layers_of


class CompiledIQN(CompiledDQN):
    """Makes the updates of an IQNTrainer; the trainer's generator draws the fractions."""

    network_class = IQNNetwork

    def build(self) -> None:
        super().build()
        raw, hyper, network, embedding = self._raw, self.hyper, self.trainer.network, self._chains[0]["embedding"]
        if (len(embedding.layers), embedding.inputs, embedding.outputs) != (1, hyper.n_cos, network.torso.size):
            raise NotPlain(OTHER_SIZES)
        raw.features, raw.cosines, raw.kappa = network.torso.size, hyper.n_cos, hyper.kappa
        raw.predicted, raw.sampled, raw.midpoints = hyper.n_tau, hyper.n_tau_prime, hyper.n_policy
        self._midpoints = network.midpoints.numpy()
        raw.shared = pointer(self._midpoints)

    def chains_of(self, network: Any, trains: bool) -> dict[str, Chain]:
        """See CompiledDQN; there is no chain for a torso without layers."""
        parts = {name: getattr(network, name) for name in ("torso", "embedding", "head")}
        return {name: chain_of(part, trains=trains) for name, part in parts.items() if layers_of(part)[0]}

    def grow(self, rows: int) -> None:
        super().grow(rows)
        raw, counts = self._raw, (self.hyper.n_tau, self.hyper.n_tau_prime)
        self._fractions = [torch.empty(rows, count) for count in counts]
        raw.fractions, raw.of_samples = (pointer(fractions.numpy()) for fractions in self._fractions)
        longest = rows * max(*counts, self.hyper.n_policy)
        self._scratch = [padded_zeros(longest, size) for size in (raw.cosines, raw.features, raw.features)]
        raw.cosine, raw.product, raw.slope = map(pointer, self._scratch)

    def update_values(self) -> int:
        for fractions in self._fractions:
            fractions.uniform_(generator=self.trainer.generator)
        return super().update_values()
