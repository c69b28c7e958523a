"""Stores of many slots: every version that is held can be pulled, by its number, whole or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import count, takewhile
from typing import Any

import pytest
import torch
from mapped import Mapped
from refusals import refused
from torch import nn

from marlcore import ParameterStore

SLOTS = 5


def model_of(value: float) -> nn.Module:
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)])
    return fill(model, value)


def fill(model: nn.Module, value: float) -> nn.Module:
    for parameter in model.parameters():
        parameter.data.fill_(value)
    return model


def value_of(model: nn.Module) -> float:
    """The one value of all its words."""
    values = torch.cat([tensor.detach().flatten() for tensor in model.parameters()]).unique()
    assert len(values) == 1, "torn"
    return float(values[0])


@pytest.fixture
def store() -> Iterator[ParameterStore]:
    with ParameterStore.create(model_of(0), SLOTS, {"epsilon": ()}) as made:
        yield made


def publish(store: ParameterStore, versions: Iterable[int]) -> None:
    model = model_of(0)
    with store.publisher(model) as publisher:
        for version in versions:
            fill(model, version)
            assert publisher.publish(epsilon=version / 10) == version


def held(subscriber: Any, local: nn.Module, versions: range) -> list[int]:
    found = []
    for version in versions:
        before = value_of(local)
        if subscriber.pull_version(version):
            assert (value_of(local), subscriber.version, subscriber.extras["epsilon"]) == (
                version,
                version,
                version / 10,
            )
            found.append(version)
        else:
            assert value_of(local) == before
    return found


@pytest.mark.parametrize(("published", "expected"), [(3, [1, 2, 3]), (5, [1, 2, 3, 4, 5]), (12, [8, 9, 10, 11, 12])])
def test_the_last_versions_are_pulled_by_number(store: ParameterStore, published: int, expected: list[int]) -> None:
    local = model_of(0)
    subscriber = store.subscriber(local)
    publish(store, range(1, published + 1))
    assert held(subscriber, local, range(1, 16)) == expected
    assert subscriber.pull() is (expected[-1] != subscriber.version)
    assert held(subscriber, local, range(15, 0, -1)) == expected[::-1], "an older one after a newer one"


def test_a_version_whose_slot_is_being_overwritten_is_not_held(store: ParameterStore) -> None:
    """What a publisher leaves that was killed in a publish: one more reserved than committed."""
    local = model_of(0)
    subscriber = store.subscriber(local)
    publish(store, range(1, 8))
    Mapped(store).counters()[1] += 1
    assert held(subscriber, local, range(1, 10)) == [4, 5, 6, 7]


def test_a_store_that_continues_another_holds_its_own_versions() -> None:
    local = model_of(0)
    with ParameterStore.create(local, SLOTS, {"epsilon": ()}, begins_after=40) as store:
        subscriber = store.subscriber(local)
        publish(store, range(41, 44))
        assert held(subscriber, local, range(30, 50)) == [41, 42, 43]


def test_a_publishing_thread_never_tears_a_numbered_pull(store: ParameterStore) -> None:
    """The version that is overwritten next, until one was lost; the control: reading it without validation."""
    local = model_of(0)
    subscriber, enough = store.subscriber(local), threading.Event()
    thread = threading.Thread(target=publish, args=(store, takewhile(lambda _: not enough.is_set(), count(1))))
    thread.start()
    pulled = lost = wrong = 0
    try:
        while not (pulled > 100 and lost and wrong):
            version = max(1, store.version - SLOTS + 1)
            if subscriber.pull_version(version):
                assert (value_of(local), subscriber.extras["epsilon"]) == (version, version / 10)
                pulled += 1
            else:
                lost += 1
            version = max(1, store.version - SLOTS + 1)
            words = store.layout.views(store.slot_tensor((version - 1) % SLOTS).clone())
            wrong += any(bool((word != version).any()) for word in words)
    finally:
        enough.set()
        thread.join()


@pytest.mark.parametrize("mode", [0, -1, True, 2.0, "quadruple", None])
def test_a_number_of_slots_is_a_positive_integer(mode: Any) -> None:
    expected = "mode: expected snapshot, double_buffer, triple_buffer or a number of slots, got"
    with refused(ValueError, f"{expected} {mode!r}"):
        ParameterStore.create(model_of(0), mode)


def test_a_version_is_a_positive_integer(store: ParameterStore) -> None:
    with refused(ValueError, "version: expected an integer of at least 1, got 0"):
        store.subscriber(model_of(0)).pull_version(0)
