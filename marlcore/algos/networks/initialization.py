"""The first weights of layers."""

import math
from typing import Any, Literal

from torch import nn

from .custom import CustomTorso
from .recurrent import CustomCell
from .torso import StackedLinear

Initialization = Literal["default", "orthogonal", "xavier"]
INITIALIZERS: dict[str, Any] = {"orthogonal": nn.init.orthogonal_, "xavier": nn.init.xavier_uniform_}


def initialize(hyper: Any, part: nn.Module, gain: float = math.sqrt(2)) -> None:
    """Draws weights of fully connected and convolutional layers as `hyper.initialization` says, and zeroes biases.

    "default" keeps torch's values. Recurrent layers and users' networks always keep the values that they have.
    """
    if hyper.initialization == "default" or isinstance(part, (CustomTorso, CustomCell)):
        return
    if isinstance(part, (nn.Linear, nn.Conv2d, StackedLinear)):
        for weight in part.weight.data if isinstance(part, StackedLinear) else [part.weight]:
            INITIALIZERS[hyper.initialization](weight, gain)
        assert part.bias is not None
        nn.init.zeros_(part.bias)
    for child in part.children():
        initialize(hyper, child, gain)
