"""Forward passes without the calls of modules.

A call of a torch module takes longer than the product of a small layer, and a small network makes ten such calls. So
`faster` runs a network's `forward` on a stand-in: an object of a class derived from the network's own, with the
network's attributes, but with functions in place of its layers and stand-ins in place of its other parts. It serves
networks that are not compiled: with memory, of teams, or with other layers than chains have (algos/compiled/).
"""

from collections.abc import Callable
from functools import cache, partial
from operator import attrgetter
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.nn import functional

from .plain_parts import GLOBAL_HOOKS, HOOKS, is_plain
from .qnetwork import Head
from .recurrent import Recurrent, State, Stepped
from .torso import Dense

FORWARD = attrgetter("forward")
OF_MODULES = {*vars(nn.Module()), "_plan"}
WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")  # of one recurrent layer
IN_PLACE = {torch.relu: torch.relu_, torch.tanh: torch.tanh_}

M = TypeVar("M", bound=nn.Module)


def faster(module: M) -> M:
    """Returns a stand-in with the module's call and methods, or the module itself if it is not the package's own.

    Ask for the stand-in at each call: it stands for the module as it is now.
    """
    plan = plan_of(module)
    return module if plan is None else plan.stand_in


def plan_of(module: nn.Module) -> "Plan | None":
    """Returns the module's plan; None if there is none, or if the module has hooks, which the plan would skip."""
    plan = vars(module).get("_plan")
    if plan is None or plan.owner is not module or not plan.holds():  # shallow copies share it
        if not is_plain(module):
            return None
        vars(module)["_plan"] = None
        plan = vars(module)["_plan"] = Plan(module)
    return None if plan.is_hooked() else plan


class Plan:
    """Holds a stand-in for the module `owner`, and the parts whose calls the stand-in skips."""

    def __init__(self, module: nn.Module) -> None:
        self.owner = module
        parts: list[nn.Module] = []
        self.stand_in = self._form(module, parts)
        self._children = [part._modules for part in parts if part._modules]
        self._named = list(map(dict, self._children))
        self._parts = [part for part in parts if type(part) is not nn.ModuleList]  # which is never called
        self._kinds: list[Any] = list(map(type, self._parts))
        self._each_kind = list(dict.fromkeys(self._kinds))
        self._forwards = list(map(FORWARD, self._each_kind))
        self._own = list(map(vars, self._parts))
        self._hooks = [own[name] for own in self._own for name in HOOKS]
        self._sizes = list(map(len, self._own))  # they grow if an attribute hides one of the class

    def _form(self, part: nn.Module, parts: list[nn.Module]) -> Any:
        """Returns the part's form in the stand-in: the part itself if calling it may do more than its `forward`."""
        if not is_plain(part):
            return part
        parts.append(part)
        form: Callable[[nn.Module, Form], Any] = FORMS.get(type(part), _stand_in)
        return form(part, lambda child: self._form(child, parts))

    def holds(self) -> bool:
        """Returns whether the stand-in still fits the module: the same parts of the same classes."""
        return (
            list(map(type, self._parts)) == self._kinds
            and list(map(len, self._own)) == self._sizes
            and list(map(FORWARD, self._each_kind)) == self._forwards
            and self._children == self._named
        )

    def is_hooked(self) -> bool:
        """Returns whether any part has hooks, or torch has global ones."""
        return any(GLOBAL_HOOKS) or any(self._hooks)

    def __reduce__(self) -> Any:
        return type(None), ()  # copies of a module make their own


def linear(tensors: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    """Returns what an nn.Linear with these parameters (`layer._parameters`) computes."""
    return functional.linear(x, tensors["weight"], tensors["bias"])


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
    """Returns a class whose objects, when called, run only `forward`, and whose attributes are the module's own."""
    members: dict[str, Any] = {"__call__": kind.forward}
    for store, names in {"_own": attributes, "_buffers": buffers, "_parameters": parameters}.items():
        members |= {name: _item_of(store, name) for name in names}
    return type(kind.__name__, (kind,), members)


def _item_of(store: str, name: str) -> property:
    def get(other: Any) -> Any:
        return other.__dict__[store][name]  # `vars` takes twice the time

    return property(get)


def _dense(dense: Any, form: Form) -> Any:
    """Runs the layers one after another; applies the activation in place where only it uses a layer's output."""
    other = _stand_in(dense, form)
    if not isinstance(other.layers, list):
        return other
    operations: list[Any] = []
    for layer in other.layers:
        fresh = isinstance(layer, partial)
        operations += [layer, IN_PLACE.get(other.activation, other.activation) if fresh else other.activation]

    def run(x: torch.Tensor) -> torch.Tensor:
        for operation in operations:
            x = operation(x)
        return x

    return run


def _head(head: Any, form: Form) -> Any:
    other = _stand_in(head, form)
    hidden, output, combined = other.hidden, other.output, other.combined
    if not isinstance(hidden, partial):
        return other
    activation = IN_PLACE.get(other.activation, other.activation)
    return lambda features: combined(output(activation(hidden(features))))


def _recurrent(core: Any, form: Form) -> Any:
    """Runs one step by torch's cell function, in a fourth of the time but with other rounding; windows by the layer."""
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
    nn.Linear: lambda layer, _: partial(linear, layer._parameters),
    nn.ModuleList: lambda layers, form: [form(layer) for layer in layers],
    nn.ReLU: lambda *_: torch.relu,
    nn.Tanh: lambda *_: torch.tanh,
    **dict.fromkeys((nn.LSTM, nn.GRU), lambda layer, _: layer),
    Dense: _dense,
    Head: _head,
    Recurrent: _recurrent,
}
