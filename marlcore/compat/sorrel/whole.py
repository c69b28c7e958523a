"""A whole model, optimizer and all: how a learner saves it, and how its successor and the caller get it back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...weights import ParameterStore
from .packing import pack, unpack
from .role import networks

_MEMORY = "memory"


def save(model: Any, memory: Any, path: str) -> None:
    """Writes all of the model but its memory to a file."""
    with open(path, "wb") as file:
        file.write(pack(model, [(memory, _MEMORY)]))


def copied(model: Any, memory: Any) -> Any:
    """A copy of the model with the same memory, whose tensors have memory of their own."""
    return unpack(pack(model, [(memory, _MEMORY)]), {_MEMORY: memory})


def restore(model: Any, memory: Any, store: ParameterStore, saved: tuple[str, ...]) -> Mapping[str, Any]:
    """Gives a model the weights and epsilon that its learner published last, and all else that it saved last.

    Returns: the extras of that publication.

    Raises:
        TimeoutError: the only slot of a snapshot store is torn, since its publisher died while it wrote; the model is
            unchanged.
        Exception: what a class of the model raises where it is unpickled; the model has the weights and epsilon.
    """
    subscriber = store.subscriber(networks(model))
    subscriber.pull()
    extras = subscriber.extras
    model.epsilon = extras["epsilon"]
    if extras["saved"]:
        whole = unpack(Path(saved[int(extras["saved"]) % 2]).read_bytes(), {_MEMORY: memory})
        vars(model).update(vars(whole))
        store.subscriber(networks(model)).pull()  # the saved weights are older
        model.epsilon = extras["epsilon"]
    return extras
