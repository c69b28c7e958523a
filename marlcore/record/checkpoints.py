"""Writes and reads checkpoints, keeps a policy's best and last checkpoints, and finds a run's initial weights."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from zipfile import ZipFile

from ..checks import brief, check_kinds, check_whole
from .descriptions import policies_of
from .files import ZIP, read_sealed, write_sealed
from .hold import Hold
from .run_directory import checkpoint_path
from .tensor_files import dumped, loaded
from .trust import WEIGHTS, open_run

if TYPE_CHECKING:
    import torch

Weights: TypeAlias = "str | Path | Mapping[str, torch.Tensor]"
InitFrom: TypeAlias = "Weights | Mapping[str, Weights]"

NO_COUNTS = {"updates": 0, "version": 0, "step": 0, "stage": 0}  # counts before a learner's first update
_KINDS: dict[str, Any] = dict.fromkeys(("network", "acting", "trainer", "numbers", "self_play"), dict)
_KINDS |= {"norm": dict | None, "reward_norm": dict | None}
_KINDS |= {"return": float, "sampler": dict, "reader": dict}


class KeptCheckpoints:
    """Keeps a policy's best checkpoint and its last `keep` ones, which evaluations save.

    Raises ValueError if the best is damaged. With `arrays`, weights are NumPy arrays, and torch is not imported.
    """

    def __init__(self, run_dir: Path, policy: str, keep: int, arrays: bool = False) -> None:
        self._run_dir = run_dir
        self._policy = policy
        self._keep = keep
        self._arrays = arrays
        self.best = float(self._load_best().get("return", -math.inf))  # the highest return so far
        self.last = max(kept_steps(run_dir, policy), default=0)  # the step of the newest checkpoint

    def _load_best(self) -> dict[str, Any]:
        return load_checkpoint(self._path("best"), arrays=self._arrays)

    def best_weights(self) -> dict[str, Any] | None:
        """Returns the acting weights of the best checkpoint, if there is one. Raises ValueError if it is damaged."""
        return self._load_best().get("acting")

    def add(self, state: dict[str, Any], mean: float, best: float | None = None) -> None:
        """Saves a state as the newest if `keep` > 0.

        Saves it as the best, too, if its `mean` return exceeds `best`, by default `self.best`.
        """
        state["return"] = mean
        step = int(state["step"])
        if self._keep:
            save_checkpoint(self._path(str(step)), state, arrays=self._arrays)
            for old in kept_steps(self._run_dir, self._policy)[: -self._keep]:
                self._path(str(old)).unlink(missing_ok=True)
        if mean > (self.best if best is None else best):
            save_checkpoint(self._path("best"), state, arrays=self._arrays)
            self.best = mean
        self.last = step

    def _path(self, which: str) -> Path:
        return checkpoint_path(self._run_dir, self._policy, which)


def saved_checkpoints(run_dir: Path, policy: str) -> list[str]:
    """Lists a policy's checkpoints as values of the argument `which`: words such as "best", then steps, ascending."""
    begin = f"{checkpoint_path(run_dir, policy).stem}."
    names = [path.name.removeprefix(begin) for path in (run_dir / "checkpoints").glob(f"{begin}*pt")]
    found = (name.removesuffix("pt").rstrip(".") or "last" for name in names)
    return sorted(found, key=lambda name: (name[-1].isdigit(), len(name), name))


def kept_steps(run_dir: Path, policy: str, prefix: str = "") -> list[int]:
    """Returns the steps of a policy's kept checkpoints, ascending; their names are `prefix` and the step."""
    found = [name[len(prefix) :] for name in saved_checkpoints(run_dir, policy) if name.startswith(prefix)]
    return sorted(int(name) for name in found if name.isdecimal() and len(name) < 19)  # steps fit into 64 bits


def save_checkpoint(path: Path, state: Mapping[str, Any], hold: Hold | None = None, *, arrays: bool = False) -> None:
    """Writes a checkpoint, which `torch.load` can read, too. Raises Fenced if the learner has lost its hold."""
    data = io.BytesIO(dumped(state) if arrays else b"")
    if not arrays:
        import torch  # here, so that evaluators that need no torch can import this file

        torch.save(dict(state), data)
    write_sealed(path, data.getvalue(), check=hold and hold.check)


def load_checkpoint(
    path: Path, *, own_name: bool = True, label: str = "resume", arrays: bool = False
) -> dict[str, Any]:
    """Reads a checkpoint, without executing code in it. Returns {} if the file does not exist.

    Raises ValueError if it is damaged or, with `own_name`, a copy of another file.
    """
    if not os.path.lexists(path):  # a dangling link is an error: the checkpoint was lost
        return {}
    kinds = {**_KINDS}
    try:
        data = read_sealed(path, own_name=own_name)
        if not data.startswith(ZIP):  # torch's older formats can execute code
            raise ValueError("expected a zip")
        with ZipFile(io.BytesIO(data)) as archive:
            if sum(member.file_size for member in archive.infolist()) > len(data):
                raise ValueError("expected a zip without compression")
            state: dict[str, Any] = loaded(archive) if arrays else {}
        if not arrays:
            import torch

            state, kinds["torch"] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True), torch.Tensor
        check_kinds({"state": state}, {"state": dict})
        check_kinds(state, kinds)
        for name in NO_COUNTS:
            check_whole(name, state.get(name, 0), 0, 2**62)
    except Exception as error:  # torch may raise anything for a file that it did not write
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{label}: expected a checkpoint, got {str(path)!r} ({reason})") from error
    return state


def taken_over(state: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's own `state` with the trainer's state from the checkpoint `other`; the caller adds the weights."""
    # State_dicts and evaluations' checkpoints have neither; older snapshots of self-play have no random state.
    taken = {name: other[name] for name in ("trainer", "torch") if name in other}
    return NO_COUNTS | taken | {name: value for name, value in state.items() if name != "trainer"}


def initial_states(init_from: InitFrom | None, policies: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns, by policy, an initial state: a checkpoint's, or {"network": a state_dict}. Executes no code in them.

    The state's item "from" names its source. Raises ValueError or TypeError if a source is missing or damaged.
    """
    if init_from is None:
        return {}
    sources: dict[str, Any] = dict.fromkeys(policies, init_from)
    if isinstance(init_from, Mapping) and not _is_state_dict(init_from):
        sources = dict(init_from)
        for policy in sources:
            if policy not in policies:
                raise ValueError(f"init_from: expected the policies {list(policies)}, got {brief(policy)}")
    return {policy: _initial_state(policy, source) for policy, source in sources.items()}


def _is_state_dict(source: Any) -> bool:
    import torch

    return isinstance(source, Mapping) and all(isinstance(value, torch.Tensor) for value in source.values())


def _initial_state(policy: str, source: Any) -> dict[str, Any]:
    if _is_state_dict(source) and source:
        return {"network": dict(source), "from": "a state_dict"}
    if not isinstance(source, (str, os.PathLike)):
        expected = "init_from: expected a run's directory, a checkpoint, a state_dict, or one of these for each policy"
        raise TypeError(f"{expected}, got {brief(source)}")
    path = open_run(source, WEIGHTS)
    if path.is_dir():
        names = policies_of(path)
        if policy not in names and len(names) != 1:
            raise ValueError(f"init_from: expected a run with the policy {policy!r}, got {str(path)!r} with {names}")
        path = checkpoint_path(path, policy if policy in names else names[0])
    state = load_checkpoint(path, own_name=False, label="init_from")
    if not state:
        raise ValueError(f"init_from: expected a checkpoint, got {str(path)!r}, which does not exist")
    return {**state, "from": str(path)}
