"""Supervision: its decisions, on fake processes; and whole runs whose workers die, fail and hang."""

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hunt import HUNT
from tiers import long_but
from whole_runs import Runs, checkpoint, metrics_of, updating

import marlcore as mc
from marlcore.config import LearnerConfig, SupervisionConfig, learner_names
from marlcore.envs import TreasureHunt
from marlcore.memory import SegmentHandle
from marlcore.processes import BEATS, EPISODES, PID, READY, RESTARTS, STEPS, Children, Control, setup_worker
from marlcore.processes import supervisor as supervision
from marlcore.run import supervisor_of
from marlcore.run.async_run import start_all

TIMEOUT = 10.0
CONFIG = SupervisionConfig(max_restarts=3, window=100.0, backoff=1.0)


class Process:
    """Stands in for a Child; the test decides when and how it ends."""

    def __init__(self, log: list[str], attempt: int) -> None:
        self.pid = 1000 + attempt
        self.attempt = attempt
        self.running = True
        self._log = log

    def end(self, reason: str = "", text: str = "") -> None:
        self.running = False
        self.failure = lambda: mc.WorkerFailed("actor-0", reason, text) if reason else None

    def ask_for_stacks(self) -> None:
        self._log.append(f"ask {self.attempt}")

    def kill(self) -> None:
        self._log.append(f"kill {self.attempt}")


class Scene:
    """A supervisor of one worker; the test controls its clock and its processes."""

    def __init__(self, control: Control, monkeypatch: pytest.MonkeyPatch, config: SupervisionConfig) -> None:
        self.now = 0.0
        self.log: list[str] = []
        self.refused, self.refusal = 0, Exception()
        self.counters, self.notes = control.workers["actor-0"], control.notes["actor-0"]
        monkeypatch.setattr(supervision.time, "monotonic", lambda: self.now)
        children: Any = self
        self.supervisor = supervision.Supervisor(children, control, self._start, {"actor-0": TIMEOUT}, config)
        self.worker = self.supervisor.workers["actor-0"]
        self.worker.start()

    def _start(self, name: str, attempt: int) -> Any:
        if self.refused:
            self.refused -= 1
            raise self.refusal
        self.log.append(f"start {attempt}")
        return Process(self.log, attempt)

    def wait(self, seconds: float) -> None:
        """Returns at once: the test controls the clock."""

    def end(self, process: Any) -> None:
        self.log.append(f"end {process.attempt}")

    @property
    def process(self) -> Any:
        return self.worker.process

    def become_ready(self) -> None:
        self.counters.store(READY, self.worker.attempts)

    def watch_until(self, time: float, step: float = 0.5) -> None:
        while self.now < time:
            self.now = min(self.now + step, time)
            self.supervisor.watch(0.0)

    def die(self) -> None:
        self.process.end("death", f"died at {self.now:g}")
        self.supervisor.watch(0.0)

    def back_off(self, step: float) -> float:
        """Returns the seconds from a death to the restart."""
        self.die()
        died = self.now
        while self.process is None:
            self.watch_until(self.now + step, step)
        return self.now - died


@pytest.fixture
def starting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """A scene whose worker is not ready yet."""
    with Control.create(["actor-0"]) as control:
        yield Scene(control, monkeypatch, getattr(request, "param", CONFIG))


@pytest.fixture
def scene(starting: Scene) -> Scene:
    starting.become_ready()
    return starting


def test_a_dead_worker_restarts_after_the_back_off(scene: Scene) -> None:
    assert (scene.notes.load(PID), scene.notes.load(RESTARTS)) == (1001, 0)
    scene.die()
    assert scene.log == ["start 1", "end 1"]
    assert scene.supervisor.running == [] and scene.supervisor.unfinished == [scene.worker]
    scene.watch_until(0.99, 0.09)
    assert len(scene.log) == 2
    scene.watch_until(1.0)
    assert scene.log[2:] == ["start 2"]
    assert (scene.notes.load(PID), scene.notes.load(RESTARTS)) == (1002, 1)


@pytest.mark.parametrize("starting", [replace(CONFIG, max_restarts=20, window=1e6)], indirect=True)
def test_each_restart_waits_twice_as_long(starting: Scene) -> None:
    assert [starting.back_off(0.5) for _ in range(8)] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_one_failure_too_many_raises_with_all_of_them(scene: Scene) -> None:
    for _ in range(3):
        scene.die()
        scene.watch_until(scene.now + 5.0)
        scene.become_ready()
    with pytest.raises(mc.WorkerFailed) as caught:
        scene.die()
    assert caught.value.worker == "actor-0" and caught.value.reason == "death"
    expected = "start 1: died at 0\nstart 2: died at 5\nstart 3: died at 10\nstart 4: died at 15"
    assert caught.value.traceback == expected


