"""The pool of frozen opponents: versions of one store, whose slots they take in turn, and their checkpoints."""

from __future__ import annotations

import copy
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from ...weights import ParameterStore
from ..loops import ActingModel, PolicyModel
from ..record import checkpoint_path, load_checkpoint, save_checkpoint

FIRST = 1  # its checkpoint stays, as the yardstick of progress


class Pool:
    """The learner's end: it admits copies of the acting model.

    An opponent's number is the version of the store under which it was published.

    Args:
        store: of `pool_store`.
        model: the acting model, on any device.
        run_dir, policy: the place of the checkpoints.

    Attributes:
        updates: of the newest opponent; 0 without any.
    """

    def __init__(self, store: ParameterStore, model: ActingModel, run_dir: Path, policy: str) -> None:
        self._store = store
        self._model = model
        self._frozen = copy.deepcopy(model).cpu()
        self._publisher = store.publisher(self._frozen)
        self._run_dir = run_dir
        self._policy = policy
        self.updates = self._updates_of_newest()

    def _updates_of_newest(self) -> int:
        newest = opponent_path(self._run_dir, self._policy, self._store.version)
        return int(load_checkpoint(newest).get("updates", 0)) if self.held else 0

    @property
    def held(self) -> range:
        """The numbers of the opponents, oldest first."""
        return held_by(self._store)

    def admit(self, numbers: dict[str, float]) -> int:
        """Adds a copy of the acting model, which replaces the oldest if the pool is full; returns its number.

        The checkpoint is written before the copy is published, so that no opponent is lost that played.

        Args:
            numbers: published and saved with it: the updates, the step, and those of exploration.
        """
        _copy(self._model, self._frozen)
        number = max(self._store.version, self._store.begins_after) + 1
        self._save(number, numbers)
        self._publisher.publish(**numbers)
        self.updates = int(numbers["updates"])
        replaced = number - self._store.slots
        if replaced > FIRST:
            opponent_path(self._run_dir, self._policy, replaced).unlink(missing_ok=True)
        return number

    def _save(self, number: int, numbers: dict[str, float]) -> None:
        acting = {name: tensor.clone() for name, tensor in self._frozen.state_dict().items()}
        counts = {"version": number, "updates": int(numbers["updates"]), "step": int(numbers["step"])}
        path = opponent_path(self._run_dir, self._policy, number)
        save_checkpoint(path, {"acting": acting, **counts, "numbers": dict(numbers)})

    def close(self) -> None:
        """Releases the store for a successor."""
        self._publisher.close()


def opponent_path(run_dir: Path, policy: str, number: int) -> Path:
    """The checkpoint of an opponent; `load_policy(run_dir, policy, "opponent-3")` reads it."""
    return checkpoint_path(run_dir, policy, f"opponent-{number}")


def saved_opponents(run_dir: Path, policy: str, most: int) -> list[int]:
    """The numbers of the newest saved opponents without a gap, oldest first, at most `most`."""
    pattern = opponent_path(run_dir, policy, 0).name.replace("-0.pt", "-*.pt")
    names = [path.stem.rpartition("-")[2] for path in (run_dir / "checkpoints").glob(pattern)]
    found = {int(name) for name in names if name.isdecimal()}
    numbers: list[int] = []
    number = max(found, default=0)
    while number in found and len(numbers) < most:
        numbers.insert(0, number)
        number -= 1
    return numbers


def pool_store(model: PolicyModel, slots: int, extras: dict[str, Any], run_dir: Path, policy: str) -> ParameterStore:
    """A store with the opponents that the run has saved.

    Args:
        model: of the policy; it becomes the newest opponent.
        extras: of a row.

    Raises: ValueError: a saved opponent is of another network.
    """
    numbers = saved_opponents(run_dir, policy, slots)
    before = numbers[0] - 1 if numbers else 0
    store = ParameterStore.create(model.acting, slots, extras, begins_after=before, name="opponents")
    try:
        with store.publisher(model.acting) as publisher:
            for number in numbers:
                path = opponent_path(run_dir, policy, number)
                state = restore_opponent(path, model, f"resume: expected an opponent of {policy}'s network")
                publisher.publish(**{name: state["numbers"].get(name, 0.0) for name in extras})
    except BaseException:
        store.close()
        raise
    return store


def restore_opponent(path: Path, model: PolicyModel, expected: str, *, own_name: bool = True) -> dict[str, Any]:
    """Gives the model the weights of a checkpoint; returns all of it. Raises ValueError: it is of another network."""
    state = load_checkpoint(path, own_name=own_name)
    try:
        model.restore(state)
        return state
    except (KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{expected}, got {str(path)!r} ({reason})") from None


def held_by(store: ParameterStore) -> range:
    """The numbers of the opponents in a pool, oldest first."""
    newest = store.version
    return range(max(store.begins_after + 1, newest - store.slots + 1), newest + 1)


def _copy(model: torch.nn.Module, frozen: torch.nn.Module) -> None:
    """Copies every tensor, also those that a state_dict leaves out."""
    tensors, own = (chain(one.parameters(), one.buffers()) for one in (model, frozen))
    with torch.no_grad():
        for tensor, kept in zip(tensors, own, strict=True):
            kept.copy_(tensor)
