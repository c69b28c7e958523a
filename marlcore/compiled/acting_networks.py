"""Networks by which actors act without torch; each network loads the published weights of a torch network.

`load` takes the weights by name. `outputs` maps observations [k, ...], an array or arrays by name, to a float32 array
[k, ..., at least the network's outputs], which the next call overwrites. `begin` prepares the call of the core that
chooses actions, and may leave the outputs' computation to that call. It fills `begun`, the core's `struct mc_begun`,
and returns the number of rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..memory import ffi
from ..observations import ALONE
from .chain import Floats, NamedChain, Weights, put_rows
from .inputs import Inputs
from .moments import normalized, of_observations

MEMBER = "member"  # the part of a member's observation that holds its one-hot index among its network's members


class ActingNetwork(ABC):
    """The base class of the networks by which actors act; pickles and copies have no weights."""

    def __init__(self, *made_of: Any) -> None:
        self._made_of = made_of
        self.begun = ffi.new("struct mc_begun *")

    def __reduce__(self) -> Any:
        return type(self), self._made_of

    @abstractmethod
    def load(self, weights: Weights) -> None: ...

    @abstractmethod
    def outputs(self, obs: Any) -> Floats: ...

    def begin(self, obs: Any) -> int:
        outputs = self.outputs(obs)
        self._x = outputs.reshape(-1, outputs.shape[-1])  # an attribute, since `begun` points to it
        return put_rows(self._x, self.begun)


class DenseNetwork(ActingNetwork):
    """Computes one chain, whose inputs are the observations."""

    def __init__(self, inputs: Inputs, chain: NamedChain) -> None:
        super().__init__(inputs, chain)
        self.inputs, self.chain = inputs, chain
        self._x: Any = None
        self._rows = 0

    def load(self, weights: Weights) -> None:
        self.inputs.normalize(of_observations(weights))
        self.chain.load(weights)

    def begin(self, obs: Any) -> int:
        x = self.inputs.matrix(obs)
        if x is not self._x:
            self._x = None  # so that the next call does all of this if an interrupt comes in between
            self.chain.grow(len(x))
            self.begun.rest, self._rows = self.chain.raw, put_rows(x, self.begun)
            self._x = x
        return self._rows

    def outputs(self, obs: Any) -> Floats:
        return self.chain.forward(self.inputs.matrix(obs))


class QuantileNetwork(ActingNetwork):
    """Computes IQN's outputs, averaged over fixed fractions, whose embeddings multiply the observation's features.

    Args:
        torso: the chain from observations to features; None: the features are the observations.
        embedding: the chain from a fraction's cosines to as many numbers as there are features.
        cosines: the cosines of each fraction, float32 [fractions, cosines].
    """

    def __init__(
        self, inputs: Inputs, torso: NamedChain | None, embedding: NamedChain, head: NamedChain, cosines: Floats
    ) -> None:
        super().__init__(inputs, torso, embedding, head, cosines)
        self.inputs, self.torso, self.embedding, self.head, self.cosines = inputs, torso, embedding, head, cosines

    def load(self, weights: Weights) -> None:
        self.inputs.normalize(of_observations(weights))
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
    """Computes the networks of a team's members; outputs are [k, members, ...].

    Args:
        groups: for each network, the name of the observation's part that holds the members who share the network,
            the rows of these members in the part, and the network. Groups are in the order of the members.
        stack: how many observations a stack has; 1: observations are not stacked.
    """

    def __init__(self, groups: Sequence[tuple[str, slice, DenseNetwork]], stack: int) -> None:
        super().__init__(groups, stack)
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