@pytest.mark.parametrize(("seconds", "reason"), [(40.0, "death"), (101.0, "worker")])
def test_failures_of_long_ago_do_not_count(scene: Scene, seconds: float, reason: str) -> None:
    for _ in range(12):
        scene.process.end(reason, "a fault")
        scene.supervisor.watch(0.0)
        scene.now += seconds  # at most three in a window of 100
        scene.supervisor.watch(0.0)
        scene.become_ready()
    assert scene.worker.attempts == 13


def test_a_worker_that_ended_well_is_done_and_stays_so(scene: Scene) -> None:
    scene.process.end()
    scene.watch_until(50.0)
    assert scene.worker.done and scene.worker.attempts == 1 and scene.supervisor.unfinished == []


def test_a_silent_workers_successor_waits_for_its_death(scene: Scene) -> None:
    scene.watch_until(TIMEOUT)
    assert scene.log == ["start 1"]
    scene.watch_until(TIMEOUT + 1.0)
    assert scene.log[1:] == ["ask 1"]
    scene.counters.store(BEATS, 99)  # too late
    scene.watch_until(TIMEOUT + 1.5)
    assert scene.log[2:] == ["kill 1"]
    scene.watch_until(TIMEOUT + 50.0)
    assert scene.log[3:] == []  # the kernel has not said yet that it is dead
    scene.process.end("environment", "Traceback: the server does not answer")  # it raised just before it was killed
    scene.supervisor.watch(0.0)
    scene.watch_until(scene.now + 1.0)
    assert scene.log[3:] == ["end 1", "start 2"]
    expected = "Traceback: the server does not answer\nit showed no sign of life for 10 s, and was killed"
    assert (scene.worker.failure.reason, scene.worker.failure.traceback) == ("hang", expected)


def test_a_worker_that_starts_may_be_silent_for_longer(starting: Scene) -> None:
    starting.watch_until(120.0)
    assert starting.log == ["start 1"]
    starting.watch_until(120.5)
    assert starting.log[1:] == ["ask 1"]


def test_a_worker_with_a_heartbeat_is_left_alone(scene: Scene) -> None:
    for second in range(0, 100, 9):
        scene.watch_until(float(second))
        scene.counters.store(BEATS, second + 1)
    assert scene.log == ["start 1"]


def test_a_parent_that_was_stopped_counts_no_silence(scene: Scene) -> None:
    scene.supervisor.watch(0.0)
    scene.now += 3600.0
    scene.supervisor.watch(0.0)
    assert scene.log == ["start 1"]
    scene.watch_until(scene.now + TIMEOUT)
    assert scene.log[1:] == ["ask 1"]


# By case: whether it was ready, whether an episode ended, the failures' reasons, and whether the last one is final.
HOPELESS = {
    "environment before its first step": (False, False, ["environment"], True),
    "worker before its first step": (False, False, ["worker"], True),
    "death before its first step": (False, False, ["death"], False),
    "environment later": (True, False, ["environment"], False),
    "environment, then an early death": (True, False, ["environment", "death"], False),
    "environment twice in the first episode": (True, False, ["environment", "environment"], True),
    "environment twice in later episodes": (True, True, ["environment", "environment"], False),
    "worker twice without an update": (True, True, ["worker", "worker"], True),
    "diverged": (True, True, ["diverged"], True),
    "deadlock": (True, True, ["deadlock"], True),
}


@pytest.mark.parametrize("case", HOPELESS)
def test_a_failure_that_would_recur_is_final(case: str, starting: Scene) -> None:
    ready, ended, reasons, final = HOPELESS[case]
    starting.counters.store(READY, ready)
    starting.counters.store(EPISODES, ended)
    for attempt, reason in enumerate(reasons, 1):
        assert starting.worker.attempts == attempt
        starting.counters.store(STEPS, attempt * ("later episodes" in case))
        starting.process.end(reason, "Traceback: a fault")
        if final and attempt == len(reasons):
            with pytest.raises(mc.WorkerFailed, match="a fault") as caught:
                starting.supervisor.watch(0.0)
            assert caught.value.reason == reason
            expected = "start 1: Traceback: a fault\nstart 2: the same" if attempt == 2 else "Traceback: a fault"
            assert caught.value.traceback == expected
        starting.watch_until(starting.now + 3.0)
    assert starting.worker.attempts == len(reasons) + (not final)


