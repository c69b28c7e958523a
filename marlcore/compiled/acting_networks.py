"""Networks of actors, each a form of a torch network: they load published weights, and map observations to outputs.

`load` takes the weights by name. `outputs` maps observations [k, ...], an array or arrays by name, to float32
[k, ..., at least the network's outputs], which the next call overwrites. `begun` returns the layers that are left to
compute, and their inputs [k, ...]: the core computes them in the call that chooses by the outputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..observations import ALONE
from .chain import NO_LAYERS, Floats, NamedChain, Weights
from .inputs import Inputs
from .moments import normalized, of_observations

MEMBER = "member"  # the part of a member's observation that tells which one of its network's members it is


class ActingNetwork(ABC):
    """The base of networks of actors."""

    @abstractmethod
    def load(self, weights: Weights) -> None: ...

    @abstractmethod
    def outputs(self, obs: Any) -> Floats: ...

    def begun(self, obs: Any) -> tuple[Any, Floats]:
        return NO_LAYERS, self.outputs(obs)


class DenseNetwork(ActingNetwork):
    """One chain on the observations."""

    def __init__(self, inputs: Inputs, chain: NamedChain) -> None:
        self.inputs, self.chain = inputs, chain

    def load(self, weights: Weights) -> None:
        self.inputs.moments = of_observations(weights)
        self.chain.load(weights)

    def begun(self, obs: Any) -> tuple[Any, Floats]:
        chain, x = self.chain, self.inputs.matrix(obs)
        if len(x) > chain.rows:
            chain.grow(len(x))
        return chain.cdata, x

    def outputs(self, obs: Any) -> Floats:
        return self.chain.forward(self.inputs.matrix(obs))


class QuantileNetwork(ActingNetwork):
    """The network of IQN: the mean outputs over fixed fractions, whose embeddings multiply the observation's features.

    Args:
        torso: from observations to features; None: the features are the observations.
        embedding: from cosines to as many numbers as there are features.
        cosines: of each fraction, float32 [n, cosines].
    """

    def __init__(
        self, inputs: Inputs, torso: NamedChain | None, embedding: NamedChain, head: NamedChain, cosines: Floats
    ) -> None:
        self.inputs, self.torso, self.embedding, self.head, self.cosines = inputs, torso, embedding, head, cosines

    def load(self, weights: Weights) -> None:
        self.inputs.moments = of_observations(weights)
        for chain in (self.torso, self.embedding, self.head):
            if chain is not None:
                chain.load(weights)
        self._embedded = self.embedding.forward(self.cosines)[:, : self.head.inputs].copy()

    def outputs(self, obs: Any) -> Floats:
        features = self.inputs.matrix(obs)
        if self.torso is not None:
            features = self.torso.forward(features)
        with np.errstate(invalid="ignore", over="ignore"):  # as in chains
            products = features[:, None, : self.head.inputs] * self._embedded
            quantiles = self.head.forward(products.reshape(-1, self.head.inputs))
            means: Floats = np.add.reduce(quantiles.reshape(*products.shape[:2], -1), 1) / products.shape[1]
        return means


class MemberNetworks(ActingNetwork):
    """The networks of a team's members; outputs are [k, members, ...].

    Args:
        groups: of the members that share a network: the observation's part that has them, their rows there, and the
            network; in the order of the members.
        stack: observations in a stack.
    """

    def __init__(self, groups: Sequence[tuple[str, slice, DenseNetwork]], stack: int) -> None:
        self._groups, self._axis = groups, 2 if stack > 1 else 1
        self._numbers: list[Any] = [()] * len(groups)  # each group's one-hot numbers, for the last call's rows

    def load(self, weights: Weights) -> None:
        self._moments = of_observations(weights)
        for *_, network in self._groups:
            network.load(weights)

    def outputs(self, obs: Any) -> Floats:
        outputs = [self._of_group(index, *group, obs) for index, group in enumerate(self._groups)]
        return outputs[0] if len(outputs) == 1 else np.concatenate(outputs, 1)

    def _of_group(self, index: int, part: str, rows: slice, network: DenseNetwork, obs: Any) -> Floats:
        values, size = obs[part], rows.stop - rows.start
        if part in self._moments:
            values = normalized(values, *self._moments[part]).astype(np.float32)
        seen: Any = values.swapaxes(1, self._axis)[:, rows]  # [k, size, ...]
        k, stack, seen = len(seen), seen.shape[2 : self._axis + 1], seen.reshape(-1, *seen.shape[2:])
        if size > 1:
            if len(self._numbers[index]) != len(seen):
                numbers = np.tile(np.eye(size, dtype=np.float32), (k, 1))
                self._numbers[index] = np.repeat(numbers, stack[0], 0).reshape(-1, *stack, size) if stack else numbers
            seen = {ALONE: seen, MEMBER: self._numbers[index]}
        return network.outputs(seen).reshape(k, size, -1)
