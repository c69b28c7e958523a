"""A watcher of shared memory can read it, and is refused every call that would change it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from refused import check_refused

import marlcore as mc
from marlcore.errors import MarlcoreError, TimedOut

SPEC = mc.TransitionSpec(mc.Field(), mc.Field())
WATCHED: dict[str, Callable[[Any], object]] = {
    "writer": lambda watched: watched(mc.ReplayBuffer).writer(),
    "vector writer": lambda watched: watched(mc.ReplayBuffer).vector_writer(),
    "a queue's writer": lambda watched: watched(mc.TrajectoryQueue).writer(),
    "reader": lambda watched: watched(mc.TrajectoryQueue).reader(4),
    "publisher": lambda watched: watched(mc.ParameterStore).publisher({"w": np.zeros(2)}),
}


@pytest.fixture
def watched() -> Iterator[Callable[[Any], Any]]:
    """A function that returns an object of a class that only watches."""
    with ExitStack() as stack:

        def watch(kind: Any) -> Any:
            shape = ({"w": np.zeros(2)},) if kind is mc.ParameterStore else (SPEC, 100)
            return stack.enter_context(kind.watch(stack.enter_context(kind.create(*shape)).handle))

        yield watch


@pytest.mark.parametrize("end", WATCHED)
def test_a_watcher_changes_nothing(watched: Callable[[Any], Any], end: str) -> None:
    check_refused(lambda: WATCHED[end](watched), MarlcoreError, "got one that only watches it")


def test_a_watcher_may_wait(watched: Callable[[Any], Any]) -> None:
    with pytest.raises(TimedOut):
        watched(mc.ReplayBuffer).sampler(4).sample(timeout=0.01)
    assert not watched(mc.ParameterStore).subscriber({"w": np.zeros(2)}).wait(0, timeout=0.01)