@pytest.mark.parametrize("refusal", [BlockingIOError(11, "no more processes"), mc.MarlcoreError("the server died")])
def test_a_refused_start_is_tried_later(scene: Scene, refusal: Exception) -> None:
    scene.refused, scene.refusal = 2, refusal
    scene.die()
    scene.watch_until(8.0)
    assert scene.log[1:] == ["end 1", "start 4"]


def test_a_first_start_is_tried_again_when_the_server_dies(scene: Scene) -> None:
    scene.refused, scene.refusal, scene.worker.process = 9, mc.MarlcoreError("the server died"), None
    scene.worker.start()
    says = r"^actor-0 failed:\nstart 2: no process could be started: the server died"
    with pytest.raises(mc.WorkerFailed, match=says):
        scene.watch_until(20.0)
    assert scene.worker.attempts == 5 and scene.now == 7.0  # 3 restarts, after 1, 2 and 4 s


@pytest.mark.parametrize("stood_down_first", [False, True])
def test_no_restart_happens_after_standing_down(scene: Scene, stood_down_first: bool) -> None:
    for act in (scene.supervisor.stand_down, scene.die)[:: 1 if stood_down_first else -1]:
        act()
    scene.watch_until(100.0)
    assert scene.log[1:] == ["end 1"] and scene.supervisor.unfinished == []
    assert scene.worker.failure.reason == "death" and not scene.worker.done


def test_a_learner_may_be_silent_as_long_as_its_policies() -> None:
    config = mc.Config(
        learner=LearnerConfig(processes=2), supervision=SupervisionConfig(actor_timeout=7, learner_timeout=30),
        learners={"b": LearnerConfig(timeout=5), "c": LearnerConfig(timeout=60), "d": LearnerConfig(timeout=6)},
    )  # fmt: skip
    spec: Any = SimpleNamespace(config=config, learners=learner_names(config, "abcd"))
    with Control.create(["actor-0", "learner-0", "learner-1"]) as control:
        workers = supervisor_of(spec, Mock(), control, control.workers, Mock(), Mock()).workers
    assert {name: worker.timeout for name, worker in workers.items()} == {"actor-0": 7, "learner-0": 60, "learner-1": 6}


HANGS = ["Python", "C", "C with the interpreter's lock"]


def hang(how: str, control: SegmentHandle) -> None:
    if how != "Python":
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    counters = Control.attach(control).workers["actor-0"]
    counters.store(BEATS, 1)
    counters.store(READY, 1)
    if how == "C":
        time.sleep(1e6)
    if how == "C with the interpreter's lock":
        ctypes.PyDLL(None).pause()
    while True:
        pass


@pytest.mark.usefixtures("shared_fork_server")
@pytest.mark.parametrize("how", long_but(["C with the interpreter's lock"], HANGS))
def test_a_worker_that_hangs_leaves_its_stacks_in_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path, monotonic = tmp_path / "actor-0.log", time.monotonic

    def now() -> float:
        """Ends the time for stacks once they are in the log."""
        return monotonic() + supervision.STACKS_S * (path.exists() and " in hang\n" in path.read_text())

    monkeypatch.setattr(supervision.time, "monotonic", now)
    with Control.create(["actor-0"]) as control, closing(Children()) as children:

        def start(name: str, attempt: int) -> Any:
            return children.start_worker(name, partial(hang, how, control.handle), partial(setup_worker, path))

        policy = supervision.RestartPolicy(max_restarts=0)
        supervisor = supervision.Supervisor(children, control, start, {"actor-0": 0.1}, policy)
        supervisor.workers["actor-0"].start()
        with pytest.raises(mc.WorkerFailed, match=r"no sign of life for 0\.1 s"):
            while True:
                supervisor.watch(0.02)
        assert not supervisor.unfinished
    assert "test_supervisor.py" in path.read_text() and " in hang\n" in path.read_text()


runs = Runs(
    total_steps=8_000, mode="async", learner={"checkpoint_interval": 50}, supervision={"backoff": 0.01},
    exploration={"epsilon": "exponential(1, 0.02, rate=0.95, every=20, of=updates)"},
)  # fmt: skip


