"""Checkpoints: reading one, and those that evaluations keep of a policy, the best one and the last few."""

import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .files import ZIP, read_sealed, write_sealed
from .run_directory import checkpoint_path


class KeptCheckpoints:
    """A policy's best checkpoint by its evaluations, and the last `keep`. Raises ValueError: the best is damaged."""

    def __init__(self, run_dir: Path, policy: str, keep: int) -> None:
        self._run_dir = run_dir
        self._policy = policy
        self._keep = keep
        self.best = float(load_checkpoint(self._path("best")).get("return", -math.inf))  # the highest return so far
        self.last = max(kept_steps(run_dir, policy), default=0)  # the step of the newest

    def best_weights(self) -> dict[str, torch.Tensor] | None:
        """The acting part of the best checkpoint; None before the first. Raises ValueError: it is damaged."""
        return load_checkpoint(self._path("best")).get("acting")

    def add(self, state: dict[str, Any], mean: float, best: float | None = None) -> None:
        """Saves a state among the last, and as the best if its mean return exceeds `best`, by default self.best."""
        state["return"] = mean
        step = int(state["step"])
        if self._keep:
            save_checkpoint(self._path(str(step)), state)
            for old in kept_steps(self._run_dir, self._policy)[: -self._keep]:
                self._path(str(old)).unlink(missing_ok=True)
        if mean > (self.best if best is None else best):
            save_checkpoint(self._path("best"), state)
            self.best = mean
        self.last = step

    def _path(self, which: str) -> Path:
        return checkpoint_path(self._run_dir, self._policy, which)


def kept_steps(run_dir: Path, policy: str, prefix: str = "") -> list[int]:
    """The steps of a policy's kept checkpoints, ascending; with a prefix, the numbers that follow it."""
    begin = f"{checkpoint_path(run_dir, policy).stem}.{prefix}"
    names = [path.stem.removeprefix(begin) for path in (run_dir / "checkpoints").glob(f"{begin}*.pt")]
    return sorted(int(name) for name in names if name.isdecimal())


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Writes a checkpoint, which `torch.load` can read too."""
    data = io.BytesIO()
    torch.save(dict(state), data)
    write_sealed(path, data.getvalue())


def load_checkpoint(path: Path, *, own_name: bool = True) -> dict[str, Any]:
    """A checkpoint, empty if there is none yet; no code of it runs. Raises ValueError: it is damaged, or a copy."""
    if not path.exists():
        return {}
    try:
        data = read_sealed(path, own_name=own_name)
        if not data.startswith(ZIP):  # torch's older formats, which are never written here, have executed code
            raise ValueError("expected a zip")
        state: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch may raise anything for a file that it did not write
        reason = str(error).partition("\n")[0]
        raise ValueError(f"resume: expected a checkpoint, got {str(path)!r} ({reason})") from error
    return state
