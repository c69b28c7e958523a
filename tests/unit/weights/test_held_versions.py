"""Stores of many slots: every version in a slot can be pulled by its number, whole or not at all."""

import threading
from collections.abc import Iterable, Iterator
from itertools import count, takewhile
from typing import Any

import pytest
from filled import fill, tree, value_of, words, words_of_row
from mapped import Mapped

from marlcore import ParameterStore

SLOTS = 5


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
