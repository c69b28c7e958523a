"""Chains of fully connected layers, which compute outputs and gradients from weights that the caller owns."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..memory import ffi, lib

Floats = NDArray[np.float32]
Weights = Mapping[str, NDArray[Any]]

FLOATS = ffi.typeof("float[]")  # looked up once, which saves a third of a call's time
NULL = ffi.NULL
PAD: int = lib.MC_PAD
ACTIVATIONS: dict[str | None, int] = {None: lib.MC_LINEAR, "relu": lib.MC_RELU, "tanh": lib.MC_TANH}
CPU = "MARLCORE_CPU"  # the environment variable that names the highest level to use
# The widest layers for which chains beat torch, measured by passes over 16 to 256 rows on an AMD Zen 5 (for avx2, with
# torch limited to AVX2)
WIDEST = {"baseline": 64, "avx2": 256, "avx512": 512}
LEVELS = tuple(WIDEST)


class Layer(NamedTuple):
    """Describes a layer by its sizes and the activation after it.

    Attributes:
        inputs, outputs: how many inputs and outputs the layer has, at least 1.
        activation: "relu", "tanh" or None.
        inputs_first: whether the weight is [inputs, outputs]; otherwise [outputs, inputs], as in torch.nn.Linear.
    """

    inputs: int
    outputs: int
    activation: str | None = None
    inputs_first: bool = False


class Chain:
    """Computes layers one after another, for any number of rows; with `trains`, also the gradients.

    The chain's arrays grow with the largest number of rows, and are reused: each call overwrites earlier results.

    Attributes:
        raw: the fields of the core's `struct mc_chain` by name; their pointers are valid while this object exists.
        rows: the number of rows for which the arrays are long enough; see `grow`.
        gradient: the gradient of the outputs, padded [rows, outputs], which the caller sets; only with `trains`.
    """

    gradient: Floats

    def __init__(self, layers: Sequence[Layer], trains: bool = False) -> None:
        self.layers = tuple(layers)
        self.inputs, self.outputs = self.layers[0].inputs, self.layers[-1].outputs
        self._trains = trains
        self._count = len(self.layers)
        self._raw = ffi.new("struct mc_layer[]", self._count)
        self.raw = {"layers": self._raw, "count": self._count}
        self._packs: list[tuple[Any, ...]] = []  # each layer's forward and backward copies and its bias
        for raw, layer in zip(self._raw, self.layers, strict=True):
            raw.inputs, raw.outputs, raw.inputs_first = layer.inputs, layer.outputs, layer.inputs_first
            raw.activation = ACTIVATIONS[layer.activation]
            backward = padded_zeros(layer.outputs, layer.inputs) if trains else None
            self._packs.append((padded_zeros(layer.inputs, layer.outputs), backward, padded_zeros(1, layer.outputs)))
        self.rows = -1  # before the first call there are no arrays
        self._kept: Any = ()  # the arrays to which the raw layers point

    def bind(self, weights: Sequence[Floats], gradients: Sequence[Floats] = ()) -> None:
        """Takes arrays of each layer's weight and bias in turn, and arrays for their gradients; then packs the weights.

        Raises ValueError if an array has a wrong size.
        """
        expected = [size for layer in self.layers for size in (layer.inputs * layer.outputs, layer.outputs)]
        for arrays in filter(None, (weights, gradients)):
            if (sizes := [array.size for array in arrays]) != expected:
                raise ValueError(f"weights: expected arrays of {expected} numbers, got {sizes}")
        self._kept = [*weights, *gradients]
        for index, raw in enumerate(self._raw):
            raw.weight, raw.bias = pointer(weights[2 * index]), pointer(weights[2 * index + 1])
            if gradients:
                raw.weight_gradient = pointer(gradients[2 * index])
                raw.bias_gradient = pointer(gradients[2 * index + 1])
            forward, backward, row = map(pointer, self._packs[index])
            first, raw.row = self.layers[index].inputs_first, row
            raw.forward = raw.weight if first and not raw.outputs % PAD else forward
            if self._trains:
                raw.backward = raw.weight if not first and not raw.inputs % PAD else backward
        self.pack()

    def pack(self) -> None:
        """Makes the following calls use the weights' present values."""
        lib.mc_layers_pack(self._raw, self._count)

    def grow(self, rows: int) -> None:
        """Makes the arrays long enough for this number of rows."""
        if rows <= self.rows:
            return
        self.rows = -1  # so that the next call does all of this if an interrupt comes in between
        self._outputs = [padded_zeros(rows, layer.outputs) for layer in self.layers]
        self._gradients = [padded_zeros(rows, layer.outputs) for layer in self.layers if self._trains]
        for raw, output in zip(self._raw, self._outputs, strict=True):
            raw.output = pointer(output)
        for raw, gradient in zip(self._raw, self._gradients, strict=False):
            raw.gradient = pointer(gradient)
        if self._trains:
            self.gradient = self._gradients[-1]
        self.rows = rows

    def forward(self, x: Floats) -> Floats:
        """Returns the last layer's outputs [rows, padded outputs] for `x` [rows, at least inputs], C-contiguous."""
        rows, row = x.shape
        self.grow(rows)
        lib.mc_layers_forward(self._raw, self._count, rows, pointer(x), row)
        return self._outputs[-1][:rows]

    def repacked(self, x: Floats) -> Floats:
        """Calls `pack`, then returns `forward(x)`."""
        self.pack()
        return self.forward(x)

    def backward(self, x: Floats, x_gradient: Floats | None = None) -> None:
        """Computes the weights' gradients or, given `x_gradient`, only the gradient of `x`, from `gradient`.

        `x` is the argument of the last call of `forward`, with padded rows.
        """
        rows, row, trains = *x.shape, x_gradient is None
        lib.mc_layers_backward(self._raw, self._count, rows, pointer(x), row, pointer(x_gradient), trains)


