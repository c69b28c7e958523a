"""A mirror follows its home store: the newest version only, never torn, over lost porters and killed mirrors."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from drivers import ForkedCode
from filled import CYCLE, fill, tree, value_of, words
from processes import until
from refused import check_refused, each_bad, refused

from marlcore import ParameterStore
from marlcore.cluster import Mirror, Porter
from marlcore.processes import ForkServer


@pytest.fixture
def home() -> Iterator[ParameterStore]:
    with ParameterStore.create(tree(), "triple_buffer") as store:
        yield store


class Link:
    """A porter in this process, which may be lost, and waits for `asked` before each fetch."""

    def __init__(self, porter: Porter) -> None:
        self.porter, self.lost, self.asked = porter, False, threading.Semaphore(10**6)

    def describe(self) -> dict[str, Any]:
        if self.lost:
            raise ConnectionError("the porter is gone")
        return self.porter.describe()

    def fetch(self, newer_than: int, timeout: float) -> Any:
        if self.lost:
            raise ConnectionError("the porter is gone")
        return self.porter.fetch(newer_than, 0.01) if self.asked.acquire(timeout=0.01) else None


def test_three_mirrors_share_each_copy(home: ParameterStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The porter copies a version once, although all mirrors want it."""
    monkeypatch.setattr("marlcore.cluster.mirror._ASK_S", 0.01)  # for which `close` waits
    porter, model = Porter(home), tree()
    with home.publisher(model) as publisher, Mirror(porter) as a, Mirror(porter) as b, Mirror(porter) as c:
        mirrors = (a, b, c)
        for version in range(1, 6):
            publisher.publish(fill(model, version))
            until(lambda version=version: [m.fetched for m in mirrors] == [version] * 3)
        assert (porter.copies, porter.requests) == (5, 15) and porter.nbytes == 5 * home.layout.nbytes
        for mirror in mirrors:
            local = tree()
            assert mirror.store.subscriber(local).pull() and value_of(words(local)) == 5
            assert (mirror.fetched, mirror.nbytes, mirror.lost) == (5, 5 * home.layout.nbytes, 0)


def test_a_mirror_fetches_the_newest_and_no_backlog(home: ParameterStore) -> None:
    link, model = Link(Porter(home)), tree()
    link.asked = threading.Semaphore(0)
    with home.publisher(model) as publisher, Mirror(link) as mirror:
        for version in range(1, 101):
            publisher.publish(fill(model, version))
        link.asked.release()
        until(lambda: mirror.fetched == 1)
        assert mirror.version == 100 and link.porter.copies == 1


@pytest.mark.long
def test_a_mirror_of_every_version_gets_them_in_order(home: ParameterStore) -> None:
    """A mirror that comes late gets them, too; two mirrors share the copy of a version that both want next."""
    porter, model = Porter(home, every=True), tree()
    with home.publisher(model) as publisher:
        for version in range(1, 6):
            publisher.publish(fill(model, version))
        with Mirror(porter, mode=3) as late, Mirror(Porter(home), mode=3) as newest:
            until(lambda: late.version == newest.version == 5)
            held = late.store.subscriber(local := tree())
            for version in (3, 4, 5):
                assert held.pull_version(version) and value_of(words(local)) == version
            assert not newest.store.subscriber(tree()).pull_version(4), "the control"
            with Mirror(porter, mode=3) as other:
                until(lambda: other.version == 5)
                copies = porter.copies
                publisher.publish(fill(model, 6))
                until(lambda: late.version == other.version == 6)
                assert porter.copies == copies + 1


def test_a_version_that_is_overwritten_meanwhile_is_passed_over(home: ParameterStore) -> None:
    model = tree()
    with home.publisher(model) as publisher:
        for version in range(1, 4):
            publisher.publish(fill(model, version))

        def copy(row: np.ndarray) -> float:
            if home.version == 3:
                publisher.publish(fill(model, 4))  # over the row of the first
            return value_of(part.view(np.float32) for _, part in home.layout.parts(row))

        assert home.copy_next(0, copy) == (2, 2.0)
        assert home.copy_next(4, copy) is None


