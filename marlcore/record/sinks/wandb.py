"""Sends metrics to Weights & Biases, online or offline. The package wandb is imported only when it is used."""

import os
import re
import secrets
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from ...checks import brief
from ...processes import Metric
from ..files import read_json, read_sealed, write_sealed

_ID_BYTES = 8


def check_wandb(mode: str | None) -> None:
    """Raises ValueError if wandb is not installed or, in mode "online", has no credentials."""
    package = find_spec("wandb")
    if package is None or package.origin is None:  # a folder `wandb` of earlier runs is not the package
        raise ValueError('metrics.sinks: wandb is not installed; try: pip install "marlcore[wandb]"')
    if (mode or os.environ.get("WANDB_MODE", "online")) != "online":
        return
    import wandb

    # Without this check `wandb.init` would ask for a key in the terminal.
    if wandb.run is None and not wandb.login(prompt=False, verify=False):
        raise ValueError("metrics.sinks: wandb has no credentials; run `wandb login`, or set WANDB_MODE=offline")


class WandbSink:
    """Writes a W&B run, named after the run's directory and grouped by its parent; a resumed run continues it.

    Metrics are "agent/name" over `step`. The W&B config is the run's config.json.
    """

    def __init__(self, run_dir: Path, project: str, mode: Literal["online", "offline"] | None) -> None:
        import wandb

        folder = run_dir / "wandb"
        folder.mkdir(mode=0o755, exist_ok=True)
        self._run = wandb.init(
            project=project,
            name=run_dir.name,
            group=run_dir.parent.name,
            id=_run_id(folder / "run-id"),
            resume="allow",
            dir=run_dir,
            mode=mode,
            config=read_json(run_dir / "config.json", editable=True),
            reinit="create_new",  # the program may have a W&B run of its own
            settings=wandb.Settings(silent=True, console="off"),  # the terminal belongs to the run's table
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def record(self, metric: Metric) -> None:
        tag = f"{metric.agent}/{metric.name}" if metric.agent else metric.name
        self._run.log({tag: float(metric.value), "step": int(metric.step), "time_s": float(metric.time_s)})

    def flush(self) -> None:
        pass  # W&B's own process sends metrics by itself

    def close(self) -> None:
        self._run.finish()


def _run_id(path: Path) -> str:
    """Returns the W&B run's id, drawn once for each run directory. Raises ValueError if the id's file is damaged."""
    if not path.exists():
        write_sealed(path, secrets.token_hex(_ID_BYTES).encode())
    run_id = read_sealed(path)[: 2 * _ID_BYTES].decode(errors="replace")
    if not re.fullmatch(f"[0-9a-f]{{{2 * _ID_BYTES}}}", run_id):
        raise ValueError(f"{str(path)!r}: expected {2 * _ID_BYTES} hexadecimal digits, got {brief(run_id)}")
    return run_id
