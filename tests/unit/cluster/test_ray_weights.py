"""Weights over Ray, between nodes on this machine: mirrors get whole versions, even if porters are killed."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray_nodes import RayNodes

from marlcore.cluster import WeightsLink
from marlcore.errors import LinkLost

LARGE, SMALL = 128, 64  # widths: rows of the first go through Ray's object store, those of the second with the answer
DRIVER = """
import os, signal, sys
import numpy as np
import ray
from filled import CYCLE, fill, tree, value_of, words
from processes import until
from marlcore import ParameterStore
from marlcore.cluster import Mirror, PorterActor, WeightsLink

WIDTH = int(sys.argv[2])
ray.init(address=sys.argv[1], namespace="test", log_to_driver=False, logging_level="error")


@ray.remote(num_cpus=0)
class Node:
    '''A node's own processes: its mirror, and an actor that checks all that it pulls.'''

    def __init__(self, name):
        self.mirror = Mirror(WeightsLink(name), name="mirrored")
        self.model = tree(WIDTH)
        self.subscriber = self.mirror.store.subscriber(self.model)
        self.pulled = self.last = 0

    def place(self):
        return os.environ["MARLCORE_SHM_DIR"], self.mirror.store.handle.path

    def pull(self, newer_than):
        '''Pulls until a version is newer; the version, and how often the porter was lost.'''
        while not self.last > newer_than:
            self.mirror.check()
            if self.mirror.store.wait(self.last, 1.0) and self.subscriber.pull(timeout=60.0):
                version = self.subscriber.version
                assert value_of(words(self.model)) == version % CYCLE and version > self.last, "torn, or older"
                self.last = version
        return self.last, self.mirror.lost

    def close(self):
        self.mirror.close()


def nodes(name, count):
    return [Node.options(resources={f"node{i}": 1}).remote(name) for i in range(count)]


home = ParameterStore.create(tree(WIDTH), "triple_buffer", name="home")
model = tree(WIDTH)
publisher = home.publisher(model)


def publish(count=1):
    for _ in range(count):
        publisher.publish(fill(model, home.version + 1))
