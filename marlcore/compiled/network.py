"""A network of fully connected layers that acts without torch, for programs that keep their own loop."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..checks import brief
from .chain import Chain, Floats, Layer

if TYPE_CHECKING:
    import torch

Weights = Mapping[str, NDArray[Any]]
Activation = Literal["relu", "tanh"]


class Compiled:
    """A network of fully connected layers that acts by marlcore's own kernels: a few microseconds a call, no torch.

    It can be pickled and copied. A store's subscriber keeps it up to date: `store.subscriber(network).pull()`.

    Args:
        network: a torch.nn.Sequential of Linear, ReLU and Tanh, also nested; or arrays by name: each layer's weight
            [outputs, inputs], then its bias [outputs], in order. Their values are copied.
        activation: "relu" or "tanh", after each layer of arrays but the last.

    Attributes:
        weights: float32 arrays by name, those of the module's `state_dict`; what is written to them counts from the
            next `load` on.
        inputs, outputs: numbers of an observation and of a result.

    Raises: ValueError, TypeError: another kind of layer, or arrays whose shapes do not follow one another.
    """

    def __init__(self, network: torch.nn.Module | Weights, activation: Activation = "relu") -> None:
        if isinstance(network, Mapping):
            if activation not in ("relu", "tanh"):
                raise ValueError(f"activation: expected relu or tanh, got {brief(activation)}")
            arrays = {name: np.array(array, np.float32, order="C") for name, array in network.items()}
            following: list[str | None] = [activation] * (len(arrays) // 2 - 1) + [None]
        else:
            arrays, following = _read(network)
        self.__setstate__((arrays, _layers(arrays, following)))

    def __getstate__(self) -> tuple[dict[str, Floats], list[Layer]]:
        return self.weights, self._layers

    def __setstate__(self, state: tuple[dict[str, Floats], list[Layer]]) -> None:
        self.weights, self._layers = state
        self.inputs, self.outputs = self._layers[0].inputs, self._layers[-1].outputs
        self._chain, self._lock = Chain(self._layers), Lock()  # a call of C lets other threads run
        self.load()

    def load(self, weights: Weights | None = None) -> None:
        """Takes the values of `weights`, or the present ones of the attribute `weights`, for the following calls.

        Raises: ValueError: a name or shape differs from those of the attribute `weights`; nothing is changed then.
        """
        if weights is not None:
            shapes = {name: np.shape(array) for name, array in weights.items()}
            expected = {name: array.shape for name, array in self.weights.items()}
            if shapes != expected:
                name = next(name for name in [*expected, *shapes] if expected.get(name) != shapes.get(name))
                raise ValueError(f"weights {name}: expected {expected.get(name)}, got {shapes.get(name)}")
            for name, array in self.weights.items():
                array[...] = weights[name]
        with self._lock:
            self._chain.bind([*self.weights.values()])

    def act(self, obs: NDArray[Any]) -> Floats:
        """Returns the outputs, float32 [k, outputs], of observations [k, inputs]; of one [inputs], [outputs].

        Raises: ValueError: observations of another shape.
        """
        rows = np.ascontiguousarray(obs, np.float32)
        if rows.ndim not in (1, 2) or rows.shape[-1] != self.inputs:
            raise ValueError(f"obs: expected [k, {self.inputs}] or [{self.inputs}], got {list(rows.shape)}")
        with self._lock:
            outputs = self._chain.forward(rows if rows.ndim == 2 else rows[None])[:, : self.outputs].copy()
        return outputs if rows.ndim == 2 else outputs[0]


def _read(network: Any) -> tuple[dict[str, Floats], list[str | None]]:
    """Returns the arrays of a module of plain layers, and the activation after each layer."""
    nn: Any = getattr(sys.modules.get("torch"), "nn", None)
    if nn is None or not isinstance(network, nn.Module):
        raise TypeError(f"network: expected a torch.nn.Module or arrays by name, got {brief(network)}")
    arrays: dict[str, Floats] = {}
    following: list[str | None] = []
    names = {nn.ReLU: "relu", nn.Tanh: "tanh"}
    for name, part in network.named_modules(remove_duplicate=False):  # a part may stand in several places
        if part._forward_hooks or part._forward_pre_hooks:
            raise ValueError(f"network {name or '(itself)'}: expected layers without hooks, got {brief(part)} with one")
        if type(part) is nn.Linear and part.bias is not None:
            prefix = f"{name}." if name else ""
            for key in ("weight", "bias"):
                arrays[prefix + key] = getattr(part, key).detach().cpu().float().numpy().copy()
            following.append(None)
        elif type(part) in names and following and following[-1] is None:
            following[-1] = names[type(part)]
        elif type(part) is not nn.Sequential:
            expected = "Linear layers with ReLU or Tanh after them in a Sequential"
            raise ValueError(f"network {name or '(itself)'}: expected {expected}, got {brief(part)}")
    return arrays, following


def _layers(arrays: Mapping[str, Floats], following: Sequence[str | None]) -> list[Layer]:
    names = [*arrays]
    if not names or len(names) % 2:
        raise ValueError(f"network: expected a weight and a bias for each layer, got {brief(names)}")
    layers: list[Layer] = []
    for weight, bias, activation in zip(names[::2], names[1::2], following, strict=True):
        shape, inputs = arrays[weight].shape, layers[-1].outputs if layers else None
        if len(shape) != 2 or 0 in shape or (inputs is not None and shape[1] != inputs):
            raise ValueError(f"network {weight}: expected [outputs, {inputs or 'inputs'}], got {list(shape)}")
        if arrays[bias].shape != shape[:1]:
            raise ValueError(f"network {bias}: expected [{shape[0]}], got {list(arrays[bias].shape)}")
        layers.append(Layer(shape[1], shape[0], activation))
    return layers
