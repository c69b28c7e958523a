"""Victims that die at each point of a scenario in turn, or whose system calls fail, and those who go on after them.

    python tests/support/crash_points.py CORE kill|fail SCENARIO FOLDER [SABOTAGE]

runs a scenario in a forked victim with a core that counts points (csrc/test/crash_points.h): once for each point, until
it comes to its end. After each victim the survivor, attached all along, reads; a successor writes on; nothing is left.
It reports, of "kill", the points of each kind, of "fail" how often each error of each system call led to what.
Scenarios of a replay are in replay_scenarios.py.
"""

import gc
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from core import report
from victims import Points

points = Points(sys.argv[1])  # before anything loads marlcore's own core

from filled import last_of, publish_next, rows, torn_weights, tree  # noqa: E402
from mapped import Mapped  # noqa: E402
from relayed import AGE, BOUNDARY, heads, raw  # noqa: E402
from replay_scenarios import BEFORE, OF_REPLAYS, SMALL, Add, Draw  # noqa: E402
from seams import replace  # noqa: E402

from marlcore import ParameterStore, ReplayBuffer  # noqa: E402
from marlcore.cluster import Bookings, DirectLink, Ingest, Relay  # noqa: E402
from marlcore.memory import Event, File, header, replace_file, survey  # noqa: E402


class Publish:
    """A learner publishes weights, all of which are the version's number."""

    def __init__(self, folder: Path) -> None:
        self.store = ParameterStore.create(tree(), extras={"version": ()}, name="crash")
        self.local = tree()
        self.subscriber = self.store.subscriber(self.local)
        for _ in range(3):
            self.publish()
        assert self.pulled() == 3
        Event(Mapped(self.store).body).prepare(1)

    def publish(self) -> None:
        weights = tree()
        with self.store.publisher(weights) as publisher:
            publish_next(publisher, weights)

    def prepare(self) -> str:
        self.own, self.weights = ParameterStore.attach(self.store.handle), tree()
        self.publisher = self.own.publisher(self.weights)
        return ""

    def act(self) -> None:
        publish_next(self.publisher, self.weights)

    def release(self) -> None:
        self.publisher.close()
        self.own.close()
        self.own = self.publisher = None

    def pulled(self) -> int:
        self.subscriber.pull()
        assert not torn_weights(self.local, self.subscriber), "torn weights"
        return self.subscriber.version

    def check(self, done: bool) -> None:
        version = self.pulled()
        assert version in ((4,) if done else (3, 4))
        self.publish()
        assert self.pulled() == version + 1

    def close(self) -> None:
        self.store.close()
        del self.store, self.subscriber


