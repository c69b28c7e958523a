"""Whole runs: made in one call, watched, killed, and read afterwards."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Child, lead
from processes import PATIENCE_S, await_group, until
from seams import without_limits

import marlcore as mc
from marlcore.config import AssignedPolicy, compiled_of, source_of
from marlcore.envs import vectorize
from marlcore.processes import PID, ForkServer
from marlcore.record import read_metrics, save_checkpoint

LONG = pytest.mark.long
MODES = pytest.mark.parametrize("mode", ["serial", pytest.param("async", marks=LONG)])


SMALL = mc.Config(
    total_steps=600,
    mode="serial",
    actor=mc.ActorConfig(envs=2, sync_interval=10),
    learner=mc.LearnerConfig(batch_size=16, warmup=50, log_interval=10, device="cpu"),
    replay=mc.ReplayConfig(capacity=10_000),  # the default's memory takes a third of so short a run's time
)
# Of on-policy runs, which have no use for the rest of SMALL's settings.
ON_POLICY = {
    "actor": mc.ActorConfig(envs=2), "learner": mc.LearnerConfig(log_interval=4, device="cpu"),
    "replay": mc.ReplayConfig(),
}  # fmt: skip


def policy_of(name: str, algorithm: mc.Algorithm, env_fn: Any, config: mc.Config) -> AssignedPolicy:
    """The policy of all agents of an environment."""
    with closing(vectorize(env_fn, 1)) as env:
        policy = AssignedPolicy(name, tuple(env.spaces), next(iter(env.spaces.values())), algorithm)
    return replace(policy, source=source_of(policy, config), compiled=compiled_of(policy, config))


def changed(config: mc.Config, **changes: Any) -> mc.Config:
    """Other settings; a dict changes some of a part, such as `learner={"n_step": 1}`."""
    parts = {
        name: replace(getattr(config, name), **value)
        for name, value in changes.items()
        if isinstance(value, dict) and is_dataclass(getattr(config, name))
    }
    return replace(config, **{**changes, **parts})


def updating(kind: type[Any], update: Callable[[Callable[[Any], mc.Update], Any], mc.Update]) -> type[Any]:
    """This kind of algorithm, whose trainers return `update(theirs, batch)`."""

    class Updating(kind):  # type: ignore[misc]
        def make_trainer(self, model: Any) -> Any:
            trainer = super().make_trainer(model)
            trainer.update = partial(update, trainer.update)
            return trainer

    return Updating


class Runs:
    """Makes runs that differ from SMALL by some changes; each lies in its `folder`/run."""

    def __init__(self, **changes: Any) -> None:
        self.config = changed(SMALL, **changes)

    def configured(self, folder: Path, **changes: Any) -> mc.Config:
        return changed(self.config, run_dir=str(folder / "run"), **changes)

    def train(
        self, folder: Path, env_fn: Any, algorithm: Any = "dqn", resume: bool = False, **changes: Any
    ) -> mc.Result:
        """A run until its end; `resume`: the one that lies there goes on."""
        config = self.configured(folder, **changes)
        return mc.train(env_fn, algorithm, config, progress=False, resume=folder / "run" if resume else None)

    def start(self, folder: Path, env_fn: Any, algorithm: Any = "dqn", **changes: Any) -> mc.Run:
        return mc.start(env_fn, algorithm, self.configured(folder, **changes))


def past(run: mc.Run, steps: int) -> None:
    until(lambda: run.status().steps >= steps, lambda: run.status().running)


def pid_of(run: mc.Run, worker: str) -> int:
    """A worker's process; 0 while it has none."""
    assert run._session is not None
    return run._session.control.notes[worker].load(PID)


def kill(run: mc.Run, worker: str) -> None:
    os.kill(until(lambda: pid_of(run, worker)), signal.SIGKILL)


@contextmanager
def doomed(server: ForkServer, program: Callable[..., Any], *arguments: object) -> Iterator[Child]:
    """program(*arguments) in a fork of this server's, whose whole group is killed when the block ends."""
    child = Child(server, lead, program, *arguments)
    try:
        yield child
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.status()
        child.close()
    await_group(child.pid)


def kill_once(reached: Callable[[], Any], server: ForkServer, program: Callable[..., Any], *arguments: object) -> None:
    """Kills such a program once `reached` is true."""
    with doomed(server, program, *arguments) as child:
        until(reached, child.lives)


def metrics_of(run_dir: Path) -> list[Any]:
    return read_metrics(run_dir / "metrics.csv")


def values_of(run_dir: Path, name: str) -> list[float]:
    """A metric's values, in the file's order."""
    return [metric.value for metric in metrics_of(run_dir) if metric.name == name]


def history(run_dir: Path) -> list[tuple[Any, ...]]:
    """What a run did: its metrics without memory and what the clock measured: rates, waits, the time of each row."""
    metrics = metrics_of(run_dir)
    measured = re.compile(".*_s|(rss|gpu)_mib/.*")
    return [(m.step, m.agent, m.name, m.value) for m in metrics if not measured.fullmatch(m.name)]


def config_of(run_dir: Path) -> dict[str, Any]:
    """What its config.json says, without its seal."""
    members = json.loads((run_dir / "config.json").read_text())
    return {name: value for name, value in members.items() if name not in ("file", "sha256")}


def checkpoint(run_dir: Path, name: str = "agent_0") -> dict[str, Any]:
    state: dict[str, Any] = torch.load(run_dir / "checkpoints" / f"{name}.pt")
    return state


def learners_saved(run_dir: Path) -> int:
    """The number of learners that have saved a checkpoint. Before them, the parent may save untrained weights."""
    return sum("trainer" in torch.load(path) for path in (run_dir / "checkpoints").glob("*.pt"))


def change_checkpoint(path: Path, **changes: Any) -> None:
    save_checkpoint(path, {**torch.load(path), **changes})


def opponents_of(run_dir: Path, policy: str = "main") -> dict[int, Path]:
    """The checkpoints of a policy's pool of opponents, by number."""
    paths = (run_dir / "checkpoints").glob(f"{policy}.opponent-*.pt")
    return dict(sorted((int(path.stem.rpartition("-")[2]), path) for path in paths))


def steps_of(run_dir: Path) -> int:
    path = run_dir / "checkpoints" / "run.json"
    return sum(json.loads(path.read_text())["steps"].values()) if path.exists() else 0


@contextmanager
def saved_replay(run_dir: Path, policy: str = "agent_0") -> Iterator[mc.ReplayBuffer]:
    """A run's saved replay, from which as much may be drawn as one likes."""
    with mc.ReplayBuffer.load(run_dir / "checkpoints" / f"{policy}.replay") as replay, without_limits():
        yield replay


def failure(call: Callable[[], object], says: str, reason: str = "environment") -> mc.WorkerFailed:
    """The call fails for this reason, and its traceback says so."""
    with pytest.raises(mc.WorkerFailed) as caught:
        call()
    assert says in caught.value.traceback
    assert caught.value.reason == reason
    return caught.value


def marlcore(*arguments: object, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    """`marlcore` in a process group of its own, with what it prints in one pipe."""
    command = [sys.executable, "-m", "marlcore", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, **options
    )


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, output
