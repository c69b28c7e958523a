"""Adam's steps on arrays that others own, with their targets' moves."""

from collections.abc import Sequence
from typing import Any

from ..memory import ffi, lib
from .chain import Floats, pointer


class Adam:
    """Steps of Adam with a clipped gradient norm (Kingma & Ba 2015, arXiv:1412.6980).

    Args:
        weights, gradients, means, squares: for each tensor its float32 array, and the arrays of its gradient and of its
            moments, alike in size.
        targets: for each tensor the array that `move` moves towards it; may be empty.
    """

    def __init__(
        self, weights: Sequence[Floats], gradients: Sequence[Floats], means: Sequence[Floats],
        squares: Sequence[Floats], targets: Sequence[Floats] = (), epsilon: float = 1e-8,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:  # fmt: skip
        self._kept: Any = weights, gradients, means, squares, targets
        self._count = len(weights)
        self._raw = ffi.new("struct mc_tensor[]", self._count)
        for index, raw in enumerate(self._raw):
            raw.size = weights[index].size
            raw.weight, raw.gradient = pointer(weights[index]), pointer(gradients[index])
            raw.mean, raw.square = pointer(means[index]), pointer(squares[index])
            raw.target = pointer(targets[index]) if targets else ffi.NULL
        self._adam = ffi.new("struct mc_adam *", {"beta1": betas[0], "beta2": betas[1], "epsilon": epsilon})

    def describe(self, raw: Any, number: Floats) -> None:
        """Sets the core's `mc_descent` to these tensors; `number` [] is that of the last step, which it counts up."""
        raw.tensors, raw.count, raw.adam = self._raw, self._count, self._adam[0]
        raw.number = pointer(number)

    def step(self, rate: float, number: float, most: float) -> float:
        """Makes step `number`, from 1, on the gradient, scaled to the norm `most` if longer; returns the first norm."""
        self._adam.rate = rate
        return float(lib.mc_adam_step(self._raw, self._count, self._adam, number, most))

    def move(self, share: float) -> None:
        """Moves each target by this share of the way to its tensor; 1 copies exactly."""
        lib.mc_targets_move(self._raw, self._count, share)
