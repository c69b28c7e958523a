"""Machines, tokens and versions that are refused: one line each, before a run begins, and nothing is left."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import MARK, RayNodes, marked
from whole_clusters import BEGINNING, Drive, leaves_nothing

from marlcore import __version__
from marlcore.kernels import jit

pytestmark = pytest.mark.long

RIGHT, WRONG = "ab" * 32, "cd" * 32
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": RIGHT}
OTHER_RAY = "import ray; ray.__version__ = '9.9'"
REFUSED = """
from victims import fork, reap

def refused(env, code):  # in a process of its own, since Ray reads its variables once
    os.environ.update(env)
    exec(code)
    said = refusal(lambda: mc.train(CARTPOLE, "dqn", configured(sys.argv[2], 500, nodes=1), progress=False))
    print(json.dumps([said, os.path.exists(sys.argv[2])]), flush=True)

for case in json.loads(sys.argv[3]):
    assert reap(fork(refused, *case)) == 0
"""


def patched(folder: Path, code: str) -> str:
    """A PYTHONPATH with which every program begins with this code."""
    (folder / "sitecustomize.py").write_text(code)
    return os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    """A head, and a node with another version of marlcore; both demand a token."""
    other = patched(tmp_path_factory.mktemp("other"), "import marlcore; marlcore.__version__ = '9.9'")
    with RayNodes(1, **TOKEN) as nodes:
        nodes.add(PYTHONPATH=other)
        yield nodes


AT = "cluster.address: expected a Ray cluster at"
ADVICE = "unless ~/.ray/auth_token holds the cluster's token"
REFUSALS: list[tuple[dict[str, str], str, list[str]]] = [
    ({}, "", [f"cluster: expected marlcore {__version__} on ", "got 9.9"]),  # the right token reaches the node
    ({"RAY_AUTH_TOKEN": WRONG}, "", [AT, "InvalidAuthToken: Authentication token is missing", ADVICE]),
    ({"RAY_AUTH_TOKEN": ""}, "", [AT, "no authentication token was found", ADVICE]),
    ({"RAY_AUTH_MODE": "disabled"}, "", [AT, "InvalidAuthToken", ADVICE]),
    ({}, OTHER_RAY, [AT, "Version mismatch: The cluster was started with: Ray: ", "Ray: 9.9"]),
]


def test_a_run_is_refused(guarded: RayNodes, program: Callable[..., Any], tmp_path: Path) -> None:
    homeless = {"HOME": str(tmp_path), "NUMBA_CACHE_DIR": str(jit.cache_directory().parents[2])}  # with kernels
    cases = json.dumps([({**TOKEN, **homeless, **env}, code) for env, code, _ in REFUSALS])
    driver = program(
        BEGINNING, "from victims import fork, reap", REFUSED, args=[guarded.address, tmp_path / "run", cases]
    )
    for line, (*_, says) in zip(driver.finish().splitlines(), REFUSALS, strict=True):
        error, has_directory = json.loads(line)
        assert "\n" not in error and re.fullmatch(".*".join(["", *map(re.escape, says), ""]), error), error
        assert not has_directory
    leaves_nothing(guarded)


def test_a_node_of_another_ray_does_not_join(guarded: RayNodes, tmp_path: Path) -> None:
    """Ray itself refuses it, in the words that the page on deployment quotes."""
    mark = f"{MARK}={tmp_path}".encode()
    env = {**os.environ, **TOKEN, "PYTHONPATH": patched(tmp_path, OTHER_RAY), MARK: str(tmp_path)}
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={guarded.address}"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode and "Version mismatch: The cluster was started with" in done.stdout + done.stderr
    assert not marked(mark)


CONNECTED = """
from marlcore.cluster.nodes import RayCluster, ray_cluster, remains

def connected(env_fn=CARTPOLE, **settings):
    return RayCluster(mc.ClusterConfig(**{"address": ADDRESS, **settings}), env_fn, "the game")

def broken_env():
    raise OSError("no such\\ngame")
"""
UNFIT = """
sys.path.insert(0, sys.argv[3])
import only_here
sys.path.pop(0)
print(refusal(lambda: connected(nodes=3)))
print(refusal(lambda: connected(actors_per_node=9)))
print(refusal(lambda: connected(resources={"highmem": 2})))
print(refusal(lambda: connected(address="127.0.0.1:1")))
print(refusal(lambda: connected(address="a" * 70 + ":6379")))
print(refusal(lambda: connected(broken_env)))
print(refusal(lambda: connected(only_here.make)))
ray_cluster.__version__ = "9.9"
print(refusal(connected))
"""
SAYS = (
    "expected 3 other machines with CPU 1, got 2", "has 2 of 9 CPU", "has 0 of 2 highmem",
    "cluster.address: expected a Ray cluster at '1", "cluster.address: expected a Ray cluster at 'aaaa",
    "OSError: no such game", "No module named 'only_here'", "cluster: expected marlcore 9.9 on",
)  # fmt: skip


def test_a_cluster_that_does_not_fit_is_refused_in_one_line(drive: Drive) -> None:
    (drive.folder / "only_here.py").write_text("def make(): ...")
    lines = drive(CONNECTED, UNFIT, args=[drive.folder]).finish().splitlines()
    assert len(lines) == len(SAYS) and all(says in line for says, line in zip(SAYS, lines, strict=True)), lines


LOSES = """
handlers = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
with connected(nodes=2) as made:
    assert handlers == [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
    assert len({each.machine.id for each in made.agents}) == 2 and not list(made.free(made.acting))
    lost = made.agents[0]
    os.kill(lost.found["pid"], signal.SIGSTOP)  # it does not even die when Ray asks it to
    made.discard(lost)
    assert [lost.machine.id] == [machine.id for machine in made.free(made.acting)]
    until(lambda: remains.began(lost.found["pid"]) != lost.found["began"])
"""


def test_a_connection_keeps_handlers_and_kills_a_lost_agent(drive: Drive) -> None:
    drive(CONNECTED, LOSES).finish()
