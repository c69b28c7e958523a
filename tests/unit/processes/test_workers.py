"""Workers: processes for programs with their own loop; failures raise, and workers end with the block or the parent."""

import gc
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meanwhile import Rang
from processes import segments_of, start_python, state
from refused import check_refused
from tiers import long_but

import marlcore as mc
from marlcore.lazy import is_installed
from marlcore.memory import interrupt_waits_with
from marlcore.processes import Children, Telemetry

SPEC = mc.TransitionSpec(obs=mc.Field((3,)), action=mc.Field((), "int64"))
LONG_S = 3600.0
pytestmark = pytest.mark.usefixtures("shared_fork_server")


def idle(context: mc.WorkerContext, *arguments: Any) -> None:
    while not context.stopping:
        time.sleep(0.01)


def fail(context: mc.WorkerContext) -> None:
    raise RuntimeError("the simulator is on fire")


def raise_(error: BaseException) -> None:
    raise error


def ignore(context: mc.WorkerContext) -> None:
    context.report("pid", os.getpid())
    while True:
        time.sleep(1.0)


def tell_environment(context: mc.WorkerContext) -> None:
    context.report("number", float(os.environ.get("MARLCORE_TEST_NUMBER", -1)))


def signal_at_the_end(context: mc.WorkerContext, parent: int, signum: int) -> None:
    context.report("started", 1)
    idle(context)
    os.kill(parent, signum)


def reports_of(workers: mc.Workers, count: int) -> list[Any]:
    reports = workers.reports()
    while len(reports) < count:
        workers.check()
        time.sleep(0.01)
        reports += workers.reports()
    return reports


def await_end(pids: list[int]) -> None:
    """Waits until each of the processes has ended."""
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended, and was reaped
            while state(pid) != "Z":
                time.sleep(0.01)


def test_lambdas_closures_and_partials_run_with_their_arguments() -> None:
    base = 40

    def plus(context: mc.WorkerContext, number: int, *, scale: int = 1) -> None:
        context.report("sum", scale * (base + number), step=7)

    with mc.Workers() as workers:
        workers.start(plus, 1)
        workers.start(partial(plus, scale=2), 1)
        workers.start(plus, 1, scale=3)
        workers.start(lambda context: context.report("sum", 4.0))
        assert workers.wait()
    reports = sorted((metric.value, metric.agent, metric.name, metric.step) for metric in workers.reports())
    names = {41.0: "plus-0", 82.0: "plus-1", 123.0: "plus-2"}
    assert reports == [(4.0, "worker-0", "sum", 0), *((value, name, "sum", 7) for value, name in names.items())]
    assert workers.reports() == []


def test_random_numbers_differ_between_workers() -> None:
    def draw(context: mc.WorkerContext) -> None:
        context.report("numpy", np.random.random())
        if is_installed("train"):
            import torch

            context.report("torch", torch.rand(()).item())

    with mc.Workers() as workers:
        for _ in range(2):
            workers.start(draw)
        workers.wait()
    assert len({metric.value for metric in workers.reports()}) == 2 + 2 * is_installed("train")


# By case: a worker's function, and the failure that it ends with, if any.
ENDS: dict[str, tuple[Callable[[mc.WorkerContext], object], str]] = {
    "returns": (lambda context: 3, ""),
    "exits": (lambda context: sys.exit(), ""),
    "exits with a code": (lambda context: sys.exit(3), "SystemExit: 3"),
    "raises": (fail, 'raise RuntimeError("the simulator is on fire")'),
    "raises an error of stopping workers": (lambda context: raise_(mc.ClosedError("of its own")), "of its own"),
    "raises text that UTF-8 cannot hold": (lambda context: raise_(ValueError("a file \udcff")), r"a file \udcff"),
    "dies": (lambda context: os.kill(os.getpid(), signal.SIGKILL), "signal SIGKILL and left no traceback"),
}


