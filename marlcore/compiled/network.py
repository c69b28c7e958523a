"""A network of fully connected layers that acts without torch, for programs that keep their own loop."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..checks import brief, check_type
from ..errors import LayoutMismatch
from ..fixed import fixed
from .chain import Floats, Layer, NamedChain, Weights

if TYPE_CHECKING:
    import torch

Activation = Literal["relu", "tanh"]


@fixed()
class Compiled:
    """A network of fully connected layers that acts by marlcore's own kernels: a few microseconds a call, no torch.

    It can be pickled and copied, and several threads may use it. A store's subscriber keeps it up to date:
    `store.subscriber(network).pull()`. Numbers of other dtypes become float32; NaN and infinities pass through.

    Args:
        network: a torch.nn.Sequential, which may be nested, of Linear, ReLU and Tanh without hooks; or a flat mapping
            of names to arrays: each layer's weight [outputs, inputs], then its bias [outputs]. The values are copied.
        activation: for arrays, "relu" (the default) or "tanh" follows each layer but the last; for a module, None.

    Attributes:
        weights: float32 arrays, named as in the module's `state_dict`. You may write to the arrays; the next `load`
            makes `act` use the new values.
        inputs, outputs: how many numbers an observation has, and how many a result.

    Raises ValueError or TypeError if a layer is of another kind, or if arrays' shapes do not fit one another.
    """

    def __init__(self, network: torch.nn.Module | Weights, activation: Activation | None = None) -> None:
        if isinstance(network, Mapping):
            if activation not in (None, "relu", "tanh"):
                raise ValueError(f"activation: expected relu or tanh, got {brief(activation)}")
            arrays = {name: _floats(f"network {name}", array) for name, array in network.items()}
            following: list[str | None] = [activation or "relu"] * (len(arrays) // 2 - 1) + [None]
        else:
            if activation is not None:
                raise ValueError(f"activation: expected None for a module, which has its own, got {brief(activation)}")
            arrays, following = _read(network)
        self.weights, self._chain = arrays, NamedChain(_layers(arrays, following), [*arrays])
        self.inputs, self.outputs = self._chain.inputs, self._chain.outputs
        self._lock = Lock()  # a call of C lets other threads run
        self.load()

    def __repr__(self) -> str:
        sizes = [self.inputs, *(layer.outputs for layer in self._chain.layers)]
        return f"<Compiled {'-'.join(map(str, sizes))}>"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())
        self.load()

    def load(self, weights: Weights | None = None) -> None:
        """Copies `weights`, if given, into the attribute `weights`; following calls use the attribute's present values.

        Raises LayoutMismatch or TypeError, and changes nothing, if names, shapes or kinds differ from those of the
        attribute.
        """
        if weights is not None:
            check_type("weights", weights, Mapping, expected="arrays by name")
            arrays = {name: _floats(f"weights {name}", array) for name, array in weights.items()}
            if arrays.keys() != self.weights.keys():
                raise LayoutMismatch(f"weights: expected the names {[*self.weights]}, got {brief([*arrays])}")
            for name, array in self.weights.items():
                if arrays[name].shape != array.shape:
                    expected, got = list(array.shape), list(arrays[name].shape)
                    raise LayoutMismatch(f"weights {name}: expected {expected}, got {got}")
            for name, array in self.weights.items():
                array[...] = arrays[name]
        with self._lock:
            self._chain.load(self.weights)

    def act(self, obs: NDArray[Any]) -> Floats:
        """Returns a new float32 array: [k, outputs] for observations [k, inputs], [outputs] for a single [inputs].

        Raises ValueError if the observations have another shape, TypeError if they are not numbers.
        """
        rows = obs if type(obs) is np.ndarray and obs.dtype == np.float32 else _floats("obs", obs)
        if rows.ndim not in (1, 2) or rows.shape[-1] != self.inputs:
            raise ValueError(f"obs: expected [k, {self.inputs}] or [{self.inputs}], got {list(rows.shape)}")
        matrix = np.ascontiguousarray(rows if rows.ndim == 2 else rows[None])
        with self._lock:
            outputs = self._chain.forward(matrix)[:, : self.outputs].copy()
        return outputs if rows.ndim == 2 else outputs[0]


def _floats(label: str, value: Any) -> Floats:
    """Copies numbers to float32. Raises TypeError if the value is no array of numbers."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise TypeError(f"{label}: expected an array of numbers, got {brief(value)} ({brief(error)})") from None
    if array.dtype.kind not in "fiub" and not array.dtype.name.startswith("bfloat"):
        raise TypeError(f"{label}: expected an array of numbers, got {brief(value)}")
    with np.errstate(over="ignore"):  # beyond float32's range lies infinity
        return array.astype(np.float32, order="C")


def _read(network: Any) -> tuple[dict[str, Floats], list[str | None]]:
    """Returns the arrays of a module of plain layers, and the activation after each layer."""
    nn: Any = getattr(sys.modules.get("torch"), "nn", None)
    if nn is None or not isinstance(network, nn.Module):
        raise TypeError(f"network: expected a torch.nn.Module or arrays by name, got {brief(network)}")
    arrays: dict[str, Floats] = {}
    following: list[str | None] = []
    names = {nn.ReLU: "relu", nn.Tanh: "tanh"}
    for name, part in network.named_modules(remove_duplicate=False):  # a part may stand in several places
        if part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part):
            own = "a hook or a forward of its own"
            raise ValueError(f"network {name or '(itself)'}: expected layers without {own}, got {brief(part)} with one")
        if type(part) is nn.Linear and part.bias is not None and part.weight.device.type != "meta":
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
        got = brief(names) if names else "no layers"
        raise ValueError(f"network: expected a weight and a bias for each layer, got {got}")
    layers: list[Layer] = []
    for weight, bias, activation in zip(names[::2], names[1::2], following, strict=True):
        shape, inputs = arrays[weight].shape, layers[-1].outputs if layers else None
        if len(shape) != 2 or 0 in shape or (inputs is not None and shape[1] != inputs):
            raise ValueError(f"network {weight}: expected [outputs, {inputs or 'inputs'}], got {list(shape)}")
        if arrays[bias].shape != shape[:1]:
            raise ValueError(f"network {bias}: expected [{shape[0]}], got {list(arrays[bias].shape)}")
        layers.append(Layer(shape[1], shape[0], activation))
    return layers
