"""Instructions of the hot calls, which no other program changes, beside stored counts: `python -m bench instructions`.

A traced process makes each call once. Only marlcore's own instructions are counted: the C core, built by the flags it
ships with, and the sampling kernels, compiled for a generic processor. Counts belong to a compiler's version: without
stored ones they are reported, and compared with nothing. `--store` renews the stored counts.
"""

import argparse
import ctypes
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from core import CORE, mutants

import marlcore as mc

from ..core.transitions import VECTOR, spec_of
from ..figures import FOLDER, load, markdown, today, write
from ..machine import say

STORE = "renew the stored counts of these compilers"
# As csrc/ffi_build.py has them
FLAGS = "-std=c11 -O3 -fvisibility=hidden -ffp-contract=fast --param=avoid-fma-max-bits=0 -fno-math-errno"
GENERIC = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "PYTHONHASHSEED": "0"}
MOST_GROWTH = 0.02  # counts repeat exactly: it leaves room for a few instructions of a call of thousands

PTRACE_PEEKUSER, PTRACE_CONT, PTRACE_SINGLESTEP = 3, 7, 9
PROGRAM_COUNTER = 16 * 8  # of x86-64's struct user
PROGRAMS = "count_calls", "count_networks"  # of csrc/test

# PTRACE_TRACEME, and ADDR_NO_RANDOMIZE: loops that first reach an aligned address repeat exactly
TRACED = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.personality(0x0040000)
libc.ptrace(0, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""

ROWS = 64  # of a batch

Counts = dict[str, int]

_ptrace = ctypes.CDLL(None).ptrace  # request, process, address, data
_ptrace.restype = ctypes.c_long
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def reason_against() -> str:
    """Why nothing can be counted here; empty if it can."""
    if platform.machine() != "x86_64":
        return "the program counter is read where x86-64 has it"
    refused = "import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(0, 0, 0, 0) != 0)"
    return "no process may be traced here" if subprocess.call([sys.executable, "-S", "-c", refused]) else ""


def count_core(core: Path = CORE, programs: Sequence[str] = PROGRAMS) -> Counts:
    """Instructions of these programs' calls, by name, with the core of these sources."""
    counts: Counts = {}
    for name in programs:
        sources = mutants.sources_of(core, core / "test" / f"{name}.c")
        with tempfile.TemporaryDirectory() as folder:
            program = str(Path(folder) / name)
            subprocess.run(["gcc", *FLAGS.split(), f"-I{core}", *sources, "-o", program, "-pthread", "-lm"], check=True)
            counts |= _count([program], os.environ, program)
    return counts


def count_kernels() -> Counts:
    """Instructions of the sampling kernels, by the call that runs them."""
    program = "from bench.costs.instructions import make_calls; make_calls()"
    return _count([sys.executable, "-c", program], os.environ | GENERIC, "[anon]")


def compilers() -> dict[str, str]:
    """The compilers of the core and of the kernels, on which the counts depend."""
    gcc = subprocess.run(["gcc", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    machine = platform.machine()
    llvm = f"Numba {metadata.version('numba')}, llvmlite {metadata.version('llvmlite')}"
    return {"core": f"{gcc}, {machine}", "kernels": f"{llvm}, generic {machine}"}


def grown(counts: Mapping[str, int], stored: Mapping[str, int]) -> list[str]:
    """A line for each call that takes more instructions than it may, or that only one side has."""
    lines = [f"{name}: counted on one side alone" for name in sorted(counts.keys() ^ stored.keys())]
    for name in (name for name in counts if name in stored):
        if counts[name] > (1 + MOST_GROWTH) * stored[name]:
            more = counts[name] / stored[name] - 1
            lines.append(f"{name}: expected at most {stored[name]:,} instructions, got {counts[name]:,} ({more:+.1%})")
    return lines


def _count(command: Sequence[str], environment: Mapping[str, str], program: str) -> Counts:
    """Instructions by call of a process that traces itself, in the code of `program`, or in memory of no file."""
    command = [sys.executable, "-S", "-c", TRACED, *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        try:
            assert child.stdout is not None
            _wait_for(child.pid, signal.SIGTRAP)  # the exec
            _ptrace(PTRACE_CONT, child.pid, None, None)
            counts = {}
            for line in child.stdout:  # a call's name, before the call between two stops
                _wait_for(child.pid, signal.SIGSTOP)
                counts[line.strip()] = _step_to_the_next_stop(child.pid, program)
                _ptrace(PTRACE_CONT, child.pid, None, None)
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise RuntimeError(f"{command[4:]} ended with {child.returncode}")
    return counts


def _step_to_the_next_stop(pid: int, program: str) -> int:
    ours, count = _own_code(pid, program), 0
    while True:
        _ptrace(PTRACE_SINGLESTEP, pid, None, None)
        if _wait_for(pid, signal.SIGTRAP, signal.SIGSTOP) == signal.SIGSTOP:
            return count
        at = _ptrace(PTRACE_PEEKUSER, pid, PROGRAM_COUNTER, None) & (2**64 - 1)
        count += any(first <= at < end for first, end in ours)


def _own_code(pid: int, program: str) -> list[tuple[int, int]]:
    """Where the code of `program` is mapped; "[anon]" is memory of no file, which holds the kernels."""
    maps = psutil.Process(pid).memory_maps(grouped=False)
    spans = (each.addr.split("-") for each in maps if "x" in each.perms and each.path == program)
    return [(int(first, 16), int(end, 16)) for first, end in spans]


def _wait_for(pid: int, *expected: int) -> int:
    _, status = os.waitpid(pid, 0)
    assert os.WIFSTOPPED(status), f"the traced process ended: {status}"
    assert os.WSTOPSIG(status) in expected
    return os.WSTOPSIG(status)


def make_calls() -> None:
    """In the traced process: each call stands between two stops (SIGSTOP), and is named before."""
    priorities = np.random.default_rng(0).random(ROWS)
    many = np.zeros((ROWS, 4), np.float32), np.zeros(ROWS, np.int64), np.zeros(ROWS, np.float32)
    spec = spec_of(VECTOR)
    with mc.ReplayBuffer.create(spec, 4096) as replay, mc.TrajectoryQueue.create(spec, 4096) as queue:
        writer, sender, reader = replay.writer(), queue.writer(), queue.reader(batch_size=ROWS)
        for _ in range(100):
            writer.add_batch(*many)
        for _ in range(8):
            sender.add_batch(*many)
        preferring = replay.sampler(ROWS, seed=0, prioritized=mc.Prioritized())

        def prioritized() -> None:
            preferring.update_priorities(preferring.sample().index, priorities)

        calls: dict[str, Callable[[], object]] = {
            "sample 64": replay.sampler(ROWS, seed=0).sample,
            "sample 64, stack of 4, 3 steps": replay.sampler(ROWS, seed=0, stack=4, n_step=3).sample,
            "sample 8 windows of 8": replay.sampler(8, seed=0, sequence=mc.Sequence(8)).sample,
            "sample 64 by priority, and update": prioritized,
            "read 64 from a queue": reader.read,
        }
        for call in calls.values():
            for _ in range(3):
                call()
        for name, call in calls.items():
            sys.stdout.write(f"{name}\n")
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGSTOP)
            call()
            os.kill(os.getpid(), signal.SIGSTOP)


def main(options: argparse.Namespace) -> None:
    if reason_against():
        sys.exit(f"not counted: {reason_against()}")
    stored: dict[str, dict[str, Any]] = load("instructions")
    named, lines = compilers(), []
    for part, counts in (("core", count_core()), ("kernels", count_kernels())):
        before: dict[str, int] = stored.get(named[part], {}).get("counts", {})
        rows = ([name, before.get(name), count] for name, count in counts.items())
        say(markdown([f"instructions of the {part}: {named[part]}", "stored", "now"], rows))
        lines += grown(counts, before) if before else []
        stored[named[part]] = {"part": part, "date": today(), "counts": counts}
    if options.store:
        write(FOLDER / "instructions.json", stored)
    elif lines:
        sys.exit("\n".join(lines))
