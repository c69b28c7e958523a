"""Observations as networks take them: a tensor, or a dict of tensors by the names of their parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def each(function: Callable[..., Any], values: Any, *others: Any) -> Any:
    """The function of tensors, or of the tensors of each name."""
    if isinstance(values, torch.Tensor):
        return function(values, *others)
    return {name: function(part, *(other[name] for other in others)) for name, part in values.items()}


def rows_in(obs: Any) -> int:
    return len(obs if isinstance(obs, torch.Tensor) else next(iter(obs.values())))
