"""Training runs of marlcore that leave nothing behind."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import marlcore as mc


@contextmanager
def endless(env: Any, algorithm: Any, config: mc.Config) -> Iterator[mc.Run]:
    """A run that goes on until the block ends, in a directory that is then removed."""
    with tempfile.TemporaryDirectory() as folder:
        config = replace(config, total_steps=10**9, run_dir=str(Path(folder) / "run"))
        with mc.start(env, algorithm, config) as run:
            yield run


@contextmanager
def trained(env: Any, algorithm: Any, config: mc.Config) -> Iterator[mc.Result]:
    """A run that has ended, in a directory that is removed when the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        yield mc.train(env, algorithm, replace(config, run_dir=str(Path(folder) / "run")), progress=False)


def play_both_sides(run_dir: Path, opponent: Any, games: int, **options: Any) -> NDArray[np.float64]:
    """The returns of a run's policy against an opponent, in half of the games from each side."""
    agents = json.loads((run_dir / "config.json").read_text())["policies"]
    returns = [
        mc.evaluate(run_dir, games // 2, policies={other: opponent}, seed=seed, **options).returns[agent]
        for seed, (agent, other) in enumerate(zip(agents, reversed(agents), strict=True))
    ]
    return np.concatenate(returns)
