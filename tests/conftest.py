"""What every test has: a tier, a check that it leaves nothing behind, and short programs run in other processes."""

import ctypes
import functools
import gc
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from multiprocessing import resource_tracker, spawn
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from processes import children, handlers

from marlcore.kernels import jit
from marlcore.lazy import is_installed
from marlcore.memory import interrupt_waits_with, try_lock
from marlcore.processes import PRELOAD, ForkServer

SUPPORT = str(Path(__file__).parent / "support")
# Programs that tests start find what tests share; pytest itself has it by `pythonpath`.
os.environ["PYTHONPATH"] = os.pathsep.join([SUPPORT, *filter(None, [os.environ.get("PYTHONPATH")])])
# Threads of networks so small would wait for one another, and for whatever else the machine does.
os.environ["OMP_NUM_THREADS"] = "1"

MOST_WORKERS = 4  # each imports everything, and has a fork server and kernels of its own
# What takes longest begins first, lest one process work alone at the end; the rest goes by its number of tests.
OF_NETWORKS = "tests/cluster/test_networks.py"  # which starts Ray on hosts of its own
COUNTED = "bench/costs/bench_instructions.py"  # which takes as long under load
LONGEST = "cluster", "learners and leagues", "tests/models/test_models.py", OF_NETWORKS, COUNTED, *(
    f"tests/{name}.py" for name in ("unit/test_site", "runs/test_gallery", "runs/test_phase2", "runs/test_offline")
)  # fmt: skip
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000  # linux/sched.h, linux/mount.h

# No test fails by the clock: a busy machine draws examples slowly, too.
settings.register_profile("marlcore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("marlcore")

failed = pytest.StashKey[bool]()
left_out_key = pytest.StashKey[int]()

# Of whole runs, or of parts of them: left out where the core is installed alone.
OF_TRAINING = "cluster crash runs unit/algos unit/cli unit/compat unit/envs unit/testing"
OF_TRAINING += " unit/config unit/loops unit/record unit/evaluation unit/self_play unit/meta unit/run"
OF_TRAINING += " unit/cluster/nodes unit/processes/test_supervisor.py unit/test_spec.py"
collect_ignore = [] if is_installed("train") else OF_TRAINING.split()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="also run model checkers, crash points, kills, soaks and whole trainings"
    )


