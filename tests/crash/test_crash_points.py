"""Killed at each store to shared memory and at each system call, or with each system call failing: others go on.

What victims do and what others must find is in crash_points.py, which runs each scenario in a process of its own,
and in replay_scenarios.py.
"""

import errno
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from core import CORE, SUPPORT, build_crash_points, counted, mutants, python, run
from preloaded import Play, preloaded

pytestmark = pytest.mark.long
PROGRAM = SUPPORT / "crash_points.py"

# Each point of an operation is among these: the least that there are of each kind.
POINTS = {
    "create": {"openat": 3, "fallocate": 1, "pwrite64": 1, "mmap": 1, "fcntl": 1, "linkat": 1},
    "create_file": {"openat": 2, "fallocate": 1, "pwrite64": 1, "mmap": 1, "fcntl": 1, "linkat": 1},
    "attach": {"openat": 1, "fcntl": 1, "pread64": 2, "mmap": 1},
    "claim": {"openat": 1, "fcntl": 1},
    "add": {"store": 12, "futex": 1},  # reserved, 8 words, committed, waiters, event
    "add_frame": {"store": 7, "copy": 2, "futex": 1},
    "add_boundary": {"store": 10, "copy": 4, "futex": 1},
    "add_batch": {"store": 20, "copy": 4, "futex": 1},
    "add_whole": {"store": 20, "copy": 4, "futex": 1},
    "add_vector": {"store": 20, "copy": 8, "futex": 1},
    "add_shared": {"store": 7, "copy": 4, "futex": 1, "fcntl": 2},
    "add_limited": {"store": 12, "futex": 1},
    "draw": {"store": 3},
    "clear": {"openat": 1, "fcntl": 1, "store": 4},  # the lanes' floors, and the clear
    "publish": {"store": 4, "copy": 2, "futex": 1},
    "save": {"fallocate": 1, "pwrite64": 5, "fsync": 2, "linkat": 1, "rename": 1},
    "close": {"unlink": 1, "close": 2},
    "sweep": {"openat": 2, "fcntl": 2, "unlink": 1},
    "ingesting": {"store": 40, "copy": 4},
}
FAILING = {
    "create": ["fallocate:ENOSPC:SharedMemoryFull", "pwrite64:ENOSPC:SharedMemoryFull", "openat:EMFILE:MarlcoreError",
               "mmap:ENOMEM:SharedMemoryFull", "linkat:ENOSPC:OSError"],
    "create_file": ["fallocate:ENOSPC:SharedMemoryFull", "linkat:ENOSPC:OSError", "close:EIO:nothing"],
    "attach": ["openat:EMFILE:MarlcoreError", "fcntl:ENOLCK:OSError", "mmap:ENOMEM:SharedMemoryFull",
               "pread64:EIO:OSError"],
    "claim": ["openat:EMFILE:MarlcoreError", "fcntl:ENOLCK:OSError"],
    "add_shared": ["fcntl:ENOLCK:MarlcoreError", "futex:ENOMEM:nothing"],
    "save": ["fallocate:ENOSPC:SharedMemoryFull", "pwrite64:ENOSPC:SharedMemoryFull", "fsync:EIO:OSError",
             "linkat:EIO:OSError", "rename:EIO:OSError"],
    "clear": ["fcntl:ENOLCK:OSError"],
    "close": ["unlink:EIO:OSError", "close:EIO:nothing"],
    "sweep": ["unlink:EIO:OSError", "fcntl:ENOLCK:OSError"],
}  # fmt: skip


ARM = """
import ctypes, os, sys
report = (ctypes.c_int64 * 2)()
os._exit(100 - ctypes.CDLL(sys.argv[1]).mc_points_arm(ctypes.c_int64(-1), 0, report))
"""
REFUSALS = {errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSYS}  # of the kernel, or of a container's own filter