def test_a_failure_is_raised_once_by_the_next_call(subtests: pytest.Subtests) -> None:
    with mc.Workers() as workers:
        living = workers.start(idle)
        for case, (function, says) in ENDS.items():
            with subtests.test(case):
                ending = workers.start(function)
                if says:
                    with pytest.raises(mc.WorkerFailed, match=re.escape(says)) as caught:
                        workers.wait()
                    reason = "death" if case == "dies" else "worker"
                    assert (caught.value.worker, caught.value.reason) == (ending.name, reason)
                while ending.running:
                    time.sleep(0.01)
                workers.check()
        assert living.running and workers.start(idle).running


def test_a_failure_that_nothing_noticed_is_raised_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """Further failures are logged; all of them, if the block raised another exception."""
    for raised in (None, ValueError("of the block")):
        caplog.clear()
        with pytest.raises(ValueError if raised else mc.WorkerFailed), mc.Workers() as workers:
            failing = [workers.start(fail) for _ in range(2)]
            while any(worker.running for worker in failing):
                time.sleep(0.01)
            assert "on fire" not in caplog.text
            if raised:
                raise raised
        assert caplog.text.count("RuntimeError: the simulator is on fire") == (2 if raised else 1)


def test_an_interrupt_while_a_worker_ends_loses_no_failure(monkeypatch) -> None:
    end = Children.end

    def interrupted(children: Children, child: Any) -> None:
        end(children, child)
        monkeypatch.undo()
        raise Rang

    monkeypatch.setattr(Children, "end", interrupted)
    with pytest.raises(mc.WorkerFailed, match="on fire"), mc.Workers() as workers:
        workers.start(fail)
        with pytest.raises(Rang):
            workers.wait()


def test_killed_workers_are_no_failures_to_another_thread() -> None:
    failures: list[Exception] = []

    def look(workers: mc.Workers) -> None:
        try:
            while True:
                workers.check()
        except mc.ClosedError:
            pass
        except Exception as error:
            failures.append(error)

    for _ in range(2):
        with mc.Workers(grace=0.0) as workers:
            for _ in range(4):
                workers.start(ignore)
            thread = threading.Thread(target=look, args=(workers,))
            thread.start()
        thread.join()
    assert failures == []


def test_a_killed_worker_has_not_failed() -> None:
    with mc.Workers() as workers:
        worker = workers.start(idle)
        worker.kill()
        assert not worker.running and workers.wait()


def waits(replay: mc.ReplayBuffer, queue: mc.TrajectoryQueue, store: mc.ParameterStore) -> dict[str, Any]:
    """Returns, by name, waits for data that never comes, some of them in objects of the caller's process."""
    subscriber = store.subscriber({"weight": np.zeros((2, 2))})

    def prefetched() -> None:
        with mc.Prefetch(replay.sampler(2)) as prefetch:
            prefetch.sample(timeout=LONG_S)

    def added() -> None:
        with queue.writer(1) as writer:
            while True:
                writer.add(np.zeros(3), 0, 0.0)

    return {
        "sample": lambda: replay.sampler(2).sample(timeout=LONG_S),
        "prefetch": prefetched,
        "mixture": lambda: mc.Mixture([replay], [1.0], 2).sample(timeout=LONG_S),
        "read": lambda: queue.reader(2).read(timeout=LONG_S),
        "wait": lambda: subscriber.wait(newer_than=0, timeout=LONG_S),
        "add": added,
    }


WAITS = ["sample", "prefetch", "mixture", "read", "wait", "add"]


@pytest.fixture
def things() -> Iterator[tuple[mc.ReplayBuffer, mc.TrajectoryQueue, mc.ParameterStore]]:
    with (
        mc.ReplayBuffer.create(SPEC, 100) as replay,
        mc.TrajectoryQueue.create(SPEC, 8, lanes=2) as queue,
        mc.ParameterStore.create({"weight": np.zeros((2, 2))}) as store,
    ):
        yield replay, queue, store


@pytest.mark.long
@pytest.mark.parametrize("kind", WAITS)
def test_a_wait_in_the_parent_ends_when_a_worker_fails(things: Any, kind: str) -> None:
    with mc.Workers() as workers:
        workers.start(fail)
        with pytest.raises(mc.WorkerFailed, match="on fire"):
            waits(*things)[kind]()
    assert interrupt_waits_with(None) is None


