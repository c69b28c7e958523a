"""For your own algorithms: bonuses for rare states, by counts or random network distillation, and tables of states."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import nn

from ..checks import brief, check_whole
from ..declared import Number
from ..observations import ALONE
from .bases.trainers import independent_copy
from .networks.moments import RunningMoments

CLIP = 5.0  # of normalized inputs: Burda et al. 2018, section 2.4


class StateTable(nn.Module):
    """A table that assigns a row of a parameter to each of up to `most` states; `add` enters states.

    A state is a number, a text, bytes, None, or a tuple or frozenset of states. In an array or tensor [B, ...], each
    row is a state: a number, or the tuple of its numbers in order. The module holds a digest of 64 bits of each state.
    Digests are the same in every process, so actors can use a table that is part of a published model.

    All states that are not in the table share row 0; a full table takes no new states. Adam also moves rows whose
    states are not in the batch; torch.optim.SGD does not.

    Attributes:
        values: the parameter [most + 1, *shape], `initial` at first.
        digests: int64 [most + 1], the digest of each row's state.
        states: int64, the number of states entered.
    """

    digests: torch.Tensor
    states: torch.Tensor

    def __init__(
        self, most: int, shape: tuple[int, ...] = (), initial: float = 0.0, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        check_whole("StateTable most", most)
        self.most = int(most)
        self.values = nn.Parameter(torch.full((most + 1, *shape), initial, dtype=dtype))
        self.register_buffer("digests", torch.zeros(most + 1, dtype=torch.int64))
        self.register_buffer("states", torch.zeros((), dtype=torch.int64))
        self._read = np.zeros(0, np.int64)  # the digests in `_row_of`
        self._row_of: dict[int, int] = {}  # by digest
        self._digest_of: dict[Hashable, int] = {}  # of states that have a row, so that each is digested once

    def __len__(self) -> int:
        return int(self.states)

    def forward(self, states: Any) -> torch.Tensor:
        """Returns the values [B, *shape] of B states."""
        return self.values[self.rows(states)]

    def rows(self, states: Any) -> torch.Tensor:
        """Returns the rows of B states, int64 [B]. Raises TypeError if `states` is no batch of states."""
        return self._rows(states, enter=False)

    @torch.no_grad()
    def add(self, states: Any) -> torch.Tensor:
        """Enters the states that are new, in place; returns the rows of all B states, int64 [B]."""
        return self._rows(states, enter=True)

    def _rows(self, states: Any, enter: bool) -> torch.Tensor:
        present = self.digests[1 : len(self) + 1].numpy(force=True)  # a pull or a load may have changed them
        if not np.array_equal(present, self._read):
            self._row_of = {digest: row for row, digest in enumerate(present.tolist(), 1)}
            self._read = present.copy()
        states, row_of = [*_each(states)], self._row_of
        found = dict.fromkeys(states, 0)  # a batch has many states more than once
        for state in found:
            known = self._digest_of.get(state)
            digest = _digest(state) if known is None else known
            row = row_of.get(digest, 0)
            if enter and not row and len(row_of) < self.most:
                row = row_of[digest] = len(row_of) + 1
                self.digests[row] = digest
            if known is None and row:
                self._digest_of[state] = digest
            found[state] = row
        if len(row_of) > len(present):
            self.states.fill_(len(row_of))
            self._read = self.digests[1 : len(self) + 1].numpy(force=True).copy()
        return torch.tensor([found[state] for state in states], dtype=torch.int64, device=self.values.device)


def _each(states: Any) -> Iterable[Hashable]:
    if isinstance(states, (str, bytes, Mapping)):
        raise TypeError(f"states: expected an array or a sequence of states, got {brief(states)}")
    if isinstance(states, (np.ndarray, torch.Tensor)):
        flat = states.reshape(len(states), math.prod(states.shape[1:])).tolist()
        return states.tolist() if states.ndim == 1 else map(tuple, flat)
    return states  # type: ignore[no-any-return]


def _digest(state: Hashable) -> int:
    return int.from_bytes(blake2b(_text(state).encode(), digest_size=8).digest(), "little", signed=True)


def _text(state: Any) -> str:
    """Returns a text that is the same for equal states in every process, and different for different states."""
    if isinstance(state, np.generic):
        state = state.item()
    if isinstance(state, tuple):
        return f"({','.join(map(_text, state))})"
    if isinstance(state, frozenset):
        return f"{{{','.join(sorted(map(_text, state)))}}}"
    if isinstance(state, (int, float)):
        return str(int(state)) if state % 1 == 0 else repr(float(state))
    if state is None or isinstance(state, (str, bytes)):
        return repr(state)
    expected = "numbers, texts, bytes, None, and tuples or frozensets of these"
    raise TypeError(f"state: expected {expected}, got {brief(state)}")


class CountBonus(nn.Module):
    """Gives the bonus scale / sqrt(n + offset) for a state that was counted n times.

    Strehl & Littman 2008, "An analysis of model-based interval estimation for Markov decision processes" (MBIE-EB,
    whose offset is 0); Bellemare et al. 2016, "Unifying count-based exploration and intrinsic motivation"
    (arXiv:1606.01868). To count actions too, pass tuples of a state and an action as states.
    """

    def __init__(self, most: int, scale: float = 1.0, offset: float = 0.01) -> None:
        """Counts `most` states separately, all others together. Raises ValueError if a number is out of range."""
        super().__init__()
        self.scale = Number(0)("CountBonus scale", scale)
        self.offset = Number(above=0)("CountBonus offset", offset)
        self.table = StateTable(most, dtype=torch.float64).requires_grad_(False)

    def count(self, states: Any) -> None:
        """Counts B states, in place."""
        rows = self.table.add(states)
        self.table.values.index_add_(0, rows, torch.ones_like(rows, dtype=torch.float64))

    def counts(self, states: Any) -> torch.Tensor:
        """Returns how often each of B states was counted, float64 [B]."""
        counts: torch.Tensor = self.table(states)
        return counts

    def forward(self, states: Any) -> torch.Tensor:
        """Returns the bonuses of B states, float32 [B]."""
        bonus: torch.Tensor = self.scale * (self.counts(states) + self.offset).rsqrt()
        return bonus.float()


class RNDBonus(nn.Module):
    """Gives the bonus of random network distillation: the error of a network that learns a random network's outputs.

    Burda et al. 2018, "Exploration by random network distillation" (arXiv:1810.12894). Inputs are normalized by their
    running moments and clipped to [-5, 5] (section 2.4). A bonus is an error divided by the running standard deviation
    of errors; the paper divides by the standard deviation of the errors' discounted sums.
    """

    def __init__(self, shape: tuple[int, ...], network: Callable[[], nn.Module] | None = None) -> None:
        """Makes both networks by `network()`: they map float32 [B, *shape] to [B, n]; the default has two layers."""
        super().__init__()
        if not shape:
            raise ValueError("RNDBonus shape: expected at least one dimension, got ()")

        def default() -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.ReLU(), nn.Linear(64, 32))

        make = network or default
        self.predictor, self.target = make(), independent_copy(make())
        self.inputs, self.errors = RunningMoments({ALONE: shape}), RunningMoments({ALONE: ()})

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Returns the bonuses of B observations [B, *shape], float32 [B], without a gradient."""
        with torch.no_grad():
            return self._error(obs) / self.errors.deviation(ALONE).float()

    def loss(self, obs: torch.Tensor) -> torch.Tensor:
        """Returns the mean error, whose gradient trains `predictor`; adds observations [B, *shape] to the moments."""
        self.inputs.update(obs)
        error = self._error(obs)
        self.errors.update(error.detach())
        return error.mean()

    def _error(self, obs: torch.Tensor) -> torch.Tensor:
        inputs = self.inputs.normalized_part(ALONE, obs, CLIP)
        error: torch.Tensor = (self.predictor(inputs) - self.target(inputs)).square().mean(1)
        return error