class Ingesting:
    """An ingest takes rows behind a gap in one lane, and some that it has already in another."""

    def __init__(self, folder: Path) -> None:
        self.node, self.home = (ReplayBuffer.create(SMALL, size, 2, name="crash") for size in (32, 200))
        self.mapped = Mapped(self.node)
        self.bookings, self.messages = Bookings.create(2, name="crash"), []
        self.send(BEFORE, BEFORE)
        self.send(0, 2)  # in a message that the victim and its successor take again
        self.repeated = self.messages[-1]
        self.add(20, 3)

    def add(self, *counts: int) -> None:
        for lane, count in enumerate(counts):
            with self.node.writer(lane) as writer:
                for _ in range(count):
                    ticket = self.mapped.committed(lane)
                    writer.add(**rows(SMALL, ticket), **(last_of(SMALL, ticket) if ticket % 5 == 4 else {}))

    def send(self, *counts: int) -> None:
        self.add(*counts)
        with Ingest(self.home, self.bookings, [range(2)]) as ingest:
            link = DirectLink(ingest)
            link.send = lambda message: self.messages.append(message.copy()) or DirectLink.send(link, message)
            with Relay(self.node, link) as relay:
                assert relay.drain(60.0)

    def prepare(self) -> str:
        home, node = (ReplayBuffer.attach(each.handle) for each in (self.home, self.node))
        self.own = [home, node, Bookings.attach(self.bookings.handle)]
        self.ingest = Ingest(home, self.own[-1], [range(2)])
        self.relay = Relay(node, DirectLink(self.ingest))
        return ""

    def act(self) -> None:
        assert self.ingest.put(self.repeated)
        assert self.relay.drain(60.0)

    def release(self) -> None:
        for each in (self.relay, self.ingest, *self.own):
            each.close()
        self.own = self.ingest = self.relay = None

    def check(self, done: bool) -> None:
        """The successor completes what is missing: each row once, the lost ones counted, with a seam behind them."""
        if done:
            self.look()
        for count in (0, 3):
            self.send(count, count)
            self.look()

    def look(self) -> None:
        lost = [self.bookings.load(lane).lost for lane in range(2)]
        sent = [self.mapped.committed(lane) for lane in range(2)]
        held = [len(raw(self.home, lane)) for lane in range(2)]
        assert [n + more for n, more in zip(held, lost, strict=True)] == sent and lost[0] and not lost[1], (held, lost)
        for lane in range(2):
            record, newest = raw(self.home, lane), raw(self.node, lane)[3:]  # a gap ends behind the oldest one held
            np.testing.assert_array_equal(record[-len(newest) :, 16:], newest[:, 16:])
            place = heads(self.home, lane)["place"]
            transitions = (place >> 24) & BOUNDARY == 0
            tickets = np.ascontiguousarray(record[transitions, 16:24]).view(np.int64)[:, 0]
            jumps = np.flatnonzero(np.diff(tickets) > 2) + 1
            ages = (place & AGE)[transitions]
            assert (ages[jumps] == 0).all() and (np.diff(tickets) > 0).all(), "torn or wrong: an order"

    def close(self) -> None:
        for each in (self.node, self.home, self.bookings):
            each.close()
        del self.node, self.home, self.bookings, self.mapped


SCENARIOS = {**OF_REPLAYS, "publish": Publish, "ingesting": Ingesting}


def named_at_once() -> None:
    """Breaks a rule: a file has its name before it is whole."""

    def open_named(target: Path, nbytes: int, name: Path | None = None) -> File:
        file = File(target)
        file.open(name or target, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        os.posix_fallocate(file.fd, 0, nbytes)
        return file

    replace("memory", open_nameless=open_named, give_name=lambda file, target: None)


def removed_before_it_is_replaced() -> None:
    """Breaks a rule: the earlier save is removed before the new one is in place."""
    from marlcore.replay import saving

    def remove_and_replace(target: Path, *what: Any) -> None:
        target.unlink(missing_ok=True)
        replace_file(target, *what)

    saving.replace_file = remove_and_replace


def keeps_descriptors() -> None:
    """Breaks a rule: reading a header leaks a descriptor."""
    read = header.Header.read
    header.Header.read = lambda fd, path: read(os.dup(fd), path)


SABOTAGE = {rule.__name__: rule for rule in (named_at_once, removed_before_it_is_replaced, keeps_descriptors)}


def use(folder: Path) -> None:
    """Has all segments there, where nobody else makes segments, or sweeps."""
    replace("memory", SHM_DIR=folder)
    replace("memory", sweep=partial(survey.survey_segments, folder, remove=True))


def warm() -> None:
    """Compiles or loads what drawing needs."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        use(Path(name))
        Add(survey.SHM_DIR).close()
        first = Draw(survey.SHM_DIR)
        first.prepare()
        first.act()
        first.own.close()
        first.close()
    gc.collect()
    gc.freeze()  # which need not be looked through again and again


def main() -> None:
    _, how, name, folder, *sabotage = sys.argv[1:]
    use(Path(folder))
    for broken in sabotage:
        SABOTAGE[broken]()
    report(points.attack_each(partial(SCENARIOS[name], Path(folder)), how == "kill"))


if __name__ == "__main__":
    warm()
    main()
