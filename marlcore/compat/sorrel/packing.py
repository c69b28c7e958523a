"""Pickles environments and models without their memories, and restores a model."""

import io
import pickle
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from ...errors import pass_on_from_handler
from ...weights import ParameterStore

_LOCKS = {type(make()): make for make in (threading.Lock, threading.RLock)}


def pack(thing: Any, apart: Mapping[str, Any]) -> bytes:
    """Pickles `thing`; each object of `apart` is replaced by its name, wherever it occurs.

    A lock becomes a new, free lock. A view of a larger tensor becomes a separate tensor, since the pickle would
    otherwise hold the larger tensor once for each view.
    """
    file = io.BytesIO()
    try:
        _Packer(file, apart).dump(thing)
    except Exception as error:  # a class's own pickling may raise anything
        pass_on_from_handler(error)
        reason = str(error).partition("\n")[0]
        raise TypeError(f"{type(thing).__name__}: expected something that can be pickled ({reason})") from None
    return file.getvalue()


def unpack(data: bytes, apart: Mapping[str, Any]) -> Any:
    """Unpickles `data`, and replaces the names that `pack` left by the objects of `apart`."""
    unpickler: Any = pickle.Unpickler(io.BytesIO(data))
    unpickler.persistent_load = apart.__getitem__
    return unpickler.load()


class _Packer(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO, apart: Mapping[str, Any]) -> None:
        super().__init__(file)
        self._names = {id(thing): name for name, thing in apart.items()}

    def persistent_id(self, thing: Any) -> str | None:
        return self._names.get(id(thing))

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) in _LOCKS:
            return _LOCKS[type(thing)], ()
        tensor = isinstance(thing, torch.Tensor) and thing.is_leaf and thing.layout == torch.strided
        if tensor and thing.untyped_storage().nbytes() > thing.nbytes:
            make = torch.nn.Parameter if isinstance(thing, torch.nn.Parameter) else torch.Tensor.requires_grad_
            return make, (thing.detach().clone(), thing.requires_grad)
        return super().reducer_override(thing)


def networks(model: Any) -> torch.nn.Module:
    """Returns the model as one module: itself, or all modules among its attributes."""
    if isinstance(model, torch.nn.Module):
        return model
    return torch.nn.ModuleDict({name: part for name, part in vars(model).items() if isinstance(part, torch.nn.Module)})


def tensors_of(model: Any) -> list[torch.Tensor]:
    module = networks(model)
    return [*module.parameters(), *module.buffers()]


def move(model: Any, device: Any) -> None:
    """Moves the model's networks and its optimizers' states to a device; parameters stay the same objects."""
    networks(model).to(device)
    for optimizer in vars(model).values():
        if isinstance(optimizer, torch.optim.Optimizer):
            optimizer.load_state_dict(optimizer.state_dict())  # moves the state to the parameters' device
    if hasattr(model, "device"):
        model.device = device


def restore(model: Any, memory: Any, store: ParameterStore, saves: tuple[str, ...]) -> Mapping[str, Any]:
    """Restores a model: weights and epsilon from its learner's last publication, everything else from the last save.

    Returns the publication's extras. Raises TimeoutError, and changes nothing, if the publisher died while it wrote to
    the only slot. If the model's own classes raise, weights and epsilon were restored before.
    """
    subscriber = store.subscriber(networks(model))
    subscriber.pull()
    extras = subscriber.extras
    model.epsilon = extras["epsilon"]
    if extras["saves"]:
        place = [getattr(model, "device", tensor.device) for tensor in tensors_of(model)[:1]]
        saved = unpack(Path(saves[int(extras["saves"]) % 2]).read_bytes(), {"memory": memory})
        vars(model).update(vars(saved))
        for device in place:
            move(model, device)
        store.subscriber(networks(model)).pull()  # the saved weights are older
        model.epsilon = extras["epsilon"]
    return extras