@pytest.mark.long
def test_every_wait_in_a_worker_ends_when_the_workers_stop(things: Any) -> None:
    def wait(context: mc.WorkerContext, kind: str, *things: Any) -> None:
        context.report("waits", 1.0)
        waits(*things)[kind]()

    with mc.Workers(grace=LONG_S) as workers:
        for kind in WAITS:
            workers.start(wait, kind, *things)
        reports_of(workers, len(WAITS))


@pytest.mark.parametrize("stopped", [False, True], ids=["ignores", "sigstop"])
def test_a_worker_that_does_not_end_is_killed_after_the_grace(stopped: bool, caplog: pytest.LogCaptureFixture) -> None:
    with mc.Workers(grace=0.05) as workers, caplog.at_level(logging.WARNING):
        worker = workers.start(ignore)
        reports_of(workers, 1)
        if stopped:
            os.kill(worker.pid, signal.SIGSTOP)
    await_end([worker.pid])
    assert "ignore-0 did not end when it was told to stop, and is killed" in caplog.text


def test_a_worker_that_ends_takes_its_daemonic_processes_along() -> None:
    def help_out(context: mc.WorkerContext) -> None:
        helper = get_context("fork").Process(target=signal.pause, daemon=True)
        helper.start()
        assert helper.pid is not None
        context.report("pid", helper.pid)

    with mc.Workers() as workers:
        workers.start(help_out)
        workers.wait()
        await_end([int(metric.value) for metric in reports_of(workers, 1)])


@pytest.mark.long
def test_many_workers_and_two_groups_at_once_are_independent() -> None:
    with mc.Workers() as outer:
        for _ in range(16):
            outer.start(idle)
        with mc.Workers() as inner:
            inner.start(idle)
        assert not any(worker.running for worker in inner)
        assert len(outer) == 16 and all(worker.running for worker in outer)
        outer.start(fail)
        with mc.ReplayBuffer.create(SPEC, 10) as replay, mc.Workers() as inner:
            inner.start(idle)
            with pytest.raises(mc.WorkerFailed, match="on fire"):  # a wait looks after both
                replay.sampler(1).sample(timeout=LONG_S)


def test_groups_may_end_in_any_order() -> None:
    first, second, before = mc.Workers(), mc.Workers(), signal.signal(signal.SIGTERM, signal.SIG_DFL)
    first.start(idle)
    second.start(idle)
    first.close()
    assert signal.getsignal(signal.SIGTERM) not in (before, signal.SIG_DFL)
    second.start(fail)
    with mc.ReplayBuffer.create(SPEC, 10) as replay, pytest.raises(mc.WorkerFailed, match="on fire"):
        replay.sampler(1).sample(timeout=LONG_S)
    second.close()
    assert interrupt_waits_with(None) is None and signal.signal(signal.SIGTERM, before) is signal.SIG_DFL


