"""Computes n-step returns by cpprb's rules, before the steps are added to the ring."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...checks import brief
from ...declared import Number
from ...spec import Field
from ..ring import Rows, whole_number

_SHARE = Number(0, 1)
_OPTIONS = ("size", "rew", "next", "gamma")


class NStep:
    """Holds back an episode's last n - 1 steps until their returns are complete.

    `add` and `end` return the steps whose returns are complete, their number, and the steps still held back: the caller
    stores the former, and then sets `waiting` to the latter. As in cpprb, a returned step is done if one of the first
    n - 1 of its n steps is done; the nth step does not count.

    Args:
        fields: the fields of a step by name, among them "done" of one element.
        options: see ReplayBuffer's Nstep.
    """

    waiting: Rows

    def __init__(self, fields: Mapping[str, Field], options: Mapping[str, Any]) -> None:
        if not isinstance(options, Mapping) or not options.keys() <= set(_OPTIONS):
            raise ValueError(f"Nstep: expected a dict with some of {_OPTIONS}, got {brief(options)}")
        if "done" not in fields or fields["done"].shape != (1,):
            raise ValueError("Nstep: expected a field 'done' of shape (1,) in env_dict")
        self._n = whole_number("Nstep['size']", options.get("size"), 1)
        self._gamma = _SHARE("Nstep['gamma']", options.get("gamma", 0.99))
        self._summed = names_of("Nstep['rew']", options.get("rew"), fields)
        self._moved = names_of("Nstep['next']", options.get("next"), fields)
        self._fields = dict(fields)
        self.clear()

    def add(self, rows: Mapping[str, Any]) -> tuple[Rows, int, Rows]:
        """Takes arrays [steps, *shape] by field."""
        waiting = {
            name: np.concatenate([self.waiting[name], np.asarray(rows[name]).astype(field.numpy, copy=False)])
            for name, field in self._fields.items()
        }
        return self._returns(waiting, max(len(waiting["done"]) - (self._n - 1), 0))

    def end(self) -> tuple[Rows, int, Rows]:
        """Ends the episode: returns the steps held back, with returns up to the last step."""
        return self._returns(self.waiting, len(self.waiting["done"]))

    def clear(self) -> None:
        self.waiting = {name: field.zeros(0) for name, field in self._fields.items()}

    def _returns(self, waiting: Rows, count: int) -> tuple[Rows, int, Rows]:
        steps = {name: values[:count].copy() for name, values in waiting.items()}
        size = min(self._n, len(waiting["done"]))
        discount = self._gamma * (1.0 - waiting["done"].astype(np.float64).ravel())
        for name in self._summed:
            total, weight = steps[name].astype(np.float64), np.ones(count)
            for later in range(1, size):
                part = waiting[name][later : later + count]
                weight = weight[: len(part)] * discount[later - 1 : later - 1 + len(part)]
                total[: len(part)] += weight.reshape(-1, *[1] * (part.ndim - 1)) * part
            steps[name] = total
        done = steps["done"]
        for later in range(1, min(self._n - 1, size)):
            part = waiting["done"][later : later + count]
            np.maximum(done[: len(part)], part, out=done[: len(part)])
        last = np.minimum(np.arange(count) + self._n - 1, len(waiting["done"]) - 1)
        steps.update({name: waiting[name][last] for name in self._moved})
        return steps, count, {name: values[count:].copy() for name, values in waiting.items()}


def names_of(label: str, names: Any, fields: Mapping[str, Field]) -> tuple[str, ...]:
    """Returns one name or several as a tuple, empty for None. Raises ValueError if a name is not in `fields`."""
    several: NDArray[Any] = np.ravel(np.asarray([] if names is None else names, object))
    unknown = [name for name in several if not isinstance(name, str) or name not in fields]
    if unknown:
        raise ValueError(f"{label}: expected names among {list(fields)}, got {brief(unknown[0])}")
    return tuple(several)
