"""Arrays in a pickle, as Stable-Baselines3 saves its replay buffers: by its own functions where it is installed."""

from __future__ import annotations

import pickle
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HAS_SB3 = find_spec("stable_baselines3") is not None


def dump(arrays: dict[str, Any], path: Path) -> None:
    if HAS_SB3:
        from stable_baselines3.common.save_util import save_to_pkl

        save_to_pkl(path, arrays)
        return
    with path.open("wb") as file:
        pickle.dump(arrays, file, protocol=pickle.HIGHEST_PROTOCOL)


def load(path: Path) -> dict[str, Any]:
    if HAS_SB3:
        from stable_baselines3.common.save_util import load_from_pkl

        arrays: dict[str, Any] = load_from_pkl(path)
        return arrays
    with path.open("rb") as file:
        unpickled: dict[str, Any] = pickle.load(file)
        return unpickled
