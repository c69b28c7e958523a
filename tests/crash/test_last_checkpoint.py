"""Ctrl-C while a run's last checkpoints take their time: the first waits for them, the second does not."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import segments_of, until
from whole_runs import checkpoint, finished, learners_saved, marlcore, steps_of

from marlcore.algos import DQN, dqn
from marlcore.processes import Control, Interrupts

pytestmark = pytest.mark.long
AGENTS = ("agent_0", "agent_1", "agent_2")
FOR_EVER_S = 3600.0
train = partial(marlcore, "train", cwd=Path(__file__).parent)
OPTIONS = "--env hunt:Calm --algo test_last_checkpoint:SlowDQN --total-steps 1000000000 --actor.envs 1 "
OPTIONS += "--learner.batch-size 16 --learner.warmup 50 --learner.checkpoint-interval 20 --learner.device cpu "
OPTIONS += f"--supervision.learner-timeout {FOR_EVER_S}"  # for so long the parent waits for last checkpoints, too


@dataclass(frozen=True)
class SlowDQN(DQN):
    """Its checkpoints take as many seconds to reach the disk as the file `slow` in its folder says."""

    folder: str = ""

    def make_trainer(self, network: torch.nn.Module) -> dqn.DQNTrainer:
        return SlowTrainer(self, network)


class SlowTrainer(dqn.DQNTrainer):
    """Notes the updates of each slow checkpoint in a file of its process, before the disk has it."""

    def state_dict(self) -> dict[str, Any]:
        assert isinstance(self.hyper, SlowDQN)
        folder = Path(self.hyper.folder)
        if (folder / "slow").exists():
            seconds = float((folder / "slow").read_text())
            os.fsync = partial(crawl, folder / f"saving-{os.getpid()}", self.updates, seconds)
        return super().state_dict()


def crawl(note: Path, updates: int, seconds: float, fd: int) -> None:
    note.write_text(str(updates))
    time.sleep(seconds)


class Run:
    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "run"
        self.process = train(*OPTIONS.split(), "--algorithm.folder", folder, "--run-dir", self.path)
        self.await_(lambda: learners_saved(self.path) == len(AGENTS))

    def await_(self, done: Callable[[], Any]) -> None:
        until(done, lambda: self.process.poll() is None)

    def slow_down(self, seconds: float) -> None:
        (self.folder / "slow.new").write_text(str(seconds))
        (self.folder / "slow.new").rename(self.folder / "slow")

    @property
    def saving(self) -> list[int]:
        """The updates of the last slow checkpoint that each learner began."""
        return sorted(int(note.read_text() or -1) for note in self.folder.glob("saving-*"))

    def stops(self) -> bool:
        """Whether the run has handled the first signal; an earlier second one would not count."""
        (path,) = (path for path in segments_of(self.process.pid) if path.name.startswith("marlcore-control-"))
        with Control.watch(path) as control:
            return control.stopping

    @property
    def unfinished(self) -> list[str]:
        """What was written of files that had no time to become whole."""
        return sorted(file.name for file in (self.path / "checkpoints").glob(".*"))

    def checkpoints(self) -> list[dict[str, Any]]:
        return [checkpoint(self.path, agent) for agent in AGENTS]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    started = Run(tmp_path)
    yield started
    if started.process.poll() is None:
        started.process.kill()
        started.process.wait()
    started.process.stdout.close()


@pytest.mark.parametrize(
    ("signals", "code"), [((signal.SIGINT, signal.SIGINT), 130), ((signal.SIGHUP, signal.SIGTERM), 129)]
)
def test_ctrl_c_waits_until_slow_last_checkpoints_are_whole(run: Run, signals: tuple[int, ...], code: int) -> None:
    """Also a signal that comes twice at once."""
    segments = segments_of(run.process.pid)
    assert len(segments) == 2 + 2 * len(AGENTS) and all(path.exists() for path in segments)
    run.slow_down(3.0)
    for signum in signals:
        run.process.send_signal(signum)
        time.sleep(0.05)
    status, said = finished(run.process)
    assert status == code and "Traceback" not in said
    assert sorted(state["trainer"]["updates"] for state in run.checkpoints()) == run.saving
    assert run.unfinished == [] and not any(path.exists() for path in segments)


def test_a_second_ctrl_c_waits_for_nothing(run: Run) -> None:
    segments = segments_of(run.process.pid)
    run.slow_down(FOR_EVER_S)
    run.await_(lambda: len(run.saving) == len(AGENTS) and -1 not in run.saving)
    before = run.checkpoints()
    run.process.send_signal(signal.SIGINT)
    run.await_(run.stops)
    time.sleep(1.1)  # the first was seen before this, and another within a second of it does not count
    run.process.send_signal(signal.SIGINT)
    status, said = finished(run.process)
    assert status == 130 and "Traceback" not in said
    assert [state["updates"] for state in run.checkpoints()] == [state["updates"] for state in before]
    assert [name.split(".")[1] for name in run.unfinished] == [*AGENTS]
    assert not any(path.exists() for path in segments)
    (run.folder / "slow").unlink()
    status, said = finished(train("--resume", run.path, "--total-steps", steps_of(run.path) + 1))  # it saves the last
    assert status == 0 and f"results in {run.path}" in said, said
    assert run.unfinished == []
    assert all(new["updates"] >= old["updates"] for new, old in zip(run.checkpoints(), before, strict=True))


def test_a_second_stop_is_no_second_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    interrupts = Interrupts()
    interrupts.stop("enough")
    now[0] = 60.0
    interrupts.stop("more than enough")
    assert interrupts.stopping and not interrupts.again and interrupts.reason == "enough"
