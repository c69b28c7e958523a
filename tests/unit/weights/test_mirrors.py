"""Stores of many slots, and mirrors, which hold some of a home store's rows: each version is whole or not held."""

import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import count, takewhile
from typing import Any

import numpy as np
import pytest
from filled import MODELS, fill, tree, value_of, words, words_of_row
from mapped import Mapped
from meanwhile import soon
from refused import check_refused, refused

from marlcore import ClosedError, LaneBusy, MarlcoreError, NotEnoughData, ParameterStore

EXTRAS = {"epsilon": ()}
SLOTS = 5


@pytest.fixture
def home() -> Iterator[ParameterStore]:
    with ParameterStore.create(tree(), extras=EXTRAS) as store:
        yield store


@pytest.fixture
def mirror(home: ParameterStore) -> Iterator[ParameterStore]:
    with ParameterStore.create_mirror(home.description, 3) as store:
        yield store


def row_of(home: ParameterStore) -> tuple[int, np.ndarray]:
    return home.copy_newest(np.copy)


@pytest.mark.parametrize("kind", MODELS)
def test_a_mirror_serves_the_homes_versions(kind: str) -> None:
    """The mirror never gets versions 2 and 4; each pull gives the weights that the home's publisher published."""
    if kind != "tree":
        pytest.importorskip("torch")
    model, local = MODELS[kind](), MODELS[kind]()
    with ParameterStore.create(model, extras=EXTRAS) as home, ParameterStore.create_mirror(home.description) as mirror:
        subscriber = mirror.subscriber(local)
        with home.publisher(model) as publisher, mirror.mirror_writer() as writer:
            assert mirror.version == 0 and not subscriber.pull()
            for version in range(1, 7):
                publisher.publish(**{"epsilon": version / 10} if fill(model, version) is model else {})
                if version in (2, 4):
                    continue
                assert writer.put(row_of(home)[1])
                assert mirror.version == version and subscriber.newest == version
                assert subscriber.pull() and not subscriber.pull()
                assert (subscriber.version, value_of(words(local))) == (version, version)
                assert subscriber.extras["epsilon"] == version / 10
                with subscriber.in_place() as view:
                    assert (view.version, view.extras["epsilon"], view.valid()) == (version, version / 10, True)


def test_versions_only_grow(home: ParameterStore, mirror: ParameterStore) -> None:
    model = tree()
    with home.publisher(model) as publisher, mirror.mirror_writer() as writer:
        rows = [row_of(home)[1] for _ in range(4) if publisher.publish(fill(model, 7), epsilon=0.0)]
        assert [writer.put(rows[i]) for i in (1, 0, 1, 3, 2, 3)] == [True, False, False, True, False, False]
        assert mirror.version == 4
    with mirror.mirror_writer() as successor:
        assert not successor.put(rows[3]) and mirror.version == 4


def test_held_versions_are_pulled_by_their_number(home: ParameterStore, mirror: ParameterStore) -> None:
    """The mirror has 3 slots; a version that never came, or was overwritten, is refused."""
    model, local = tree(), tree()
    subscriber = mirror.subscriber(local)
    with home.publisher(model) as publisher, mirror.mirror_writer() as writer:
        assert not subscriber.pull_version(1)
        for version in range(1, 12):
            publisher.publish(fill(model, version), epsilon=0.0)
            if version in (2, 3, 6, 7, 11):
                writer.put(row_of(home)[1])
        held = [version for version in range(1, 15) if subscriber.pull_version(version)]
        assert held == [6, 7, 11] and value_of(words(local)) == 11
        assert subscriber.pull_version(6) and (subscriber.version, value_of(words(local))) == (6, 6)


def test_a_home_that_continues_a_run_has_its_versions(mirror: ParameterStore) -> None:
    with ParameterStore.create(tree(), extras=EXTRAS, begins_after=41) as home, mirror.mirror_writer() as writer:
        with home.publisher(tree()) as publisher:
            publisher.publish(epsilon=0.0)
        assert row_of(home)[0] == 42 and writer.put(row_of(home)[1]) and mirror.version == 42


def test_a_mirror_of_a_mirror_serves_the_same(home: ParameterStore, mirror: ParameterStore) -> None:
    with home.publisher(tree()) as publisher:
        publisher.publish(epsilon=0.0)
        publisher.publish(epsilon=0.5)
    with ParameterStore.create_mirror(mirror.description) as second:
        with mirror.mirror_writer() as writer:
            writer.put(row_of(home)[1])
        with second.mirror_writer() as writer:
            writer.put(row_of(mirror)[1])
        subscriber = second.subscriber(tree())
        assert second.version == 2 and subscriber.pull() and subscriber.extras["epsilon"] == 0.5


def test_a_version_that_brings_many_wakes_who_waits(
    home: ParameterStore, mirror: ParameterStore, no_slices: None
) -> None:
    """One row moves a mirror from version 0 to 3."""
    with home.publisher(tree()) as publisher, mirror.mirror_writer() as writer:
        for _ in range(3):
            publisher.publish(epsilon=0.0)
        with soon(writer.put, row_of(home)[1]):
            assert mirror.wait(newer_than=2, timeout=600.0)
        assert not mirror.wait(newer_than=3, timeout=0.0)


