"""Runs that are killed while their fork server, which a thread started, is stopped: no process and no segment stays.

A stopped server cannot see its parent's death, so the kernel must end it. A child that an environment forked lives on,
and holds no segment. For more kills: python tests/long.py stopped_servers 100
"""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from processes import await_ends, children, family, segments_of, sweep, until

pytestmark = pytest.mark.long
RUN = """
    import os, sys, time
    import gymnasium
    import marlcore as mc

    class Forks(gymnasium.Wrapper):
        steps = 0

        def step(self, action):
            self.steps += 1
            if self.steps == 20 and os.fork() == 0:
                open(f"{sys.argv[2]}/{os.getpid()}", "w").close()
                time.sleep(600.0)
            return self.env.step(action)

    actor = mc.ActorConfig(processes=1, envs=1)
    config = mc.Config(total_steps=10**9, run_dir=sys.argv[1], actor=actor)
    mc.start(lambda: Forks(gymnasium.make("CartPole-v1")), "dqn", config).wait()
"""


def kill_a_parent(directory: Path) -> None:
    """Returns when every process and segment is gone; otherwise it waits until pytest's faulthandler_timeout."""
    forks = directory / "forks"
    forks.mkdir(parents=True)
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(RUN), directory / "run", forks])
    try:
        until(lambda: os.listdir(forks), lambda: parent.poll() is None)
        title = b"marlcore fork server"
        [server] = (pid for pid in children(parent.pid) if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(title))
        os.kill(server, signal.SIGSTOP)
        segments = segments_of(parent.pid)
        assert len(segments) >= 4
        others = [os.pidfd_open(pid) for pid in children(parent.pid) if pid != server]
        forked = set(map(int, os.listdir(forks)))
        below = {server, *family(server)}
        assert forked < below
        ended = [os.pidfd_open(pid) for pid in below - forked]
    finally:
        parent.kill()
        parent.wait()
    await_ends(ended)
    sweep()
    assert not any(path.exists() for path in segments)
    for pid in forked:
        os.kill(pid, signal.SIGKILL)  # what an environment forked has outlived all others
    await_ends(others)  # multiprocessing's tracker of resources lives as long as any process that knows it


def test_a_killed_parent_leaves_nothing(tmp_path: Path) -> None:
    kill_a_parent(tmp_path)


def main(kills: int = 100) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for number in range(kills):
            kill_a_parent(Path(directory) / str(number))
    print(f"{kills} runs killed beside a stopped server: no process and no segment is left")
