"""Copies fields of the rows of given tickets, without stacks or returns."""

from __future__ import annotations

from .jit import copy_bytes, jit, prefetch

__all__ = ["gather"]

# Columns of `fields`
BASE, STRIDE, SIZE, OUT = range(4)
AHEAD = 16  # rows between the prefetch and the copy


@jit
def _prefetch_row(body, fields, row):
    for f in range(fields.shape[0]):
        prefetch(body.ctypes.data + fields[f, BASE] + row * fields[f, STRIDE])


@jit
def gather(body, fields, capacity, tickets, out):
    """Copies each field of the rows of `tickets`, int64 [n], in their order.

    Args:
        body: uint8, the segment's body, which holds `capacity` rows of each field.
        fields: int64 [n, 4]: base, row stride, size, and offset in `out` of the first ticket's value.
        out: uint8.
    """
    count = len(tickets)
    for i in range(min(AHEAD, count)):
        _prefetch_row(body, fields, tickets[i] % capacity)
    for i in range(count):
        if i + AHEAD < count:
            _prefetch_row(body, fields, tickets[i + AHEAD] % capacity)
        row = tickets[i] % capacity
        for f in range(fields.shape[0]):
            size = fields[f, SIZE]
            to = out.ctypes.data + fields[f, OUT] + i * size
            copy_bytes(to, body.ctypes.data + fields[f, BASE] + row * fields[f, STRIDE], size)