def fall(trap: Path, how: str) -> None:
    """Fails as `how` says, unless another worker was caught in the trap before."""
    try:
        trap.unlink()
    except FileNotFoundError:
        return
    if how == "raise":
        raise RuntimeError("the treasure is cursed")
    os.kill(os.getpid(), getattr(signal, how))


class TrappedHunt(TreasureHunt):
    """Falls into the trap at its 300th step."""

    def __init__(self, trap: Path, how: str, **options: Any) -> None:
        super().__init__(**options)
        self._fall, self._steps = partial(fall, trap, how), 0

    def step(self, action: int | None) -> None:
        self._steps += 1
        if self._steps == 300:
            self._fall()
        super().step(action)


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    (tmp_path / "trap").touch()
    return tmp_path / "trap"


SHARED = pytest.mark.usefixtures("undrawn", "shared_fork_server")


@SHARED
@pytest.mark.long
@pytest.mark.parametrize(("how", "limit"), [("SIGKILL", 60.0), ("raise", 60.0), ("SIGSTOP", 12.0)])
def test_a_run_continues_when_an_actor_dies_fails_or_hangs(tmp_path: Path, trap: Path, how: str, limit: float) -> None:
    hunt = partial(TrappedHunt, trap, how, **HUNT.keywords)
    result = runs.train(tmp_path, hunt, supervision={"actor_timeout": limit})
    assert result.restarts == {"actor-0": 1, "learner-agent_0": 0, "learner-agent_1": 0}
    assert 8_000 <= result.steps < 8_000 + runs.config.actor.envs
    assert max(metric.step for metric in metrics_of(result.run_dir)) >= 8_000 - 100


@pytest.mark.long
@SHARED
def test_a_learner_continues_from_its_last_checkpoint(tmp_path: Path, trap: Path) -> None:
    """The first learner dies at its 131st update, which is the 31st after its second checkpoint."""

    def update(theirs: Any, batch: Any) -> mc.Update:
        if theirs.__self__.updates == 130:
            fall(trap, "SIGKILL")
        return theirs(batch)

    result = runs.train(tmp_path, HUNT, updating(mc.DQN, update)())
    assert sum(result.restarts.values()) == 1
    (agent,) = (name.removeprefix("learner-") for name, count in result.restarts.items() if count)
    metrics = metrics_of(result.run_dir)
    epsilons = [metric.value for metric in metrics if (metric.agent, metric.name) == (agent, "epsilon")]
    assert epsilons == sorted(epsilons, reverse=True) and epsilons[-1] < epsilons[0]
    state = checkpoint(result.run_dir, agent)
    assert state["updates"] == result.updates[agent] > 131
    # 130 updates were counted when it died, and its trainer continues from the checkpoint of 100.
    assert state["trainer"]["updates"] == result.updates[agent] - 30
    assert state["version"] > result.updates[agent] // runs.config.learner.publish_interval


@SHARED
@pytest.mark.long
def test_work_is_done_in_turn_where_no_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = Children.start

    def start_one(self: Children, *arguments: Any, early: bool) -> Any:
        if self.living:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return start(self, *arguments, early=early)

    monkeypatch.setattr(Children, "start", start_one)
    result = runs.train(tmp_path, HUNT, total_steps=1000)
    assert "no processes can be started here" in caplog.text and "Resource temporarily unavailable" in caplog.text
    assert result.steps >= 1000 and all(count > 0 for count in result.updates.values())


DIED = "process that forks workers died 4 times, the last time: it ended with exit code 1"


def test_this_process_works_when_no_worker_starts() -> None:
    worker = Mock(**{"start.side_effect": [None, OSError(11, "no more processes")]})
    assert [start_all(Mock(workers={"a": worker}), ["a"], Mock(stopping=False), True) for _ in range(2)] == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("fallback", "python", "says"),
    [
        (False, "/nowhere/python", r"mode: no processes can be started here \(.*/nowhere/python'?\)"),
        (True, "/bin/false", f"^actor-0 failed: no process could be started: the {DIED}$"),
    ],
)
def test_a_start_that_cannot_be_mended_ends_the_run(
    tmp_path: Path, python_is: Any, monkeypatch: pytest.MonkeyPatch, fallback: bool, python: str, says: str
) -> None:
    python_is(python)
    monkeypatch.setattr("marlcore.processes.fork_server.BACKOFF_S", 0.0)
    with pytest.raises(mc.MarlcoreError, match=says):
        runs.train(tmp_path, HUNT, supervision={"serial_fallback": fallback, "max_restarts": 0})
