"""The base of networks whose calls skip those of their parts, as long as every part is as the package made it.

A call of a module of torch takes longer than the product of a small layer, and a small network makes ten of them. So a
Network says as plain operations what its `forward` computes, and a call runs these instead. Each call checks whether
they still stand for the modules: no hooks, no part replaced, added, compiled, parametrized or given another `forward`.
A part of another kind is called as usual, and a hooked one together with all that contain it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module as of_torch

__all__ = ["Network", "Operation", "Plan", "activated", "call_of", "is_known", "linear", "operations_of"]

Operation = Callable[..., Any]

_IN_PLACE: dict[Operation, Operation] = {torch.relu: torch.relu_, torch.tanh: torch.tanh_}
_FORWARD, _FORWARD_PRE = itemgetter("_forward_hooks"), itemgetter("_forward_pre_hooks")
_BACKWARD, _BACKWARD_PRE = itemgetter("_backward_hooks"), itemgetter("_backward_pre_hooks")
_ACTIVATION = itemgetter("_activation")
_GLOBAL_HOOKS = (
    of_torch._global_forward_hooks,
    of_torch._global_forward_pre_hooks,
    of_torch._global_backward_hooks,
    of_torch._global_backward_pre_hooks,
)
# What `operations_of` knows, each with the `forward` for which its operations stand.
_FORWARDS: dict[type, Any] = {kind: kind.forward for kind in (nn.Linear, nn.LSTM, nn.GRU, nn.ModuleList)}


class Network(nn.Module):
    """A module whose class may say in `operations` what its `forward` computes. Derived classes do not inherit that."""

    def __init__(self) -> None:
        super().__init__()
        self._plan: Plan | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "operations" in vars(cls):
            _FORWARDS[cls] = cls.forward

    def operations(self) -> list[Operation]:
        """The operations of `forward`: the first one takes its arguments, each later one the result before."""
        raise NotImplementedError

    def plan(self) -> Plan | None:
        """The plan that a call runs now; None if it calls the parts instead."""
        plan = self._plan
        if plan is None or plan.owner is not self or not plan.holds():  # shallow copies share it
            plan = self._plan = Plan(self)
        return None if plan.call is None or plan.is_hooked() else plan

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or (plan := self.plan()) is None:
            return super().__call__(*args, **kwargs)
        return plan.call(*args, **kwargs)


class Plan:
    """A network's operations, and the parts from which they were taken.

    Attributes:
        owner: the network.
        call: runs them; None where there are none.
    """

    def __init__(self, network: Network) -> None:
        self.owner = network
        parts = list(_parts(network)) if is_known(network) else []
        self._children = [part._modules for part in parts if part._modules]
        self._named = list(map(dict, self._children))
        self._parts = [part for part in parts if type(part) is not nn.ModuleList]  # which is never called
        self._kinds: list[Any] = list(map(type, self._parts))
        self._forwards = [kind.forward for kind in self._kinds]
        self._own = list(map(vars, self._parts))
        self._sizes = list(map(len, self._own))  # an attribute that hides one of the class is one more
        self._activating = [own for own in self._own if "_activation" in own]
        self._activations = list(map(_ACTIVATION, self._activating))
        self.call: Any = call_of(network) if parts else None

    def holds(self) -> bool:
        """Whether the network has the same parts and activations still; one that has no operations stays without."""
        return (
            list(map(type, self._parts)) == self._kinds
            and list(map(len, self._own)) == self._sizes
            and [kind.forward for kind in self._kinds] == self._forwards
            and self._children == self._named
            and list(map(_ACTIVATION, self._activating)) == self._activations
        )

    def is_hooked(self) -> bool:
        """Whether there are hooks, which operations would skip."""
        own = self._own
        return (
            any(_GLOBAL_HOOKS)
            or any(map(_FORWARD, own))
            or any(map(_FORWARD_PRE, own))
            or any(map(_BACKWARD, own))
            or any(map(_BACKWARD_PRE, own))
        )

    def __reduce__(self) -> Any:
        return type(None), ()  # copies of a network make their own


def operations_of(part: nn.Module) -> list[Operation]:
    """What a call of the part does, as operations one after another; a part of a foreign kind is one itself."""
    if not is_known(part):
        return [part]
    if isinstance(part, nn.Linear):
        return [partial(linear, part._parameters)]
    return cast(Network, part).operations()


def call_of(part: nn.Module) -> Operation:
    """The same as one operation."""
    first, *rest = operations_of(part)

    def call(*args: Any, **kwargs: Any) -> Any:
        x = first(*args, **kwargs)
        for operation in rest:
            x = operation(x)
        return x

    return call if rest else first


def activated(layer: nn.Module, activation: Operation) -> list[Operation]:
    """A call of the layer, then the activation: in place where no one else has the layer's output."""
    return [*operations_of(layer), _IN_PLACE.get(activation, activation) if is_known(layer) else activation]


def linear(tensors: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
    """What nn.Linear with these parameters (`layer._parameters`) computes."""
    return functional.linear(x, tensors["weight"], tensors["bias"])


def is_known(part: nn.Module) -> bool:
    """Whether its class has operations, which stand for its `forward`, and it hides no method of its class."""
    kind, own = type(part), vars(part)
    if _FORWARDS.get(kind) is not kind.forward or any(hasattr(kind, name) for name in own):
        return False
    return kind is not nn.Linear or own["_parameters"].keys() == {"weight", "bias"}  # else they are plain tensors


def _parts(part: nn.Module) -> Iterator[nn.Module]:
    """The part and those in it whose calls operations skip."""
    yield part
    for child in part.children():
        if is_known(child) or hasattr(child, "__iter__"):  # operations skip the calls of a container's members too
            yield from _parts(child)