class NamedChain(Chain):
    """Takes a chain's weights from a mapping; a pickle or a copy has the layers and the names, but no weights.

    Args:
        names: keys of the mapping: the first layer's weight, its bias, the second layer's weight, and so on.
    """

    def __init__(self, layers: Sequence[Layer], names: Sequence[str]) -> None:
        super().__init__(layers)
        self._names = names

    def load(self, weights: Weights) -> None:
        self.bind([np.ascontiguousarray(weights[name], np.float32) for name in self._names])

    def __reduce__(self) -> Any:
        return type(self), (self.layers, self._names)


def padded_zeros(rows: int, columns: int) -> Floats:
    """Returns float32 zeros [rows, columns rounded up to a multiple of 16], aligned to 64 bytes for SIMD."""
    pitch = -(-columns // PAD) * PAD
    memory = np.zeros(rows * pitch + PAD - 1, np.float32)
    first = -(memory.ctypes.data // memory.itemsize) % PAD
    return memory[first : first + rows * pitch].reshape(rows, pitch)


def put_rows(x: Floats, begun: Any) -> int:
    """Makes a `struct mc_begun` point to these rows, and returns how many there are."""
    (begun.rows, begun.x_row), begun.x = x.shape, ffi.from_buffer(FLOATS, x)
    return len(x)


def pointer(array: Floats | None) -> Any:
    return NULL if array is None else ffi.from_buffer(FLOATS, array)


def use_level(name: str) -> str:
    """Selects the "baseline", "avx2" or "avx512" kernels, or the processor's best if it lacks these; returns the level.

    Raises ValueError if the name is none of these three.
    """
    if name not in WIDEST:
        raise ValueError(f"{CPU}: expected one of {', '.join(WIDEST)}, got {name!r}")
    return LEVELS[int(lib.mc_dense_use(LEVELS.index(name)))]


def level() -> str:
    """Returns the name of the kernels in use: "baseline", "avx2" or "avx512"."""
    return LEVELS[int(lib.mc_dense_level())]


def widest() -> int:
    """Returns the number of units up to which layers are faster in chains than in torch, with the kernels in use."""
    return WIDEST[level()]


use_level(os.environ.get(CPU, "").lower() or LEVELS[-1])
