"""Forward passes without the calls of modules.

A call of a torch module takes longer than the product of a small layer, and a small network makes ten such calls. So
`faster` runs a network's `forward` on a stand-in: an object of a class derived from the network's own, with the
network's attributes, but with functions in place of its layers and stand-ins in place of its other parts. Use it for
networks without a form in algos/compiled/: recurrent networks, teams' networks, and networks with further layers.
"""

from collections.abc import Callable
from functools import cache, partial
from operator import attrgetter
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.nn import functional

from .plain_parts import GLOBAL_HOOKS, HOOKS, is_plain
from .recurrent import Recurrent, State, Stepped

FORWARD = attrgetter("forward")
OF_MODULES = {*vars(nn.Module()), "_plan"}
WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")  # of one recurrent layer

M = TypeVar("M", bound=nn.Module)


def faster(module: M) -> M:
    """Returns a stand-in with the module's methods, or the module itself if it has hooks or is a user's own.

    Call this before each use of the stand-in, since the module may have changed.
    """
    plan = vars(module).get("_plan")
    if plan is None or plan.owner is not module or not plan.holds():  # shallow copies share the plan
        if not is_plain(module):
            return module
        vars(module)["_plan"] = None  # the new plan counts this attribute too
        plan = vars(module)["_plan"] = Plan(module)
    return module if plan.is_hooked() else plan.stand_in


class Plan:
    """Holds a stand-in for the module `owner`, and the parts whose calls the stand-in skips."""

    def __init__(self, module: nn.Module) -> None:
        self.owner = module
        parts: list[nn.Module] = []
        self.stand_in = self._form(module, parts)
        self._children = [part._modules for part in parts if part._modules]
        self._named = list(map(dict, self._children))
        self._parts = [part for part in parts if type(part) is not nn.ModuleList]  # a ModuleList is never called
        self._each_kind = list(dict.fromkeys(map(type, self._parts)))
        self._own = list(map(vars, self._parts))
        self._hooks = [own[name] for own in self._own for name in HOOKS]
        self._first = self._look()

    def _form(self, part: nn.Module, parts: list[nn.Module]) -> Any:
        """Returns the part's replacement in the stand-in: the part itself if its call may do more than `forward`."""
        if not is_plain(part):
            return part
        parts.append(part)
        form: Callable[[nn.Module, Form], Any] = FORMS.get(type(part), _stand_in)
        return form(part, lambda child: self._form(child, parts))

    def _look(self) -> list[Any]:
        return [
            *map(type, self._parts),
            *map(len, self._own),  # these grow if an attribute hides one of the class
            *map(FORWARD, self._each_kind),
        ]

    def holds(self) -> bool:
        """Returns whether the stand-in still fits the module, which must have the same parts, of the same classes."""
        return self._look() == self._first and self._children == self._named

    def is_hooked(self) -> bool:
        """Returns whether any part has hooks, or torch has global hooks."""
        return any(GLOBAL_HOOKS) or any(self._hooks)

    def __reduce__(self) -> Any:
        return type(None), ()  # a copied module makes a plan of its own


Form = Callable[[nn.Module], Any]


def _stand_in(part: nn.Module, form: Form) -> Any:
    own, kind = vars(part), cast(Any, type(part))
    names = tuple(own.keys() - OF_MODULES)
    other = object.__new__(_called(kind, names, tuple(part._buffers), tuple(part._parameters)))
    vars(other).update({name: value for name, value in own.items() if name in OF_MODULES}, _own=own)
    vars(other).update({name: form(child) for name, child in part._modules.items() if child is not None})
    return other


@cache
def _called(kind: Any, attributes: tuple[str, ...], buffers: tuple[str, ...], parameters: tuple[str, ...]) -> Any:
    """Returns a subclass of `kind` that runs only `forward` when called, and reads its attributes from the module."""
    members: dict[str, Any] = {"__call__": kind.forward}
    for store, names in {"_own": attributes, "_buffers": buffers, "_parameters": parameters}.items():
        members |= {name: _item_of(store, name) for name in names}
    return type(kind.__name__, (kind,), members)


def _item_of(store: str, name: str) -> property:
    def get(other: Any) -> Any:
        return other.__dict__[store][name]  # `vars` takes twice the time

    return property(get)


def _linear(tensors: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, tensors["weight"], tensors["bias"])


def _recurrent(core: Any, form: Form) -> Any:
    """Returns a function that computes single steps by torch's cell function, and windows by the layer.

    For a step, the cell function takes a fourth of the layer's time, but rounds differently.
    """
    other, layer = _stand_in(core, form), core.layer
    if not is_plain(layer) or tuple(layer._parameters) != WEIGHTS:
        return other

    def step(x: torch.Tensor, state: State) -> Stepped:
        if x.ndim == 3:
            return other(x, state)  # type: ignore[no-any-return]
        weights = [layer._parameters[name] for name in WEIGHTS]
        if len(core.parts) == 1:
            hidden = torch.gru_cell(x, state["hidden"], *weights)
            return hidden, {"hidden": hidden}
        hidden, cell = torch.lstm_cell(x, (state["hidden"], state["cell"]), *weights)
        return hidden, {"hidden": hidden, "cell": cell}

    return step


FORMS: dict[type, Any] = {
    nn.Linear: lambda layer, _: partial(_linear, layer._parameters),
    nn.ModuleList: lambda layers, form: [form(layer) for layer in layers],
    nn.ReLU: lambda *_: torch.relu,
    nn.Tanh: lambda *_: torch.tanh,
    **dict.fromkeys((nn.LSTM, nn.GRU), lambda layer, _: layer),
    Recurrent: _recurrent,
}
