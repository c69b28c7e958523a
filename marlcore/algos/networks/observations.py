"""Observations as networks take them: a tensor, or a dict of tensors by the names of their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["each", "rows_in"]


def each(function: Callable[..., Any], values: Any, *others: Any) -> Any:
    """The function of tensors, or of the tensors of each name."""
    if isinstance(values, Mapping):
        return {name: function(part, *(other[name] for other in others)) for name, part in values.items()}
    return function(values, *others)


def rows_in(obs: Any) -> int:
    return len(next(iter(obs.values()))) if isinstance(obs, Mapping) else len(obs)
