"""What shows a torn copy: rows that name themselves, and weights that are all one number."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from marlcore.testing.rows import filled as filled
from marlcore.testing.rows import torn as torn

CYCLE = 4096  # numbers up to it are exact in float32


def module(width: int = 64) -> Any:
    from torch import nn

    return nn.Sequential(*[nn.Linear(width, width) for _ in range(4)])


def tree(width: int = 64) -> dict[str, Any]:
    layer = {"weight": (width, width), "bias": width}
    return {"layers": [{name: np.zeros(shape, np.float32) for name, shape in layer.items()} for _ in range(4)]}


# A large module (1 MiB) is pulled by two rows in turn, the others by a copy into their arrays.
MODELS = {"module": module, "large": partial(module, 256), "tree": tree}


def words(model: Any) -> list[np.ndarray]:
    """The arrays of a module or mapping, which share its memory."""
    if isinstance(model, dict):
        return [array for layer in model["layers"] for array in layer.values()]
    return [parameter.detach().numpy() for parameter in model.parameters()]


def words_of_row(store: Any, slot: int) -> list[np.ndarray]:
    row = store.slot_array(slot).copy()
    return [part.view(np.float32) for _, part in store.layout.parts(row)]


def fill(model: Any, value: float) -> Any:
    for array in words(model):
        array[...] = value % CYCLE
    return model


def value_of(arrays: Iterable[np.ndarray]) -> float:
    """The one number of all words; NaN if they are torn."""
    flat = np.concatenate([array.ravel() for array in arrays])
    return float(flat[0]) if (flat == flat[0]).all() else np.nan


def publish_next(publisher: Any, weights: Any) -> None:
    fill(weights, publisher.version + 1)
    publisher.publish(version=publisher.version + 1)


def torn_weights(weights: Any, subscriber: Any) -> int:
    version = subscriber.version
    return int(value_of(words(weights)) != version % CYCLE or subscriber.extras != {"version": version})


def observations(spec: Any, index: Any, version: Any = 0) -> np.ndarray:
    """Rows named by their index plus one, since memory that was never written is zero."""
    return filled(spec.obs.shape[0], np.asarray(index) + 1, version)


def rows(spec: Any, index: Any, lanes: int = 1, version: int = 0) -> dict[str, Any]:
    """The rows of these indices, ticket * lanes + lane."""
    index = np.asarray(index)
    after = {"next_obs": observations(spec, index + lanes, version)} if spec.next_obs else {}
    return {"obs": observations(spec, index, version), "action": index, "reward": index % 7, **after}


def last_of(spec: Any, index: Any, lanes: int = 1) -> dict[str, Any]:
    """The arguments that end an episode at these rows."""
    return {"truncated": True, "final_obs": observations(spec, np.asarray(index) + lanes)}


def torn_rows(spec: Any, batch: Any, lanes: int = 1) -> int:
    torn = (batch.obs != observations(spec, batch.index, batch.policy_version)).any(1)
    torn |= (batch.next_obs != observations(spec, batch.index + lanes, batch.policy_version)).any(1)
    return int((torn | (batch.action != batch.index) | (batch.reward != batch.index % 7)).sum())