"""


@pytest.mark.long
def test_nodes_serve_the_homes_versions_and_share_a_copy(ray_nodes: RayNodes, program: Callable[..., Any]) -> None:
    """Each node has a directory of its own; of 1,000 versions, it fetches a few and ends with the last."""
    body = """
    porter = PorterActor.start(home.handle, "porter")
    followers = nodes("porter", 3)
    for version in (1, 2, 3):
        publish()
        pulled = ray.get([node.pull.remote(version - 1) for node in followers])
        assert pulled == [(version, 0)] * 3, pulled
    (row,) = ray.get(porter.fetch.remote(0, 60.0))
    assert isinstance(row, np.ndarray), "with the answer"
    stats = ray.get(porter.stats.remote())
    assert stats == {"version": 3, "copies": 3, "nbytes": 3 * home.layout.nbytes, "requests": 10}, stats
    publish(1000)
    pulled = ray.get([node.pull.remote(1002) for node in followers])
    assert [version for version, _ in pulled] == [1003] * 3, pulled
    copies = ray.get(porter.stats.remote())["copies"]
    assert copies < 500, copies
    places = ray.get([node.place.remote() for node in followers])
    print(*[directory for directory, path in places if path.startswith(directory)])
    ray.get([node.close.remote() for node in followers])
    """
    driver = program(DRIVER, body, args=[ray_nodes.address, SMALL])
    assert driver.line().split() == [str(directory) for directory in ray_nodes.directories]
    driver.finish()
    assert [ray_nodes.segments(i) for i in range(3)] == [[], [], []]


@pytest.mark.long
def test_a_killed_porter_is_started_again(ray_nodes: RayNodes, program: Callable[..., Any]) -> None:
    """Ray restarts the porter; mirrors find it again and get whole rows and growing versions. One that is gone is named
    to them.
    """
    body = """
    porter = PorterActor.start(home.handle, "porter")
    publish()
    (row,) = ray.get(porter.fetch.remote(0, 60.0))
    assert isinstance(row, ray.ObjectRef), "larger than what goes with the answer"
    followers = nodes("porter", 2)
    for kill in range(2):
        publish(3)
        ray.get([node.pull.remote(home.version - 1) for node in followers])
        ray.kill(porter, no_restart=False)
        publish(3)
        ray.get([node.pull.remote(home.version - 1) for node in followers])
    lost = [lost for _, lost in ray.get([node.pull.remote(0) for node in followers])]
    assert min(lost) >= 1, lost
    ray.get([node.close.remote() for node in followers])
    ray.kill(porter)
    try:
        while True:  # ray.kill does not wait until the process has ended
            Mirror(WeightsLink("porter"), timeout=0.0).close()
    except ConnectionError as error:
        print(error)
    ray.shutdown()
    try:
        WeightsLink("porter").describe()
    except ConnectionError as error:
        print(error)
    """
    driver = program(DRIVER, body, args=[ray_nodes.address, LARGE])
    assert driver.line().startswith("the porter porter cannot be reached: ")
    assert driver.line() == "WeightsLink: this process is not connected to Ray; call ray.init first"
    driver.finish()


class SlowRay:
    """A Ray whose rows need three waits to arrive; its porter has a newer row at each call, and counts the calls."""

    exceptions = SimpleNamespace(RayError=ConnectionError)

    def __init__(self) -> None:
        self.calls, self.waits = 0, dict[str, int]()

    def get_actor(self, name: str, namespace: str | None) -> Any:
        return SimpleNamespace(fetch=SimpleNamespace(remote=lambda newer_than, timeout: "answer"))

    def get(self, reference: str, timeout: float) -> Any:
        if reference == "answer":
            self.calls += 1
            return [f"row {self.calls}"]
        if self.waits.get(reference, 0) < 3:
            raise ConnectionError("the row did not come in time")
        return reference

    def wait(self, references: list[str], timeout: float) -> tuple[list[str], list[str]]:
        (reference,) = references
        self.waits[reference] = self.waits.get(reference, 0) + 1
        return (references, []) if self.waits[reference] == 3 else ([], references)


def test_a_row_that_is_slow_to_come_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer row, asked for instead, would begin its way anew: weights would never come over a slow network."""
    ray = SlowRay()
    monkeypatch.setattr("marlcore.cluster.ray_actors._ray", lambda _: ray)
    link = WeightsLink("porter")
    assert [link.fetch(0, 0.5) for _ in range(4)] == [None, None, "row 1", None]
    assert ray.calls == 2


def test_a_lost_connection_is_named_at_a_wait_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = SlowRay()
    monkeypatch.setattr("marlcore.cluster.ray_actors._ray", lambda _: ray)
    link = WeightsLink("porter")
    with monkeypatch.context() as patch:

        def lost(*_: Any, **__: Any) -> None:
            raise OSError("the raylet\nis gone")  # as Ray's own connection does

        patch.setattr(SlowRay, "wait", lost)
        with pytest.raises(LinkLost, match=r"^the porter porter cannot be reached: the raylet is gone$"):
            link.fetch(0, 0.5)
    assert [link.fetch(0, 0.5) for _ in range(3)] == [None, None, "row 2"]


class RayError(Exception):
    """An error of Ray's own, or one that wraps what an actor's method raised, its `cause`."""

    cause: Exception | None = None


class FailingRay(SlowRay):
    """A Ray that wraps `cause`, while there is one, in the answers of the porter."""

    exceptions = SimpleNamespace(RayError=RayError)
    cause: Exception | None = None

    def get(self, reference: str, timeout: float) -> Any:
        if self.cause is not None:
            wrapped = RayError("a traceback")
            wrapped.cause = self.cause
            raise wrapped
        return super().get(reference, timeout)


def test_a_porter_counts_as_unreachable_while_ray_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror then tries again. What the porter itself raises ends the mirror."""
    ray, link = FailingRay(), WeightsLink("porter")
    monkeypatch.setattr("marlcore.cluster.ray_actors._ray", lambda _: ray)
    ray.cause = RayError("the object store\nis full")
    with pytest.raises(LinkLost, match=r"^the porter porter cannot be reached: the object store is full$"):
        link.fetch(0, 0.5)
    ray.cause = ValueError("of the porter's own")
    with pytest.raises(ValueError, match="of the porter's own"):
        link.fetch(0, 0.5)
    ray.cause = None
    assert [link.fetch(0, 0.5) for _ in range(3)] == [None, None, "row 1"]