def filter_is_refused(core: Path) -> str:
    """Why a process may have no seccomp filter here; "" where it may."""
    code = run([sys.executable, "-c", ARM, core]).returncode - 100  # of its own, unlike a traceback's
    return os.strerror(code) if code in REFUSALS else ""


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    built = build_crash_points(CORE, tmp_path_factory.mktemp("core"))
    if refusal := filter_is_refused(built):
        pytest.skip(f"this kernel or container lets no process have a seccomp filter ({refusal})")
    with preloaded(PROGRAM, built) as play:
        yield play


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the program makes its segments: no other process sweeps there."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


@pytest.mark.parametrize("scenario", POINTS)
def test_others_go_on_wherever_a_process_is_killed(scenario: str, play: Play, folder: Path):
    done = play("kill", scenario, folder)
    assert done.returncode == 0, done.stderr
    assert counted(done) >= Counter(POINTS[scenario]), done.stdout


@pytest.mark.parametrize("scenario", FAILING)
def test_a_failed_system_call_is_a_clean_error(scenario: str, play: Play, folder: Path):
    done = play("fail", scenario, folder)
    assert done.returncode == 0, done.stderr
    assert counted(done).keys() >= set(FAILING[scenario]), done.stdout


COMMITS_BEFORE = (
    "transition.c",
    "    uint32_t age = writer->age;\n",
    "    uint32_t age = writer->age;\n    mc_lane_commit(&writer->lane, first, rows);\n",
)
BROKEN = [
    ("kill", "add_frame", "torn or wrong", mutants.Mutant("commits_before_it_writes", (COMMITS_BEFORE,), ())),
    ("kill", "add_vector", "torn or wrong", mutants.Mutant("commits_each_lane_too_early", (COMMITS_BEFORE,), ())),
    ("kill", "add", "torn or wrong", mutants.Mutant("does_not_reserve", (*mutants.NO_RESERVATION, (
        "lane.c",
        "    mc_store_committed(mc_counters_of(lane), first + n);\n",
        "    mc_store_reserved(mc_counters_of(lane), first + n);\n"
        "    mc_store_committed(mc_counters_of(lane), first + n);\n",
    )), ())),
    ("kill", "add_batch", "torn or wrong", mutants.Mutant("successor_lowers_reserved", ((
        "lane.c", "    if (r < c + n) {\n", "    {\n",
    ),), ())),
    ("kill", "add_whole", "writers overwrote every row", mutants.Mutant("keeps_nothing", ((
        "lane.c", "        mc_store_kept(counters, mc_lane_word(lane, c - 1), c);\n", "",
    ),), ())),
    ("kill", "add_whole", "writers overwrote every row", mutants.Mutant("keeps_after_it_reserves", ((
        "lane.c",
        "    if (c > 0) {\n        mc_store_kept",
        "    mc_store_reserved(counters, c + lane->capacity);\n    if (c > 0) {\n        mc_store_kept",
    ),), ())),
    ("fail", "claim", "a lane has two writers", mutants.Mutant("lock_that_fails_is_taken_for_held", ((
        "locks.c", "    return errno == EACCES ? -EAGAIN : -errno;\n", "    return errno == EAGAIN ? -EAGAIN : 0;\n",
    ),), ())),
    ("kill", "create", "SegmentCorrupt", "named_at_once"),
    ("kill", "save", "SegmentNotFound", "removed_before_it_is_replaced"),
    ("fail", "attach", "descriptors: ", "keeps_descriptors"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("how", "scenario", "says", "broken"), BROKEN, ids=[getattr(broken, "name", broken) for *_, broken in BROKEN]
)
def test_a_core_that_breaks_a_rule_is_found_out(
    how: str, scenario: str, says: str, broken: mutants.Mutant | str, play: Play, tmp_path: Path, folder: Path
):
    """Or segments that break one, which crash_points.py knows by its name."""
    if isinstance(broken, str):
        done = play(how, scenario, folder, broken)
    else:
        core = build_crash_points(mutants.mutate(broken, tmp_path), tmp_path)
        done = python(PROGRAM, core, how, scenario, folder)
    assert done.returncode != 0 and says in done.stderr
