"""Hosts with a network between them that is late, loses frames, is slow or cut: rows arrive once, and runs go on.

python tests/long.py networks FOLDER

The long form prints the figures of docs/cluster.md. The hosts' clocks differ by days.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network import Network
from processes import until
from ray_hosts import RayHosts
from rows_between_hosts import LANES
from test_cluster_chaos import Driver, outlived
from whole_clusters import Drive, leaves_nothing, left_on

pytestmark = pytest.mark.long

CLOCKS = 0, 10**6, 10**5  # seconds by which the hosts' clocks are ahead
MBIT = 125_000  # bytes a second
CONDITIONS: dict[str, dict[str, float]] = {
    "none": {}, "100 ms": {"delay": 0.1}, "1 % loss": {"loss": 0.01}, "10 Mbit/s": {"rate": 10 * MBIT},
    "all three": {"delay": 0.1, "loss": 0.01, "rate": 10 * MBIT},
}  # fmt: skip
CUT_S = 2.0  # for which rows are cut off
STILL_S = 10.0  # more than a lease
GIVEN_UP_S = 45.0  # far more than Ray needs to give up a machine that it does not hear
ROWS = 10_000  # of each lane, around a cut
STEPS = 500  # of each node, and updates, under each condition

ROWS_DRIVER = "import sys, rows_between_hosts; rows_between_hosts.main(*sys.argv[1:])"


@pytest.fixture(scope="module")
def lasting_hosts() -> Iterator[RayHosts]:
    with RayHosts(3, CLOCKS) as hosts:
        yield hosts


@pytest.fixture
def hosts(lasting_hosts: RayHosts) -> Iterator[RayHosts]:
    yield lasting_hosts
    lasting_hosts.set_all()


class Rows:
    """The driver of rows_between_hosts.py, whose commands are this object's methods."""

    def __init__(self, program: Callable[..., Any], hosts: RayHosts, *args: str) -> None:
        self._driver = program(ROWS_DRIVER, args=[hosts.address, *args], within=hosts.within(0))
        self.sender()

    def __getattr__(self, command: str) -> Callable[..., Any]:
        def ask(*arguments: object) -> Any:
            self._driver.tell(" ".join(map(str, [command, *arguments])))
            line = self._driver.line()
            assert line, "the driver died"
            return json.loads(line)

        return ask

    def close(self) -> None:
        self._driver.finish()


ECHO = """
import socket, sys, threading

def answer(client):
    while data := client.recv(1 << 16):
        client.sendall(data)

server = socket.create_server(("", 5000))
print("ready", flush=True)
while True:
    threading.Thread(target=answer, args=server.accept()[:1], daemon=True).start()
"""
ASK = """
import socket, sys, time
client, n = socket.create_connection(("10.7.0.1", 5000)), int(sys.argv[1])
began = time.monotonic()
client.sendall(b"x" * n)
while n:
    n -= len(client.recv(1 << 16))
print(time.monotonic() - began)
"""


def test_wires_are_late_slow_and_cut_as_they_are_set() -> None:
    """A cut in one direction alone keeps a connection from being made; a frame is never faster than its wire."""
    with Network(2, CLOCKS[:2]) as network:
        server = subprocess.Popen([*network.within(0), sys.executable, "-S", "-c", ECHO], stdout=subprocess.PIPE)
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"

        def asked(size: int, **options: Any) -> float:
            command = [*network.within(1), sys.executable, "-S", "-c", ASK, str(size)]
            return float(subprocess.run(command, capture_output=True, check=True, text=True, **options).stdout)

        asked(1)
        network.set_all(delay=0.1)
        assert asked(1) >= 0.2
        network.set_all(rate=10 * MBIT)
        assert asked(500_000) >= 0.8 * 500_000 / (10 * MBIT)  # what is left of it waits in the wire
        network.set_all(loss=0.2)
        asked(50_000)
        network.set_all()
        for source, target in ((0, 1), (1, 0)):
            network.set(source, target, cut=True)
            with pytest.raises(subprocess.TimeoutExpired):
                asked(1, timeout=2.0)
            network.set(source, target)
        asked(1)
        clocks = [subprocess.check_output([*network.within(i), "cat", "/proc/uptime"]).split()[0] for i in range(2)]
        assert float(clocks[1]) - float(clocks[0]) > CLOCKS[1] - 60
        server.kill()
        server.communicate()


