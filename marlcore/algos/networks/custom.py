"""A user's own network, which replaces the built-in first layers or all layers."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces as gym
from torch import nn

from ...checks import brief
from ...observations import ALONE, each, in_form
from ...references import is_importable, reference_to, resolve
from ...spaces import Spaces
from .torso import Torso

TRIED = 3  # observations in the batch of the trial call of a network


def torso_of(
    hyper: Any,
    spaces: Spaces,
    hidden: tuple[int, ...],
    without: tuple[str, ...] = (),
    whole: nn.Module | None = None,
    called: str = "",
) -> "Torso | CustomTorso":
    """Makes the first layers: a Torso with layers of sizes `hidden`, or a user's network.

    Args:
        without: parts of the observation that the layers do not see.
        whole: a user's whole model, whose method or module `called` replaces all layers.
    """
    if whole is not None:
        return CustomTorso(hyper, spaces, whole, called=called)
    if hyper.network is None:
        return Torso(hyper, spaces, hidden, without)
    network = made_module(f"{hyper.owner} network", hyper.network, visible(spaces, without))
    return CustomTorso(hyper, spaces, network, without)


def whole_network(hyper: Any, spaces: Spaces, *parts: str) -> nn.Module | None:
    """Returns the user's network if it has all the methods or modules `parts`; otherwise None.

    Raises: ValueError: the network has some of `parts`, but not all.
    """
    if hyper.network is None:
        return None
    network = made_module(f"{hyper.owner} network", hyper.network, spaces)
    missing = [part for part in parts if not hasattr(network, part)]
    if missing and len(missing) < len(parts):
        raise ValueError(f"{hyper.owner} network: expected parts {' and '.join(parts)}, got no part {missing[0]}")
    return None if missing else network


def made_module(label: str, function: Any, *arguments: Any) -> nn.Module:
    """Returns the module that a user's function makes. Raises ValueError if it fails, or returns another object."""
    made_by = resolve(label, function) if isinstance(function, str) else function
    module = result_of(f"{label}: its function", made_by, *arguments)
    if not isinstance(module, nn.Module):
        raise ValueError(f"{label}: expected a function that returns a torch.nn.Module, got {brief(module)} from it")
    return module


