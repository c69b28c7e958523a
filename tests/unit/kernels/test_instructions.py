"""The hot paths against committed bounds of machine instructions, which no other program on the machine changes.

A traced process makes each call once, instruction by instruction; those of the C core and of the compiled kernels are
counted, not those of Python, NumPy and the C library. What the compilers make for another kind of processor may differ.
"""

import ctypes
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

PTRACE_PEEKUSER, PTRACE_CONT, PTRACE_SINGLESTEP, PTRACE_DETACH = 3, 7, 9, 17
PROGRAM_COUNTER = 16 * 8  # of x86-64's struct user

CALLS = """if True:
    import ctypes, os, signal
    import numpy as np, torch
    import marlcore as mc

    spec = mc.TransitionSpec(mc.Field((4,)), mc.Field((), "int64"))
    obs, priorities = np.zeros(4, np.float32), np.random.default_rng(0).random(64)
    many = np.zeros((64, 4), np.float32), np.zeros(64, np.int64), np.zeros(64, np.float32)
    model = torch.nn.Linear(4, 4)
    with (mc.ReplayBuffer.create(spec, 4096) as replay, mc.ReplayBuffer.create(spec, 4096, lanes=64) as lanes,
          mc.ParameterStore.create(model) as store):
        publisher, writer, vector = store.publisher(model), replay.writer(), lanes.vector_writer()
        for _ in range(100):
            writer.add_batch(*many)
        uniform = replay.sampler(64, seed=0)
        preferring = replay.sampler(64, seed=0, prioritized=mc.Prioritized())
        stacked = replay.sampler(64, seed=0, stack=4, n_step=3)

        def prioritized():
            preferring.update_priorities(preferring.sample().index, priorities)

        calls = {"uniform 64": uniform.sample, "stack 4, 3 steps 64": stacked.sample, "prioritized 64": prioritized,
                 "add": lambda: writer.add(obs, 1, 0.5), "add_batch 64": lambda: writer.add_batch(*many),
                 "vector add 64": lambda: vector.add(*many), "publish": publisher.publish}
        for call in calls.values():
            for _ in range(3):
                call()
        if ctypes.CDLL(None).ptrace(0, 0, 0, 0):  # PTRACE_TRACEME
            raise SystemExit("ptrace")
        for name, call in calls.items():
            print(name, flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
            call()
            os.kill(os.getpid(), signal.SIGSTOP)
        print(flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
"""

# Counted on x86-64 with AVX-512; a tenth more is a failure
BOUNDS = {
    "uniform 64": 20_000,
    "stack 4, 3 steps 64": 71_500,
    "prioritized 64": 86_000,
    "add": 320,
    "add_batch 64": 4_500,
    "vector add 64": 23_400,
    "publish": 410,  # 48 of them for the version that each row holds, which mirrors need
}

_libc_ptrace = ctypes.CDLL(None, use_errno=True).ptrace
_libc_ptrace.restype = ctypes.c_long
_libc_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


@pytest.fixture(scope="module")
def counts() -> dict[str, int]:
    if platform.machine() != "x86_64":
        pytest.skip("NOT COUNTED: the program counter is read where x86-64 has it")
    with subprocess.Popen([sys.executable, "-c", CALLS], stdout=subprocess.PIPE, text=True) as child:
        try:
            found = dict(_counted(child))
        except BaseException:
            child.kill()
            raise
    if not found:
        pytest.skip("NOT COUNTED: no process may be traced here")
    assert child.returncode == 0
    return found


def _counted(child: subprocess.Popen[str]) -> Iterator[tuple[str, int]]:
    """(call, instructions) of each call between two stops of the child, which then goes on to its end."""
    assert child.stdout is not None
    for line in child.stdout:
        _wait_for(child.pid, signal.SIGSTOP)
        if not line.strip():
            _ptrace(PTRACE_DETACH, child.pid)
            return
        yield line.strip(), _step_to_the_next_stop(child.pid)
        _ptrace(PTRACE_CONT, child.pid)


def _step_to_the_next_stop(pid: int) -> int:
    ours, count = _own_code(pid), 0
    while True:
        _ptrace(PTRACE_SINGLESTEP, pid)
        if _wait_for(pid, signal.SIGTRAP, signal.SIGSTOP) == signal.SIGSTOP:
            return count
        at = _ptrace(PTRACE_PEEKUSER, pid, PROGRAM_COUNTER) & (2**64 - 1)
        count += any(first <= at < end for first, end in ours)


def _own_code(pid: int) -> list[tuple[int, int]]:
    """Where the C core is mapped, and memory of no file, which holds the kernels."""
    found = []
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            span, mode, _, _, _, *path = line.split()
            if "x" in mode and (not path or "/marlcore/_core." in path[0]):
                first, end = span.split("-")
                found.append((int(first, 16), int(end, 16)))
    return found


def _wait_for(pid: int, *expected: int) -> int:
    _, status = os.waitpid(pid, 0)
    assert os.WIFSTOPPED(status), f"the traced process ended: {status}"
    assert os.WSTOPSIG(status) in expected
    return os.WSTOPSIG(status)


def _ptrace(request: int, pid: int, address: int = 0) -> int:
    return int(_libc_ptrace(request, pid, address, None))


@pytest.mark.long
@pytest.mark.parametrize("call", BOUNDS)
def test_a_hot_path_takes_no_more_instructions_than_it_did(counts: dict[str, int], call: str) -> None:
    """A quarter of the bound says that they were counted at all."""
    assert BOUNDS[call] / 4 <= counts[call] <= 1.1 * BOUNDS[call]
