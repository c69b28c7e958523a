"""A tree of sums, 16 children a node: which leaf a point of the total mass falls on, in a few cache lines.

Level 0 holds the leaves, each level above it one sum for 16 nodes, the last level the total. A sum is always made
anew from its children, never by adding differences, so that rounding errors cannot grow.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .jit import jit, prefetch

__all__ = ["find", "level_offsets", "repair", "repair_range"]

FANOUT = 16


def level_offsets(leaves: int) -> NDArray[np.int64]:
    """Where each level begins in the tree's array, float64; the last entry is the array's length."""
    offsets, nodes = [0], leaves
    while True:
        padded = -(-nodes // FANOUT) * FANOUT if nodes > 1 else 1
        offsets.append(offsets[-1] + padded)
        if nodes == 1:
            return np.array(offsets, np.int64)
        nodes = padded // FANOUT


@jit
def _sum_children(tree, first):
    a, b, c, d = tree[first], tree[first + 1], tree[first + 2], tree[first + 3]
    for k in range(first + 4, first + FANOUT, 4):
        a += tree[k]
        b += tree[k + 1]
        c += tree[k + 2]
        d += tree[k + 3]
    return (a + b) + (c + d)


@jit
def repair_range(tree, offsets, bottom, first, last):
    """Makes the sums above the nodes [first, last) of level `bottom` anew."""
    for level in range(bottom + 1, len(offsets) - 1):
        first, last = first // FANOUT, (last + FANOUT - 1) // FANOUT
        for node in range(first, last):
            tree[offsets[level] + node] = _sum_children(tree, offsets[level - 1] + FANOUT * node)


@jit
def repair(tree, offsets, leaves, count):
    """Makes the sums above leaves[:count] anew; what is in `leaves` is lost."""
    for level in range(1, len(offsets) - 1):
        width = offsets[level + 1] - offsets[level]
        if width <= count:  # this level and all above are quicker made as a whole
            repair_range(tree, offsets, level - 1, 0, offsets[level] - offsets[level - 1])
            return
        for i in range(count):
            leaves[i] //= FANOUT
            prefetch(tree.ctypes.data + 8 * (offsets[level - 1] + FANOUT * leaves[i]))
            prefetch(tree.ctypes.data + 8 * (offsets[level - 1] + FANOUT * leaves[i]) + 64)
        for i in range(count):
            tree[offsets[level] + leaves[i]] = _sum_children(tree, offsets[level - 1] + FANOUT * leaves[i])


@jit
def find(tree, offsets, targets, leaves, count):
    """The leaf on which each of targets[:count] falls, points in [0, total); the targets are lost.

    A leaf without mass is never found while the total is positive.
    """
    for i in range(count):
        leaves[i] = 0
    for level in range(len(offsets) - 3, -1, -1):
        for i in range(count):
            children = tree.ctypes.data + 8 * (offsets[level] + FANOUT * leaves[i])
            prefetch(children)
            prefetch(children + 64)
        for i in range(count):
            first = offsets[level] + FANOUT * leaves[i]
            target, child, before, end = targets[i], 0, 0.0, 0.0
            for k in range(FANOUT - 1):  # without a branch, which would be mispredicted
                end += tree[first + k]
                behind = target >= end
                child = k + 1 if behind else child
                before = end if behind else before
            while child > 0 and tree[first + child] <= 0.0:  # rounding put the point behind the last mass
                child -= 1
            targets[i] = target - before
            leaves[i] = FANOUT * leaves[i] + child