def tried(label: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a user's layers without gradients; returns their result. Raises ValueError as `result_of` does."""
    with torch.no_grad():
        return result_of(label, call, *arguments)


def result_of(label: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the result of the user's code. Raises ValueError with the text of any error that the code raises."""
    try:
        return function(*arguments)
    except Exception as error:  # the user's code may raise any
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        got = ", ".join(map(form_of, arguments))
        raise ValueError(f"{label} raised {reason[:300]}, called with {got}") from error


def form_of(value: Any) -> str:
    """Describes, for messages, the dtype and shape of a tensor, or of the tensors in a tuple or dict."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {[*value.shape]}"
    if isinstance(value, tuple):
        return f"({', '.join(map(form_of, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{name}: {form_of(part)}' for name, part in value.items()))}}}"
    return brief(value)


def check_form(label: str, result: Any, expected: Any) -> None:
    """Raises ValueError if the shapes or dtypes of the user's result differ from those of `expected`."""
    if form_of(result) != form_of(expected):
        raise ValueError(f"{label}: expected {form_of(expected)}, got {form_of(result)}")


class CustomTorso(nn.Module):
    """A user's network, which maps observations to numbers [B, size]; it sees neither the mask nor the parts `without`.

    Args:
        called: the method or the module to call, if the network is a whole model.
        beside: further arguments of the trial call; with them, the network returns the values of two critics, [2, B].

    Raises: ValueError: the network's parameters are not float32 on the CPU; a whole model has no parameters to train; a
        call with a batch of zeros fails, or returns no float32 [B, n].
    """

    def __init__(
        self,
        hyper: Any,
        spaces: Spaces,
        network: nn.Module,
        without: tuple[str, ...] = (),
        called: str = "",
        beside: tuple[torch.Tensor, ...] = (),
    ) -> None:
        super().__init__()
        self.whole = bool(called)
        inside = getattr(network, called) if called else network
        self.network: nn.Module = inside if isinstance(inside, nn.Module) else network
        self._method = "__call__" if inside is self.network else called
        seen = visible(spaces, without)
        names = [part.name for part in spaces.parts if part.name not in without]
        self._only = None if _is_named(seen) else names[0]
        self._names = dict(zip((part.name for part in seen.parts), names, strict=True))
        self.size = self._tried(f"{hyper.owner} network", zeros_of(seen), beside)

    def forward(self, obs: Any, *beside: torch.Tensor) -> Any:
        return getattr(self.network, self._method)(self.inputs(obs), *beside)

    def inputs(self, obs: Any) -> Any:
        """Returns the network's input: a dict of tensors for a Dict or Tuple space, otherwise a tensor."""
        if not isinstance(obs, dict):
            return obs
        return {seen: obs[name] for seen, name in self._names.items()} if self._only is None else obs[self._only]

    def _tried(self, label: str, zeros: Any, beside: tuple[torch.Tensor, ...]) -> int:
        call = getattr(self.network, self._method)
        result = tried(label, call, zeros, *beside)
        shape = [*result.shape] if isinstance(result, torch.Tensor) else []
        good = shape == [2, TRIED] if beside else len(shape) == 2 and shape[0] == TRIED and shape[1] > 0
        if not good or result.dtype != torch.float32:
            expected = f"[2, {TRIED}] values of two critics" if beside else f"[{TRIED}, n]"
            raise ValueError(f"{label}: expected float32 {expected} for {TRIED} observations, got {form_of(result)}")
        of_one = tried(label, call, each(lambda part: part[:1], zeros), *(part[:1] for part in beside))
        check_form(f"{label}, called with one observation", of_one, result[:, :1] if beside else result[:1])
        for name, parameter in self.network.named_parameters():  # lazy layers have made theirs in the calls above
            if (parameter.dtype, parameter.device.type) != (torch.float32, "cpu"):
                got = f"{parameter.dtype} on {parameter.device} in {name}"
                raise ValueError(f"{label}: expected parameters of torch.float32 on the cpu, got {got}")
        if self.whole and not any(parameter.requires_grad for parameter in self.network.parameters()):
            raise ValueError(f"{label}: expected a model with parameters to train, got none in {brief(self.network)}")
        return int(shape[1])


def head_on(hyper: Any, torso: Any, outputs: int, make: Callable[[int, int], nn.Module] = nn.Linear) -> nn.Module:
    """Returns a module from the torso's features to `outputs` numbers, made by `make`; for a whole model, the identity.

    Raises: ValueError: a whole model has another number of outputs.
    """
    if not getattr(torso, "whole", False):
        return make(torso.size, outputs)
    if torso.size != outputs:
        raise ValueError(f"{hyper.owner} network: expected a whole model with {outputs} outputs, got {torso.size}")
    return nn.Identity()


def custom_function(label: str, given: Any, expected: str = "a function of mc.Spaces, or its module:name") -> Any:
    """Returns a user's function as a hyperparameter stores it: its module:name if importable, else the function.

    Raises: ValueError: the user gave no function, or the import fails.
    """
    function = resolve(label, given) if isinstance(given, str) else given
    if not callable(function) or isinstance(function, nn.Module):
        raise ValueError(f"{label}: expected {expected}, got {brief(given)}")
    if isinstance(given, str):
        return given
    reference = reference_to(function)
    with suppress(ValueError):  # a function of a script, or one whose name now means another, stays a function
        if reference and is_importable(reference) and resolve("network", reference) is function:
            return reference
    return function


def visible(spaces: Spaces, without: tuple[str, ...]) -> Spaces:
    """Returns the spaces without the Dict's parts `without`; if only "observation" remains, it replaces the Dict."""
    if not without:
        return spaces
    seen = {key: space for key, space in spaces.observation.spaces.items() if key not in without}
    return replace(spaces, observation=seen[ALONE] if seen.keys() == {ALONE} else gym.Dict(seen))


def zeros_of(spaces: Spaces) -> Any:
    """Returns a batch of zeros for a user's network; discrete values are the `start` of their space instead."""
    lead = (TRIED, spaces.stack) if spaces.stack > 1 else (TRIED,)
    parts = {}
    for part in spaces.parts:
        value = getattr(part.space, "start", 0)
        parts[part.name] = torch.from_numpy(np.full((*lead, *part.field.shape), value, part.field.numpy))
    return in_form(parts, parts if _is_named(spaces) else None)


def _is_named(spaces: Spaces) -> bool:
    return isinstance(spaces.observation, (gym.Dict, gym.Tuple))
