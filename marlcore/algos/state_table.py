"""Lookup tables whose rows are found by state, in place of networks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import nn

from ..checks import brief, check_whole


class StateTable(nn.Module):
    """Rows of a parameter by state, for up to `most` states, which `add` enters.

    A state is a number, a text, bytes, None, or a tuple or frozenset of states. In an array or tensor [B, ...], each
    row is a state: a number, or the tuple of its numbers in order. Equal states have the same row in every process:
    a table that is part of a published model serves actors too. It holds a digest of 64 bits of each state, not the
    state.

    Row 0 stands for states that are not in the table; also for new ones, once it is full.

    Adam also moves rows whose states are not in the batch; torch.optim.SGD does not.

    Attributes:
        values: the parameter [most + 1, *shape], `initial` at first.
        digests: int64 [most + 1], by row.
        states: int64, how many it has.
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
        self._known: dict[Hashable, int] = {}  # the same of states, so that each is digested once

    def __len__(self) -> int:
        return int(self.states)

    def forward(self, states: Any) -> torch.Tensor:
        """The values [B, *shape] of B states; those of row 0 where the table has not got them."""
        return self.values[self.rows(states)]

    def rows(self, states: Any) -> torch.Tensor:
        """The rows of B states, int64 [B]. Raises TypeError: one is none."""
        self._read_digests()
        return self._rows_tensor([self._row(state) for state in _each(states)])

    @torch.no_grad()
    def add(self, states: Any) -> torch.Tensor:
        """Enters those of B states that are new, in place; returns the rows of all, int64 [B]."""
        self._read_digests()
        rows, before = [], len(self._row_of)
        for state in _each(states):
            row = self._row(state)
            if not row and len(self._row_of) < self.most:
                digest, row = _digest(state), len(self._row_of) + 1
                self.digests[row] = digest
                self._row_of[digest] = self._known[state] = row
            rows.append(row)
        if len(self._row_of) > before:
            self.states.fill_(len(self._row_of))
            self._read = self._present_digests().copy()
        return self._rows_tensor(rows)

    def _rows_tensor(self, rows: list[int]) -> torch.Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=self.values.device)

    def _row(self, state: Hashable) -> int:
        row = self._known.get(state, 0)
        if not row and (row := self._row_of.get(_digest(state), 0)):
            self._known[state] = row
        return row

    def _present_digests(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return self.digests[1 : len(self) + 1].numpy(force=True)

    def _read_digests(self) -> None:
        """Follows digests that were published or loaded into the buffer."""
        present, read = self._present_digests(), self._read
        if not np.array_equal(present[: len(read)], read):
            self._row_of, self._known, read = {}, {}, read[:0]
        if len(present) > len(read):
            new = present[len(read) :].tolist()
            self._row_of |= {digest: row for row, digest in enumerate(new, len(read) + 1)}
        if len(present) != len(self._read):
            self._read = present.copy()


def _each(states: Any) -> Iterable[Hashable]:
    if isinstance(states, (str, bytes, Mapping)):
        raise TypeError(f"states: expected an array or a sequence of states, got {brief(states)}")
    if isinstance(states, (np.ndarray, torch.Tensor)):
        numbers = states.tolist()
        return numbers if states.ndim == 1 else map(tuple, states.reshape(len(states), -1).tolist())
    return states  # type: ignore[no-any-return]


def _digest(state: Hashable) -> int:
    return int.from_bytes(blake2b(_text(state).encode(), digest_size=8).digest(), "little", signed=True)


def _text(state: Any) -> str:
    """A text that equal states share in every process, and no others."""
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
    raise TypeError(
        f"state: expected numbers, texts, bytes, None, and tuples or frozensets of these, got {brief(state)}"
    )
