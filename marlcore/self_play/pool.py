"""The pool of frozen opponents: each is a version in a store's ring of slots, and has a checkpoint."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..closing import ClosedAfterError
from ..interfaces import Trainer
from ..record import checkpoint_path, kept_steps, load_checkpoint, save_checkpoint
from ..weights import ParameterStore

if TYPE_CHECKING:
    from ..loops import PolicyModel

SPAN = 10**9  # offset between the opponents' numbers of a league's successive policies
FIRST_OPPONENT = 1  # its checkpoint is never removed, so that progress can be measured against it


@dataclass
class Pool:
    """Admits copies of a learner's policy to its pool. An opponent's number is its version in the store."""

    store: ParameterStore  # of `pool_store`
    model: PolicyModel
    run_dir: Path  # of the checkpoints
    policy: str

    def __post_init__(self) -> None:
        self._frozen = copy.deepcopy(self.model).cpu()
        self._publisher = self.store.publisher(self._frozen)
        newest = opponent_path(self.run_dir, self.policy, self.store.version)
        saved = load_checkpoint(newest) if pooled_numbers(self.store) else {}
        self.updates = int(saved.get("updates", 0))  # of the newest opponent

    def admit(self, numbers: dict[str, float]) -> None:
        """Publishes a copy of the acting model, with `numbers`; in a full pool, the oldest opponent is replaced."""
        import torch  # here, since actors without torch import this file

        with torch.no_grad():  # all tensors, including those that a state_dict leaves out
            each = (itertools.chain(model.parameters(), model.buffers()) for model in (self.model, self._frozen))
            for tensor, frozen in zip(*each, strict=True):
                frozen.copy_(tensor)
        number = max(self.store.version, self.store.begins_after) + 1
        acting = {name: tensor.clone() for name, tensor in self._frozen.state_dict().items()}
        counts = {"version": number, "updates": int(numbers["updates"]), "step": int(numbers["step"])}
        path = opponent_path(self.run_dir, self.policy, number)
        save_checkpoint(path, {"acting": acting, **counts, "numbers": numbers})  # before actors can draw it
        self._publisher.publish(**numbers)
        self.updates = counts["updates"]
        replaced = number - self.store.slots
        if replaced > FIRST_OPPONENT:
            opponent_path(self.run_dir, self.policy, replaced).unlink(missing_ok=True)

    def close(self) -> None:
        """Releases the store, so that another process can publish to it."""
        self._publisher.close()


@dataclass(frozen=True)
class Snapshot:
    """A separate checkpoint of a learner's weights and optimizer, from its best moment or from its beginning."""

    path: Path
    model: PolicyModel
    trainer: Trainer

    def keep(self) -> None:
        import torch  # here, since actors without torch import this file

        state = {**self.model.saved(), "trainer": self.trainer.state_dict(), "torch": torch.get_rng_state()}
        save_checkpoint(self.path, state)

    def restore(self) -> None:
        """Restores the kept weights and optimizer in place. Raises ValueError if the file is missing or damaged."""
        state = load_checkpoint(self.path)
        self.model.restore_checked(state, self.path, "self_play: expected the weights that were kept")
        self.trainer.load_state_dict(state["trainer"])


def opponent_path(run_dir: Path, policy: str, number: int) -> Path:
    """Returns the path of an opponent's checkpoint; `load_policy(run_dir, policy, "opponent-3")` reads it."""
    return checkpoint_path(run_dir, policy, f"opponent-{number}")


def saved_opponents(run_dir: Path, policy: str, most: int) -> list[int]:
    """Returns the numbers of the newest saved opponents, without a gap: at most `most`, oldest first."""
    saved = kept_steps(run_dir, policy, "opponent-")
    newest = max(saved, default=0)
    numbers = itertools.takewhile(saved.__contains__, range(newest, newest - most, -1))
    return sorted(numbers)


def pool_store(model: PolicyModel, slots: int, extras: dict[str, Any], run_dir: Path, policy: str) -> ParameterStore:
    """Makes a store of the saved opponents; loads the newest into `model`. Raises ValueError if a network differs."""
    numbers = saved_opponents(run_dir, policy, slots)
    begins_after = numbers[0] - 1 if numbers else 0
    store = ParameterStore.create(model.acting, slots, extras, begins_after=begins_after, name="opponents")
    with ClosedAfterError(store), store.publisher(model.acting) as publisher:
        for number in numbers:
            path = opponent_path(run_dir, policy, number)
            state = load_opponent(path, model, f"resume: expected an opponent with {policy}'s network")
            publisher.publish(**{name: state["numbers"].get(name, 0.0) for name in extras})
    return store


def load_opponent(path: Path, model: PolicyModel, expected: str, *, own_name: bool = True) -> dict[str, Any]:
    """Loads an opponent's checkpoint into `model` and returns it. Raises ValueError if it has another network."""
    state = load_checkpoint(path, own_name=own_name)
    model.restore_checked(state, path, expected)
    return state


def pooled_numbers(store: ParameterStore) -> range:
    """Returns the numbers of the opponents in a pool, oldest first."""
    newest = store.version
    return range(max(store.begins_after + 1, newest - store.slots + 1), newest + 1)


def members_of(pools: Iterable[ParameterStore]) -> list[int]:
    """Returns the numbers of the opponents in a league's pools, oldest first."""
    members = ((number, place) for place, pool in enumerate(pools) for number in pooled_numbers(pool))
    return [place * SPAN + number for number, place in sorted(members)]
