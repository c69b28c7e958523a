"""The seams: a function or constant of a room replaced wherever that room's files use it, and rules left out."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import marlcore.queue.queue  # noqa: F401
from marlcore.memory import NativeLanes
from marlcore.replay.rate_limiter import SampleGate


def holders(room: str, name: str) -> list[Any]:
    inside = [module for key, module in list(sys.modules.items()) if key.startswith(f"marlcore.{room}.")]
    modules = [module for module in inside if hasattr(module, name)]
    assert modules, f"nothing in marlcore.{room} is called {name}"
    return modules


def replace(room: str, **replacements: Any) -> None:
    """Replaces for good: only in a test's own process."""
    for name, value in replacements.items():
        for module in holders(room, name):
            setattr(module, name, value)


def patch(monkeypatch: Any, room: str, **replacements: Any) -> None:
    """Replaces until the test ends."""
    for name, value in replacements.items():
        for module in holders(room, name):
            monkeypatch.setattr(module, name, value)


def another_boot() -> dict[str, Any]:
    """What to replace in the room `memory` so that the machine has stopped, with every page on its disk."""
    return {"boot_id": partial(bytes, os.urandom(16))}


@contextmanager
def trusting() -> Iterator[None]:
    """The control of every validation: what samplers, readers and saves made meanwhile copy is whole to them."""
    with mock.patch.object(NativeLanes, "validator", lambda *arguments: lambda n: 0):
        yield


def without_gates() -> None:
    """The control of every wait for room: writers that this process opens from now on pass no gate."""
    none = SimpleNamespace(wait=None, wait_each=None)
    replace("queue", QueueGates=lambda *arguments: none)
    replace("replay", WriteGate=lambda *arguments: none)


@contextmanager
def undrawn() -> Iterator[None]:
    """Runs end without their pictures, which would take longer than most runs of tests."""
    with mock.patch("marlcore.run.run.plot_run"), mock.patch("marlcore.run.run.plot_payoff"):
        yield


@contextmanager
def without_limits() -> Iterator[None]:
    """Samplers made meanwhile draw as much as they like, whatever the replay's limiter says."""
    with mock.patch.object(SampleGate, "of", lambda *arguments: None):
        yield
