"""The core and its tests on aarch64: compiled for it, and emulated where they run.

The emulator translates to this machine's memory order, which may be the stronger one: what runs here shows that the
programs are right on aarch64, and says nothing about fences. Those are the model checkers', in test_models.py.
"""

import re
import shutil
from pathlib import Path

import pytest
from core import CORE, CRASH_FLAGS, build, call_names, command_of, mutants, objects, run, sources

GCC = "aarch64-linux-gnu-gcc"
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64") or ""
POINTS = "test/crash_points.c"

MISSING = (
    "a compiler for aarch64 or its emulator is not installed "
    "(Debian: gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user-static)"
)
pytestmark = [pytest.mark.long, pytest.mark.skipif(not (shutil.which(GCC) and EMULATOR), reason=MISSING)]


def test_every_source_compiles_for_aarch64_without_a_warning():
    texts = sources(CORE) | {f"test/{source.name}": source.read_text() for source in (CORE / "test").glob("*.c")}
    objects([GCC, *CRASH_FLAGS], CORE, {POINTS: texts.pop(POINTS)})
    objects(command_of(["-static"], GCC), CORE, texts)


@pytest.mark.parametrize("name", ["test_core", "test_transitions", "test_dense"])
def test_the_tests_of_the_core_pass_on_aarch64(name: str, tmp_path: Path):
    done = run([EMULATOR, build(CORE, name, tmp_path, ["-static"], GCC)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == re.findall(r"TEST\((\w+)\)", (CORE / "test" / f"{name}.c").read_text())


def test_lapped_readers_accept_no_torn_row_on_aarch64(tmp_path: Path):
    stress = build(CORE, "stress_lane", tmp_path, ["-static"], GCC)
    for shape in ("--row 40 --capacity 64", "--row 40 --frame 567 --capacity 64 --append 3"):
        done = run([EMULATOR, stress, "--reads", "20000", "--readers", "2", *shape.split()])
        assert done.returncode == 0, done.stdout + done.stderr
        assert " torn 0 " in done.stdout and " accepted 0 " not in done.stdout, done.stdout


CALLS = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "check.h"
long mc_call(long number, const long *arguments);
int main(void) {
    char got[8] = "";
    int fd = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    CHECK(mc_call(SYS_getpid, (long[6]){0}) == getpid());
    CHECK(mc_call(SYS_pwrite64, (long[6]){fd, (long)"abcdefg", 7, 3}) == 7);
    CHECK(mc_call(SYS_pread64, (long[6]){fd, (long)got, 7, 3}) == 7 && !strcmp(got, "abcdefg"));
    CHECK(mc_call(SYS_mmap, (long[6]){0, 4096, 1, 1, fd, 1}) == -22);
    return 0;
}
"""


def test_crash_points_make_the_system_calls_of_aarch64(tmp_path: Path):
    """The emulator knows no seccomp: what traps the calls is compiled, what makes them runs."""
    points, program = CORE / POINTS, tmp_path / "calls"
    command = [GCC, *CRASH_FLAGS]
    built = objects(command, CORE, sources(CORE, POINTS), ["-include", "test/crash_points.h"])
    mutants.compile_with([*command, *built, "-o", str(tmp_path / "core.so")])
    program.with_suffix(".c").write_text(CALLS)
    tests = ["-std=gnu11", "-static", f"-I{CORE}", f"-I{points.parent}"]
    mutants.compile_with([GCC, *tests, str(program.with_suffix(".c")), str(points), "-o", str(program)])
    done = run([EMULATOR, program])
    assert done.returncode == 0, done.stderr
    assert {"openat", "fcntl", "mmap", "unlink", "rename", "linkat", "futex"} <= set(call_names(GCC).values())