def pytest_report_header() -> str:
    return f"left out, since they need marlcore[train]: {' '.join(collect_ignore)}" if collect_ignore else ""


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which `nohup` ignores
    gc.disable()  # until all tests are collected: it takes two fifths of that time
    refused = _mount_own_shared_memory()
    if refused and hasattr(config, "workerinput"):
        raise pytest.UsageError(f"-n needs the right to mount /dev/shm: {refused}")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Whole tiers are divided among processes; a developer's choice of tests starts sooner in one."""
    chosen = config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.option.keyword
    if chosen or _mount_own_shared_memory():
        return 0
    return min(len(os.sched_getaffinity(0)), MOST_WORKERS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Compiles the kernels before processes start that would each compile all of them."""
    cache = jit.cache_directory()
    if cache is not None and not (cache / "warm-drop_ins").exists():  # its last mark
        subprocess.run([sys.executable, "-m", "marlcore", "warmup"], check=True, stdout=subprocess.DEVNULL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A process runs whole files, so that it makes what a file's tests share once, and two all that start Ray."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if "/cluster/" not in file or file == OF_NETWORKS:
                return file
            return "learners and leagues" if "/test_lea" in file else "cluster"  # which take as long

        def _assign_work_unit(self, node: Any) -> None:
            if first := next((scope for scope in LONGEST if scope in self.workqueue), None):
                self.workqueue.move_to_end(first, last=False)
            super()._assign_work_unit(node)

    return ByFile(config, log)


@functools.cache
def _mount_own_shared_memory() -> str:
    """Gives this process a /dev/shm of its own, since many tests look at all segments; returns what refused it."""
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (
        lambda: libc.unshare(CLONE_NEWNS),
        lambda: libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None),
        lambda: libc.mount(b"marlcore", b"/dev/shm", b"tmpfs", 0, b"size=50%"),
    ):
        if call():
            return os.strerror(ctypes.get_errno())
    return ""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Freezes imported objects: else they take most of the time of each test's garbage collection."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # marlcore.__main__, once imported, exits at once
    gc.freeze()
    gc.set_threshold(10_000, 20, 100)  # a tenth of the tests' time goes otherwise into collections
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    items[:] = [item for item in items if not item.get_closest_marker("long")]
    config.stash[left_out_key] = len(left_out)
    getattr(config, "workeroutput", {})["left_out"] = len(left_out)  # what a process of pytest-xdist hands over
    config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each process of pytest-xdist has collected every test; one that crashed hands nothing over."""
    if "left_out" in getattr(node, "workeroutput", {}):
        node.config.stash[left_out_key] = node.workeroutput["left_out"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says what the model checkers came to: executions or states explored, and the mutants killed, by model."""
    if left_out := config.stash.get(left_out_key, 0):
        terminalreporter.write_line(f"{left_out} long tests were left out: python -m pytest --long runs them too")
    states, killed = Counter[str](), Counter[str]()
    for report in terminalreporter.getreports("passed"):
        for name, (model, count) in (each for each in report.user_properties if each[0] in ("explored", "killed")):
            (states if name == "explored" else killed)[model] += count
    if states:
        terminalreporter.section("model checking")
    for model, explored in states.items():
        unit = "executions" if "Relacy" in model else "states"
        terminalreporter.write_line(f"{model}: {explored} {unit} explored, {killed[model]} mutants killed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    item.stash[failed] = item.stash.get(failed, False) or report.failed
    return report


def _orphaned(name: str) -> bool:
    """Whether nobody has the segment mapped. One that somebody has is of this process or its children, whose
    descriptors and lives are checked too, or of other programs on this machine, which are no concern of a test.
    """
    try:
        fd = os.open(f"/dev/shm/{name}", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False  # gone meanwhile
    try:
        return try_lock(fd, 0, exclusive=True)
    finally:
        os.close(fd)


def _left() -> dict[str, set[str]]:
    """Segments in /dev/shm that nobody holds, child processes and open descriptors of this process."""
    descriptors = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor that listed the directory
            target = os.readlink(f"/proc/self/fd/{fd}")
            # matplotlib keeps each font that it drew with open for good, and Ray the log of each connection
            if "/mpl-data/fonts/" not in target and "/ray/session_" not in target:
                descriptors.add(f"{fd} -> {target}")
    return {
        "segment": {name for name in os.listdir("/dev/shm") if name.startswith("marlcore-") and _orphaned(name)},
        "process": set(map(str, children(os.getpid()))),
        "descriptor": descriptors,
        "signal's handler": handlers(),
    }


_frozen_with = 0  # modules


def _collect() -> None:
    """Freezes what modules hold whenever more are imported: else each collection takes longer."""
    global _frozen_with
    gc.collect()
    if len(sys.modules) > _frozen_with:
        gc.freeze()
        _frozen_with = len(sys.modules)


def _collect_all() -> None:
    """Collects also what became garbage after it was frozen."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _resource_tracker() -> None:
    """multiprocessing starts this child once for good at the first spawn: not a leak of that test."""
    resource_tracker.ensure_running()


@pytest.fixture(scope="session")
def cuda() -> bool:
    """Whether there is a CUDA device. The process then holds it open for good, which is no leak of the test."""
    torch = pytest.importorskip("torch")
    found: bool = torch.cuda.is_available()
    if found:
        torch.zeros((), device="cuda")
    return found


@pytest.fixture
def cuda_double(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A CudaDouble. What a test leaves registered is forgotten before the next one."""
    pytest.importorskip("torch")
    from cuda_double import CudaDouble

    from marlcore import accelerator

    yield CudaDouble(monkeypatch)
    gc.collect()
    while accelerator._known:
        accelerator._known.popitem()[1][0].detach()


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    before = _left()
    yield
    if request.node.stash.get(failed, False):
        return  # a failure's traceback keeps what the test had open

    def left() -> list[tuple[str, str]]:
        """What the test left, by kind; what lay there before may be gone."""
        return [(kind, each) for kind, present in _left().items() for each in sorted(present - before[kind])]

    found = left()
    if found:
        request.node.funcargs.clear()  # pytest would keep the fixtures' values until after this check
        for collect in (_collect, _collect_all):
            if found:
                collect()
                found = left()
    assert not found, f"the test left a {found[0][0]} behind: {found}"


class Program:
    """Python code in a process of its own, which talks in lines over its standard streams."""

    def __init__(
        self, *parts: str, args: Sequence[object] = (), within: Sequence[str] = (),
        start: Callable[..., Any] | None = None,
    ) -> None:  # fmt: skip
        code, given = "".join(textwrap.dedent(part) + "\n" for part in parts), [*map(str, args)]
        command = [*within, sys.executable, "-W", "error", "-c", code, *given]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        assert not (within and start), "what is forked is within no network of its own"
        self._process = start(code, given) if start else subprocess.Popen(command, **pipes)
        self.pid = self._process.pid

    def line(self) -> str:
        """The next line that it prints; "" when it ended instead."""
        return self._process.stdout.readline().strip()

    def tell(self, text: str = "") -> None:
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL, and waits until the kernel has released what the process held."""
        self._process.kill()
        self._process.wait()

    def finish(self) -> str:
        """What it still prints before it ends by itself; it must succeed."""
        out, _ = self._process.communicate()
        assert self._process.returncode == 0, f"the program failed with {self._process.returncode}"
        return out.strip()

    def end(self) -> None:
        if self.running:
            self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):  # it was killed with a line unread
                stream.close()


@contextmanager
def _programs() -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def start(*parts: str, **options: Any) -> Program:
        started.append(Program(*parts, **options))
        return started[-1]

    yield start
    for each in started:
        each.end()


@pytest.fixture
def program(leaves_nothing_behind: None) -> Iterator[Callable[..., Program]]:
    """program(*code, args=[...]) runs code in a process of its own; it is gone when the test ends.

    `within` begins its command: see `Network.within`. `start`, such as `ForkedCode`, starts it in `Popen`'s place.
    """
    with _programs() as start:
        yield start


@pytest.fixture(scope="module")
def lasting_program() -> Iterator[Callable[..., Program]]:
    """`program` for fixtures of a module, whose tests share what they start."""
    with _programs() as start:
        yield start


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """A server for tests that leave it as it was, since it starts in seconds: while other tests run."""
    with closing(ForkServer(PRELOAD)) as server:
        server.begin()
        yield server


@pytest.fixture
def shared_fork_server(fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and groups of workers use the server that tests share, and leave it open."""
    lent = SimpleNamespace(begin=lambda: None, fork=fork_server.fork, close=lambda: None, ready=True)
    lent.environ = fork_server.environ
    monkeypatch.setattr("marlcore.processes.children.ForkServer", lambda *_: lent)


@pytest.fixture(scope="session")
def ray_nodes() -> Iterator[Any]:
    """A cluster of Ray on this machine: a head, which has the drivers, and two more nodes. Drivers are other processes.

    All tests share it, and each leaves it as it was: whoever loses a node starts it again.
    """
    from ray_nodes import RayNodes

    with RayNodes(3) as nodes:
        yield nodes


@pytest.fixture
def undrawn() -> Iterator[None]:
    import seams

    with seams.undrawn():
        yield


@pytest.fixture
def alarm():
    """alarm(handler) has a signal call it, a moment after the next wait of this process began to sleep."""
    before, previous = signal.getsignal(signal.SIGALRM), interrupt_waits_with(None)

    def at_the_next_wait(handler):
        def about_to_sleep():
            interrupt_waits_with(None)
            signal.setitimer(signal.ITIMER_REAL, 0.02)

        signal.signal(signal.SIGALRM, lambda *_: handler())
        interrupt_waits_with(about_to_sleep)

    yield at_the_next_wait
    assert interrupt_waits_with(previous) is None, "nothing waited"
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def no_slices(monkeypatch):
    """Waits last until they are woken: else the end of a slice would hide a lost wake-up."""
    monkeypatch.setattr("marlcore.memory.waiting.WAIT_SLICE_S", 600.0)


@pytest.fixture
def python_is():
    """python_is(path) has multiprocessing start that program in Python's place."""
    before = spawn.get_executable()
    yield spawn.set_executable
    spawn.set_executable(before)


@pytest.fixture
def seeded_torch():
    import torch

    torch.manual_seed(0)


@pytest.fixture
def small_tmpfs(tmp_path):
    """A file system in memory, of 1 MiB."""
    where = tmp_path / "small"
    where.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "marlcore", where], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs needs privileges: {mounted.stderr.decode().strip()}")
    yield where
    subprocess.run(["umount", where], check=True)