@pytest.mark.long
def test_sync_seconds_is_the_least_time_between_fetches(home: ParameterStore, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return super().wait(0.0)

    monkeypatch.setattr("marlcore.cluster.mirror.Event", Event)
    with home.publisher(tree()) as publisher, Mirror(Porter(home), sync_seconds=7.5) as mirror:
        publisher.publish()
        until(lambda: mirror.fetched == 1)
        until(lambda: 7.5 in waits)
        assert waits.count(7.5) == 1


def test_a_lost_porter_is_found_again(home: ParameterStore) -> None:
    link, model = Link(Porter(home)), tree()
    with home.publisher(model) as publisher, Mirror(link) as mirror:
        publisher.publish(fill(model, 1))
        until(lambda: mirror.version == 1)
        link.lost = True
        until(lambda: mirror.lost > 0)
        publisher.publish(fill(model, 2))
        link.porter, link.lost = Porter(home), False  # a new one, which has copied nothing yet
        until(lambda: mirror.version == 2)
        mirror.check()


def test_a_home_that_cannot_be_reached_is_an_error(home: ParameterStore) -> None:
    link = Link(Porter(home))
    link.lost = True
    with refused(ConnectionError, "the porter is gone"):
        Mirror(link, timeout=0.0)


def test_a_porters_own_failure_is_told(home: ParameterStore) -> None:
    """A mirror does not retry after a failure that is not a lost connection."""
    link = Link(Porter(home))
    link.porter.fetch = lambda newer_than, timeout: np.zeros(3, np.uint8)
    with Mirror(link) as mirror:
        until(lambda: not mirror._thread.is_alive())
        check_refused(mirror.check, ValueError, f"row: expected uint8 ({home.layout.nbytes},), got ")


def test_a_bad_setting_is_refused(home: ParameterStore) -> None:
    make = partial(Mirror, Porter(home))
    for row in (
        *each_bad(make, "a finite number of at least 0", sync_seconds=[-1, None, True, float("inf")]),
        *each_bad(make, "seconds of at least 0", timeout=[-1.0]),
        *each_bad(make, "at least two slots for a mirror", mode=["snapshot"]),
    ):
        check_refused(*row)


MIRROR = """
import sys
from marlcore import ParameterStore
from marlcore.cluster import Porter
porter = Porter(ParameterStore.attach(sys.argv[1]))
target = ParameterStore.attach(sys.argv[2])
with target.mirror_writer() as writer:
    print("ready", flush=True)
    while True:
        row = porter.fetch(target.version, 1.0)
        if row is not None:
            writer.put(row)
"""


@pytest.mark.long
def test_killed_mirrors_tear_nothing_and_go_on(
    home: ParameterStore, fork_server: ForkServer, program: Callable[..., Any]
) -> None:
    """Each mirror is killed at any moment, mostly during a copy, while this process publishes and reads."""
    model, local = tree(), tree()
    with ParameterStore.create_mirror(home.description) as target, home.publisher(model) as publisher:
        subscriber, last, rng = target.subscriber(local), 0, np.random.default_rng(0)
        for _ in range(60):
            writer = program(
                MIRROR, args=[home.handle.path, target.handle.path], start=partial(ForkedCode, fork_server)
            )
            assert writer.line() == "ready"
            start, pulled = target.version, 0
            while pulled < 20 + rng.integers(20):
                publisher.publish(fill(model, home.version + 1))
                if subscriber.pull(timeout=60.0):
                    assert value_of(words(local)) == subscriber.version % CYCLE
                    assert subscriber.version > last
                    last, pulled = subscriber.version, pulled + 1
            assert last > start
            writer.kill()
        assert home.version >= target.version > 20 * 60


@pytest.mark.long
def test_a_mirror_that_moved_takes_no_row_of_the_earlier_home(home: ParameterStore) -> None:
    """A row that was on its way is dropped; the next home's first row of a higher version is taken."""
    early, late = threading.Event(), threading.Event()

    class Slow(Link):
        def fetch(self, newer_than: int, timeout: float) -> Any:
            row = super().fetch(newer_than, timeout)
            if row is not None and newer_than:
                early.set()
                late.wait()
            return row

    model = tree()
    with (
        home.publisher(model) as publisher,
        ParameterStore.create(tree(), begins_after=5) as store, store.publisher(model) as successor,
        Mirror(Slow(Porter(home)), description=home.description) as mirror,
    ):  # fmt: skip
        publisher.publish(fill(model, 1))
        until(lambda: mirror.version == 1)
        publisher.publish(fill(model, 2))
        early.wait()
        mirror.move(Porter(store))
        late.set()
        successor.publish(fill(model, 6))
        until(lambda: mirror.version == 6)
        mirror.check()
        assert mirror.fetched == 2  # versions 1 and 6
