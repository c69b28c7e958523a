"""Breaks a rule of a function by its source, for checks that must then fail."""

import inspect
import textwrap
from typing import Any

import pytest


def break_rule(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, rule: str, broken: str) -> None:
    """Replaces the text `rule`, which occurs once in the function `name` of a class or module, by `broken`."""
    function = inspect.unwrap(getattr(owner, name))
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(rule) == 1
    made: dict[str, Any] = {}
    exec(source.replace(rule, broken), function.__globals__, made)
    monkeypatch.setattr(owner, name, made[name])