def test_a_copy_that_the_publisher_overwrites_is_made_again(home: ParameterStore) -> None:
    model = tree()
    with home.publisher(model) as publisher:
        publisher.publish(fill(model, 1), epsilon=0.0)
        left = [2, 2]  # publications during each of two copies: as many as there are slots

        def copy(row: np.ndarray) -> np.ndarray:
            assert not row.flags.writeable
            half = row[: len(row) // 2].copy()
            for _ in range(left.pop() if left else 0):
                publisher.publish(fill(model, home.version + 1), epsilon=0.0)
            return np.concatenate([half, row[len(row) // 2 :]])

        version, row = home.copy_newest(copy)
        assert version == 5 and value_of(part.view(np.float32) for _, part in home.layout.parts(row)) == 5
        with pytest.raises(TimeoutError, match="was lapped: the publisher overwrites"):
            left.append(2)
            home.copy_newest(copy, timeout=0.0)


def test_a_mirror_has_one_writer_and_no_publisher(home: ParameterStore, mirror: ParameterStore) -> None:
    check_refused(lambda: mirror.publisher(tree()), MarlcoreError, "expected a store with a publisher, got a mirror")
    check_refused(home.mirror_writer, MarlcoreError, "expected a mirror, got a store with a publisher")
    check_refused(lambda: home.copy_newest(np.copy), NotEnoughData, "nothing was published yet")
    with mirror.mirror_writer() as writer:
        check_refused(mirror.mirror_writer, LaneBusy, "the store has a living publisher")
    with refused(ClosedError, "the mirror's writer was closed"):
        writer.put(np.zeros(mirror.layout.nbytes, np.uint8))


def test_what_is_no_row_is_refused(mirror: ParameterStore) -> None:
    nbytes = mirror.layout.nbytes
    with mirror.mirror_writer() as writer:
        for row in (b"\0" * nbytes, np.zeros(nbytes - 1, np.uint8), np.zeros(nbytes // 4, np.float32), None):
            says = f"row: expected uint8 ({nbytes},), got "
            check_refused(lambda row=row: writer.put(row), ValueError, says)
        check_refused(
            lambda: writer.put(np.zeros(nbytes, np.uint8)), ValueError, "row: version: expected an integer from 1 to "
        )
        assert mirror.version == 0


NO_STORE = "description: expected the description of a store, got "
BAD: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "one slot": (lambda about: ParameterStore.create_mirror(about, "snapshot"), "expected at least two slots for a"),
    "no mode": (lambda about: ParameterStore.create_mirror(about, "many"), "mode: expected snapshot, double_buffer,"),
    "empty": (lambda _: ParameterStore.create_mirror({}), NO_STORE + "{}"),
    "text": (lambda _: ParameterStore.create_mirror("store"), NO_STORE + "'store'"),
    "shape": (lambda about: ParameterStore.create_mirror(about | {"tensors": [["w", [-1], "bool"]]}), NO_STORE),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_argument_is_refused(home: ParameterStore, case: str) -> None:
    check_refused(lambda: BAD[case][0](home.description), ValueError, BAD[case][1])


@pytest.fixture
def store() -> Iterator[ParameterStore]:
    with ParameterStore.create(tree(), SLOTS, {"epsilon": ()}) as made:
        yield made


def publish(store: ParameterStore, versions: Iterable[int]) -> None:
    model = tree()
    with store.publisher(model) as publisher:
        for version in versions:
            assert publisher.publish(fill(model, version), epsilon=version / 10) == version


def held(subscriber: Any, local: Any, versions: range) -> list[int]:
    """Returns the versions that can be pulled; a refused pull changes nothing."""
    pulled = []
    for version in versions:
        before = value_of(words(local))
        if subscriber.pull_version(version):
            epsilon = subscriber.extras["epsilon"]
            assert (value_of(words(local)), subscriber.version, epsilon) == (version, version, version / 10)
            pulled.append(version)
        else:
            assert value_of(words(local)) == before
    return pulled


@pytest.mark.parametrize(("published", "expected"), [(3, [1, 2, 3]), (5, [1, 2, 3, 4, 5]), (12, [8, 9, 10, 11, 12])])
def test_the_last_versions_are_pulled_by_number(store: ParameterStore, published: int, expected: list[int]) -> None:
    local = tree()
    subscriber = store.subscriber(local)
    publish(store, range(1, published + 1))
    assert held(subscriber, local, range(1, 16)) == expected
    assert subscriber.pull() is (expected[-1] != subscriber.version)
    assert held(subscriber, local, range(15, 0, -1)) == expected[::-1], "an older one after a newer one"


def test_a_version_whose_slot_is_being_overwritten_is_not_held(store: ParameterStore) -> None:
    """A publisher killed in a publish leaves one more row reserved than committed."""
    local = tree()
    subscriber = store.subscriber(local)
    publish(store, range(1, 8))
    Mapped(store).counters()[1] += 1
    assert held(subscriber, local, range(1, 10)) == [4, 5, 6, 7]


def test_a_publishing_thread_never_tears_a_numbered_pull(store: ParameterStore) -> None:
    """It pulls the version that is overwritten next; the control reads that slot without validation."""
    local = tree()
    subscriber, enough = store.subscriber(local), threading.Event()
    thread = threading.Thread(target=publish, args=(store, takewhile(lambda _: not enough.is_set(), count(1))))
    thread.start()
    pulled = lost = wrong = 0
    try:
        while not (pulled > 100 and lost and wrong):
            version = max(1, store.version - SLOTS + 1)
            if subscriber.pull_version(version):
                assert (value_of(words(local)), subscriber.extras["epsilon"]) == (version % 4096, version / 10)
                pulled += 1
            else:
                lost += 1
            version = max(1, store.version - SLOTS + 1)
            wrong += value_of(words_of_row(store, (version - 1) % SLOTS)) != version % 4096
    finally:
        enough.set()
        thread.join()
