"""Finds the parts of networks whose call runs only `forward`, so that other code may replace the call."""

from typing import Any

from torch import nn
from torch.nn.modules import module as of_torch

PACKAGE = __package__.removesuffix("networks")  # with its dot
KINDS = (nn.Linear, nn.ReLU, nn.Tanh, nn.LSTM, nn.GRU, nn.ModuleList, nn.Sequential)
FORWARDS: dict[type, Any] = {kind: kind.forward for kind in KINDS}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = (
    of_torch._global_forward_hooks,
    of_torch._global_forward_pre_hooks,
    of_torch._global_backward_hooks,
    of_torch._global_backward_pre_hooks,
)


def is_plain(part: nn.Module) -> bool:
    """Tells whether a call of the module runs only a `forward` of this package or of torch.

    A part is not plain if an attribute of the object hides an attribute of its class, or if a linear layer's
    weight or bias is no parameter.
    """
    kind, own = type(part), vars(part)
    own_kind = kind.__module__.startswith(PACKAGE)
    if own_kind and kind.forward is nn.Module.forward:
        return True  # it cannot be called
    if kind in FORWARDS:
        plain = kind.forward is FORWARDS[kind]
    else:
        plain = own_kind and kind.forward.__module__.startswith(PACKAGE)
    if not plain or any(hasattr(kind, name) for name in own):
        return False
    return kind is not nn.Linear or own["_parameters"].keys() == {"weight", "bias"}
