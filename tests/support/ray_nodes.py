"""A Ray cluster of several nodes on this machine, each with a directory of its own for segments.

The nodes run in other processes, as does each driver: a test starts one with the fixture `program` and gives it the
address. As a program: python ray_nodes.py FOLDER SEGMENTS CPUS, and a line for each change of its nodes.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import setup_worker
from processes import PATIENCE_S, until

from marlcore.closing import Closing
from marlcore.memory import survey_segments
from marlcore.processes import handlers_kept

MARK = "MARLCORE_TEST_NODES"  # in the environment of every process of such a cluster
OBJECT_STORE = 256 << 20  # bytes, of each node
VARIABLES = {
    "RAY_worker_niceness": "0",
    # Idle workers, of which each driver has as many started as the head has cores: nearly all would stay idle.
    "RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0",
}  # fmt: skip


class RayNodes(Closing):
    """The cluster; a context manager. Starts in some 10 seconds; at its end no process of it is left.

    Node i has the resource `node<i>`, so that a task can be sent to it.

    Attributes:
        address: for `ray.init`.
        raylets: each node's raylet's process; killing it loses the node.
        directories: each node's directory of segments.
    """

    def __init__(self, count: int = 2, cpus: int = 2, **env: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rn", dir="/tmp"))  # the path of a socket in it must be short
        self._segments = Path(tempfile.mkdtemp(prefix="nodes-", dir="/dev/shm"))
        self.raylets: list[int] = []
        self.directories: list[Path] = []
        with open(self._folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(self._folder), str(self._segments), str(cpus)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env={**os.environ, MARK: str(self._folder), "RAY_TMPDIR": str(self._folder), **VARIABLES, **env},
            )  # fmt: skip
        try:
            for _ in range(count):
                self.add()
        except BaseException:
            self.close()
            raise

    def add(self, **env: str) -> int:
        """Starts one more node, whose processes have this environment too; returns its number."""
        node = self._started(len(self.raylets), env)
        self.address: str = node["address"]
        self.raylets.append(node["raylet"])
        self.directories.append(Path(node["directory"]))
        return len(self.raylets) - 1

    def remove(self, node: int) -> None:
        """Ends Ray in order on the machine of a node; `restart` starts it again."""
        self._asked("remove", node)

    def restart(self, node: int) -> None:
        """Starts Ray again on the machine of a node whose raylet was killed, or that was removed."""
        self.raylets[node] = self._started(node, {})["raylet"]

    def settle(self) -> None:
        """Waits until Ray knows of each node that was killed, and removes what runs have left on the machines."""
        self._asked("settle", 0)
        for directory in self.directories:
            survey_segments(directory, remove=True)

    def _started(self, machine: int, env: dict[str, str]) -> dict[str, Any]:
        return self._asked("add", machine, env)

    def _asked(self, what: str, machine: int, env: dict[str, str] | None = None) -> dict[str, Any]:
        print(json.dumps([what, machine, env or {}]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, (self._folder / "log").read_text()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def segments(self, node: int) -> list[str]:
        return sorted(path.name for path in self.directories[node].glob("marlcore-*"))

    def processes(self) -> list[int]:
        return marked(f"{MARK}={self._folder}".encode())

    def close(self) -> None:
        end(self.processes())
        self._process.wait()
        until(lambda: not self.processes())
        self._process.stdin.close()
        self._process.stdout.close()
        shutil.rmtree(self._folder)
        shutil.rmtree(self._segments)


@contextmanager
def driver(address: str) -> Iterator[None]:
    """Connects this process with a cluster, and keeps its handlers of signals: Ray's make a fork outlive SIGTERM."""
    import ray

    with handlers_kept():
        ray.init(address=address, log_to_driver=False, logging_level="error")
    try:
        yield
    finally:
        ray.shutdown()


def marked(mark: bytes) -> list[int]:
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended
            if mark in (path / "environ").read_bytes().split(b"\0"):
                pids.append(int(path.name))
    return pids


def end(pids: list[int]) -> list[int]:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def main(folder: str, segments: str, cpus: str) -> None:
    from ray.cluster_utils import Cluster

    out, sys.stdout = sys.stdout, sys.stderr  # Ray prints
    cluster, nodes = Cluster(), {}
    (Path(folder) / "ray").mkdir()  # RAY_TMPDIR's, where the address is written before the first node has made it
    for line in sys.stdin:
        what, number, env = json.loads(line)
        if what == "settle":
            cluster.wait_for_nodes(timeout=PATIENCE_S)
        elif number in nodes:  # also what is left of one that was killed
            cluster.remove_node(nodes.pop(number))
        if what != "add":
            print("{}", file=out, flush=True)
            continue
        directory = Path(segments) / str(number)
        directory.mkdir(exist_ok=True)
        options: dict[str, Any] = {"include_dashboard": False} if number == 0 else {}
        node = cluster.add_node(
            num_cpus=int(cpus), num_gpus=0, object_store_memory=OBJECT_STORE, resources={f"node{number}": 1000},
            env_vars={"MARLCORE_SHM_DIR": str(directory), **env}, setup_worker_path=setup_worker.__file__, **options,
        )  # fmt: skip
        nodes[number] = node
        raylet = node.all_processes["raylet"][0].process.pid
        said = {"address": cluster.address, "raylet": raylet, "directory": str(directory)}
        print(json.dumps(said), file=out, flush=True)
    cluster.shutdown()  # the test was killed, so that nobody else removes what it had
    for left in (folder, segments):
        shutil.rmtree(left, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
