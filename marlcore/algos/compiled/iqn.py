"""Updates of IQN, each in one call of the core; the text is iqn.py."""

from typing import Any

import numpy as np
import torch

from ...compiled import Chain, Floats, Layer, padded_zeros, pointer
from ...memory import ffi, lib
from ..iqn import IQNNetwork
from .dqn import CompiledValues
from .plain import OTHER_SIZES, NotPlain, arrays_of, layers_of


class Quantiles:
    """The chains of an IQNNetwork: its torso, which may have no layers, the embedding of fractions, and its head."""

    def __init__(self, network: IQNNetwork, trains: bool) -> None:
        self.chains: dict[str, Chain] = {}
        for name in ("torso", "embedding", "head"):
            layers, modules = layers_of(getattr(network, name))
            if layers:
                self.chains[name] = Chain(layers, trains)
                self.chains[name].bind(arrays_of(modules), arrays_of(modules, gradients=True) if trains else [])

    def describe(self, raw: Any) -> None:
        """Sets the core's `mc_quantiles` to these chains."""
        for name, chain in self.chains.items():
            chain.describe(getattr(raw, name))

    def grow(self, rows: int, fractions: int) -> None:
        for name, chain in self.chains.items():
            chain.grow(rows if name == "torso" else rows * fractions)


class CompiledIQN(CompiledValues):
    """Makes the updates of an IQNTrainer, whose generator draws the fractions."""

    network_class = IQNNetwork

    def build(self) -> None:
        trainer, hyper, network = self.trainer, self.hyper, self.trainer.network
        self._online, self._target = Quantiles(network, trains=True), Quantiles(trainer.target, trains=False)
        chains = self._online.chains
        self.check(chains.get("torso", chains["head"]).inputs, chains["head"].outputs)
        if chains["embedding"].layers != (
            Layer(hyper.n_cos, network.torso.size, chains["embedding"].layers[0].activation),
        ):
            raise NotPlain(OTHER_SIZES)
        raw = ffi.new("struct mc_iqn *")
        self.describe(raw)
        self._online.describe(raw.online)
        self._target.describe(raw.target)
        raw.features, raw.cosines, raw.kappa = network.torso.size, hyper.n_cos, hyper.kappa
        raw.predicted, raw.sampled, raw.midpoints = hyper.n_tau, hyper.n_tau_prime, hyper.n_policy
        self._midpoints = network.midpoints.numpy()
        raw.shared = pointer(self._midpoints)

    def grow(self, rows: int) -> None:
        super().grow(rows)
        raw, hyper = self._raw, self.hyper
        most = max(hyper.n_tau, hyper.n_tau_prime, hyper.n_policy)
        self._online.grow(rows, most)
        self._target.grow(rows, most)
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
