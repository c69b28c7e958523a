"""Copies fields of the rows with given tickets, without stacks or returns."""

from .gather import copy
from .jit import jit, prefetch

AHEAD = 16  # rows between the prefetch and the copy


@jit
def _prefetch_row(columns, row):
    for f in range(len(columns)):
        prefetch(columns[f].base + row * columns[f].stride)


@jit
def gather(columns, capacity, tickets, out):
    """Copies the fields of the rows with `tickets`, int64 [n], to the columns' offsets in `out`, uint8."""
    count = len(tickets)
    for i in range(min(AHEAD, count)):
        _prefetch_row(columns, tickets[i] % capacity)
    for i in range(count):
        if i + AHEAD < count:
            _prefetch_row(columns, tickets[i + AHEAD] % capacity)
        row = tickets[i] % capacity
        for f in range(len(columns)):
            column = columns[f]
            copy(out.ctypes.data + column.out + i * column.size, column.base + row * column.stride, column.size)