def test_rows_arrive_once_over_bad_networks(hosts: RayHosts, program: Callable[..., Any]) -> None:
    """Also where a direction is cut while the ingest dies. A sender that is fenced meanwhile delivers nothing more: it
    hears of nothing, while its rows could still come; its successor's rows do.
    """
    with closing(Rows(program, hosts)) as rows:
        for condition in CONDITIONS.values():
            hosts.set_all(**condition)
            rows.write(ROWS // 4)
            rows.await_all()
            assert rows.faults() == {}
        hosts.set_all()
        for source, target in ((0, 1), (1, 0)):
            cut_and_kill(hosts, rows, source, target)
            assert rows.faults() == {}
        for source, target in ((0, 1), (1, 0)):
            cut_and_fence(hosts, rows, source, target)
            assert rows.faults() == {}


def cut_and_kill(hosts: RayHosts, rows: Rows, source: int, target: int) -> None:
    rows.write(ROWS)
    hosts.set(source, target, cut=True)
    time.sleep(CUT_S)
    rows.kill()
    hosts.set(source, target)
    rows.await_all()


def cut_and_fence(hosts: RayHosts, rows: Rows, source: int, target: int) -> None:
    rows.write(10 * ROWS)  # more than arrive before it is fenced
    hosts.set(source, target, cut=True)
    time.sleep(CUT_S)
    had = rows.fence()
    hosts.set(source, target)
    until(lambda: "Fenced" in rows.error() or rows.arrived() > had)
    assert rows.arrived() == had
    rows.sender()
    rows.write(ROWS)
    until(lambda: rows.arrived() == had + ROWS * LANES)


def test_rows_arrive_twice_at_an_ingest_that_forgets(hosts: RayHosts, program: Callable[..., Any]) -> None:
    """The control of the test above: its check sees rows that are sent again and not known."""
    with closing(Rows(program, hosts, "forgets")) as rows:
        rows.write(100)
        rows.await_all()
        cut_and_kill(hosts, rows, 0, 1)
        assert "disordered" in rows.faults()


def strikes(hosts: RayHosts, run: Driver, whole: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    """Conditions of a run's network, under which both nodes must work, and faults that last until seats are lost.

    Only the `whole` has each condition alone, and a head that is away until Ray gives machines up: two minutes more.
    """

    def works(condition: dict[str, float]) -> None:
        hosts.set_all(**condition)
        before = run.progress()
        until(lambda: (np.subtract(run.progress(), before) > STEPS).all())

    def until_lost(seats: int, begin: Callable[[], None], end: Callable[[], None]) -> None:
        lost = run.lost()
        begin()
        until(lambda: run.lost() >= lost + seats)
        end()

    def given_up() -> None:
        hosts.set_all(0, cut=True)
        time.sleep(GIVEN_UP_S)
        hosts.set_all()
        for host in (1, 2):  # Ray there ends once it hears that it was given up; who keeps it alive starts it again
            until(lambda host=host: not hosts.has_ray(host))
            hosts.start(host)

    def signalled(host: int, signum: int) -> None:
        for pid in hosts.processes(host):
            os.kill(pid, signum)

    def head_stands_still() -> None:
        """To the head, its clock jumps."""
        signalled(0, signal.SIGSTOP)
        time.sleep(STILL_S)
        signalled(0, signal.SIGCONT)

    heal = hosts.set_all
    for name, condition in CONDITIONS.items() if whole else [("all three", CONDITIONS["all three"])]:
        yield name, partial(works, condition)
    heal()
    for source, target in ((0, 1), (1, 0)):
        cut = partial(hosts.set, source, target, cut=True)
        yield f"{source} to {target} cut", partial(until_lost, 1, cut, heal)
    yield "head cut off", partial(until_lost, 2, partial(hosts.set_all, 0, cut=True), heal)
    yield (
        "host 1 stands still",
        partial(until_lost, 1, partial(signalled, 1, signal.SIGSTOP), partial(signalled, 1, signal.SIGCONT)),
    )
    yield "head stands still", head_stands_still
    if whole:
        yield "head cut off until the machines are given up", given_up


def outlive(hosts: RayHosts, run_dir: Path, whole: bool) -> dict[str, Any]:
    with closing(Driver(hosts.address, run_dir, hosts.within(0))) as run:
        return outlived(run, strikes(hosts, run, whole))


def test_a_run_outlives_its_network(hosts: RayHosts, tmp_path: Path) -> None:
    """Agents that lose their leases while they are cut off are replaced; no row of theirs is there twice."""
    result = outlive(hosts, tmp_path / "run", whole=False)
    assert result["torn"] == result["twice"] == 0 and result["rows"] > 0
    leaves_nothing(hosts)


LEARNS = "told(mc.train(CARTPOLE, 'dqn', configured(sys.argv[2], int(sys.argv[3]), nodes=1), progress=False))"


def test_hosts_learn_over_a_bad_network(hosts: RayHosts, program: Callable[..., Any], tmp_path: Path) -> None:
    hosts.set_all(**CONDITIONS["all three"])
    result = Drive(hosts, program, tmp_path, {"within": hosts.within(0)}).result(LEARNS, args=[20_000])
    assert 20_000 <= result["steps"] < 20_050 and result["returns"]["agent_0"] > 60


def main(folder: str = "runs/networks") -> int:
    with RayHosts(3, CLOCKS) as hosts:
        result = outlive(hosts, Path(folder).absolute(), whole=True)
        until(lambda: not left_on(hosts)["processes"])
        left = left_on(hosts)
    print(json.dumps({**result, "left": left}, indent=1))
    return int(any(left.values()) or result["torn"] + result["twice"] > 0)