def test_a_worker_that_has_ended_holds_no_memory_and_its_reports_stay() -> None:
    with mc.Workers() as workers:
        before = set(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm"))
        for _ in range(3):
            workers.start(tell_environment)
        workers.wait()
        assert (set(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm"))) == before
        reports = workers.reports()
        assert len(reports) == 3 and sorted(reports, key=lambda metric: metric.time_s) == reports
    assert workers.reports() == []


def test_a_worker_has_the_environment_of_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with mc.Workers() as workers:
        told = []
        for value in ("1", "2", None):
            if value is None:
                monkeypatch.delenv("MARLCORE_TEST_NUMBER")
            else:
                monkeypatch.setenv("MARLCORE_TEST_NUMBER", value)
            workers.start(tell_environment)
            told += [metric.value for metric in reports_of(workers, 1)]
    assert told == [1.0, 2.0, -1.0]


PRELOADED = """
    import os
    import marlcore as mc

    def tell(context):
        context.report("number", float(os.environ["OF_A_MODULE"]) + float(os.environ["OF_THE_PROGRAM"]))

    with mc.Workers(preload=["sets_one"]) as workers:
        os.environ["OF_THE_PROGRAM"] = "2"
        workers.start(tell)
        os.environ["OF_THE_PROGRAM"] = "3"
        workers.start(tell)
        workers.wait()
    print(*sorted(metric.value for metric in workers.reports()))
"""


@pytest.mark.long
def test_a_worker_has_what_preloaded_modules_set(tmp_path: Path) -> None:
    (tmp_path / "sets_one.py").write_text("import os\nos.environ['OF_A_MODULE'] = '1'\n")
    program = start_python(textwrap.dedent(PRELOADED), beside=tmp_path / "program.py")
    said, complaints = program.communicate()
    assert said.split() == ["3.0", "4.0"], complaints


class Signalling:
    """An argument that sends this process a signal each time that it is pickled; it is pickled twice at a start."""

    def __init__(self, signum: int) -> None:
        self.signum = signum

    def __reduce__(self) -> Any:
        signal.raise_signal(self.signum)
        return Signalling, (self.signum,)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_during_a_start_or_an_end_reach_the_programs_own_handlers(signum: int) -> None:
    came: list[int] = []
    before = signal.signal(signum, lambda number, frame: came.append(number))
    try:
        with mc.Workers() as workers:
            workers.start(idle, Signalling(signum))
            workers.start(signal_at_the_end, os.getpid(), signum)
            reports_of(workers, 1)
            assert came == [signum] * 2
        assert came == [signum] * 3
        came.clear()
        signal.signal(signum, signal.SIG_IGN)
        with mc.Workers() as workers:
            workers.start(idle, Signalling(signum))
        assert came == []
    finally:
        signal.signal(signum, before)


def test_a_wait_for_workers_ends_with_the_time() -> None:
    with mc.Workers() as workers:
        assert workers.wait()
        workers.start(idle)
        assert not workers.wait(timeout=0.05)


def test_a_fork_of_the_parent_ends_no_worker() -> None:
    pid = -1
    try:
        with mc.Workers() as workers:
            worker = workers.start(idle)
            pid = os.fork()
            if pid == 0:
                with pytest.raises(mc.StaleHandle):
                    workers.check()
                raise SystemExit(7)  # through the block, as any program's end is
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            assert worker.running
    except BaseException as error:
        if pid == 0:
            os._exit(error.code if isinstance(error, SystemExit) else 1)
        raise


# Calls with a group that is open and has a worker named "left".
REFUSED: list[tuple[Callable[[Any], object], type[Exception], str]] = [
    (lambda group: mc.Workers(grace=-1), ValueError, "grace: expected seconds of at least 0, got -1"),
    (lambda group: group.start(3), TypeError, "function: expected a callable, got 3"),
    (lambda group: group.start(idle, 1, threading.Lock()), TypeError,
        "argument 2: expected something that can be pickled, got <unlocked _thread.lock"),
    (lambda group: group.start_named("left", idle), ValueError,
        "name: expected a name that no other worker has, got 'left'"),
    (lambda group: group.start_named("x" * 65, idle), ValueError, "name: expected at most 64 bytes of"),
    (lambda group: group.start_named("", idle), ValueError, "name: expected at least 1 byte, got ''"),
    (lambda group: mc.Workers().wait(), mc.ClosedError, "no worker was started yet"),
    (lambda group: group.__enter__(), mc.ClosedError, "entered only once"),
]  # fmt: skip


def test_refuses(subtests: pytest.Subtests) -> None:
    with mc.Workers() as group:
        assert group.start_named("left", idle, "name").name == "left"
        for call, error, says in REFUSED:
            with subtests.test(says):
                check_refused(partial(call, group), error, says)
        assert len(group) == 1 and all(worker.running for worker in group)


def test_without_a_block_the_first_start_begins_and_close_ends() -> None:
    before, workers = set(os.listdir("/proc/self/fd")), mc.Workers()
    workers.close()
    worker = workers.start(idle)
    workers.start(ignore)
    reports_of(workers, 1)
    check_refused(workers.__enter__, mc.ClosedError, "entered only once")
    assert worker.running
    workers._grace = 0.1  # `ignore` is killed then
    workers.close()
    workers.close()
    assert not worker.running and set(os.listdir("/proc/self/fd")) <= before
    check_refused(lambda: workers.start(idle), mc.ClosedError, "the group of workers has ended")


def test_close_raises_a_failure_that_was_not_raised_yet() -> None:
    workers = mc.Workers()
    worker = workers.start(fail)
    while worker.running:
        time.sleep(0.01)
    with pytest.raises(mc.WorkerFailed, match="the simulator is on fire"):
        workers.close()
    workers.close()


@pytest.mark.parametrize(
    "end", long_but([""], ["", "sys.exit(3)", "raise RuntimeError('no')", "os.kill(os.getpid(), signal.SIGTERM)"])
)
def test_a_program_that_ends_closes_its_workers(end: str) -> None:
    code = f"""
import os, signal, sys, time
import marlcore as mc

def idle(context):
    while not context.stopping:
        time.sleep(0.01)
    print("ended", flush=True)

workers = mc.Workers(grace=600.0)
print(workers.start(idle).pid, flush=True)
{end}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    pid, ended = done.stdout.split()
    assert ended == "ended"
    await_end([int(pid)])


def test_a_block_that_ended_holds_no_descriptor() -> None:
    """It holds none before a garbage collection either: a loop of blocks would reach the limit of open files."""
    before = set(os.listdir("/proc/self/fd"))
    gc.disable()
    try:
        with mc.Workers() as workers:
            for _ in range(3):
                workers.start(idle)
        assert len(workers) == 3
        assert set(os.listdir("/proc/self/fd")) <= before
        check_refused(lambda: workers.start(idle), mc.ClosedError, "the group of workers has ended")
        check_refused(workers.__enter__, mc.ClosedError, "entered only once")
    finally:
        gc.enable()


PROGRAM = """
    import marlcore as mc
    import time

    def actor(context, replay, lane):
        with replay.writer(lane) as writer:
            while True:
                writer.add([0.0, 0.0, 0.0], lane, 0.0)

    spec = mc.TransitionSpec(obs=mc.Field((3,)), action=mc.Field((), "int64"))
    limiter = mc.RateLimiter(1.0, 1, 8.0)
    with mc.ReplayBuffer.create(spec, 1000, lanes=2, limiter=limiter) as replay, mc.Workers(grace=600.0) as workers:
        for lane in range(2):
            workers.start(actor, replay, lane)
        replay.sampler(1).sample(timeout=3600.0)
        print(*(worker.pid for worker in workers), flush=True)
        time.sleep(3600.0)
"""


@pytest.mark.long
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_whole_group_ends_everything(signum: int) -> None:
    pytest.importorskip("marlcore.cli.gc", exc_type=ImportError)
    program = start_python(textwrap.dedent(PROGRAM), beside=__file__)
    pids, segments = [int(pid) for pid in program.stdout.readline().split()], segments_of(program.pid)
    assert len(pids) == 2 and len(segments) == 4  # a replay, a control block, and the telemetry of each worker
    os.killpg(program.pid, signum)
    _, said = program.communicate()
    await_end(pids)
    assert program.returncode == (-signum if signum == signal.SIGINT else 128 + signum), said
    assert "did not end" not in said and not any(path.exists() for path in segments)


@pytest.mark.parametrize("what", ["close", "reports"])
def test_a_handler_may_come_while_reports_are_read(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tail` stands in for the moment at which the signal comes."""
    with mc.Workers() as workers:
        came: list[Any] = []
        tail = Telemetry.tail

        def interrupted(telemetry: Telemetry) -> Any:
            told = tail(telemetry)
            if told and not came:
                came.append([])
                came[0] += getattr(workers, what)() or []
            return told

        for _ in range(2):
            workers.start(tell_environment)
        for worker in workers:
            while worker.running:
                time.sleep(0.01)
        monkeypatch.setattr(Telemetry, "tail", interrupted)
        workers._note_ends()
        assert len([*workers.reports(), *came[0]]) == 2


def test_a_handler_that_interrupts_a_look_at_the_workers_may_close_them() -> None:
    with mc.Workers() as workers:
        worker = workers.start(idle)
        with workers._lock:  # as where a handler interrupts `check`
            workers.close()
        assert not worker.running
