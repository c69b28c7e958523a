"""The seam through which a test replaces a function or constant of a room, wherever that room's files use it."""

from __future__ import annotations

import sys
from typing import Any


def holders(room: str, name: str) -> list[Any]:
    """The modules of marlcore.<room> that have this name."""
    inside = [module for key, module in list(sys.modules.items()) if key.startswith(f"marlcore.{room}.")]
    found = [module for module in inside if hasattr(module, name)]
    assert found, f"nothing in marlcore.{room} is called {name}"
    return found


def replace(room: str, **replacements: Any) -> None:
    """For good, in this process: for processes of a test's own."""
    for name, value in replacements.items():
        for module in holders(room, name):
            setattr(module, name, value)


def patch(monkeypatch: Any, room: str, **replacements: Any) -> None:
    """Until the test ends."""
    for name, value in replacements.items():
        for module in holders(room, name):
            monkeypatch.setattr(module, name, value)
