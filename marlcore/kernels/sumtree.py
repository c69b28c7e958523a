"""A sum tree with 16 children a node: it finds the leaf at a point of the total mass with a few cache misses.

Level 0 holds the leaves, each higher level one sum for every 16 nodes of the level below, and the last level the total.
Each sum is recomputed from its children, never updated by differences, so that rounding errors cannot grow. In a tree
of minima, the last level holds the least leaf.
"""

import numpy as np
from numpy.typing import NDArray

from .jit import inlined, jit, prefetch

FANOUT = 16
LINE_ITEMS = 8
AHEAD = 16  # nodes between the prefetch of children and their reads; of all nodes at once, processors drop prefetches
ZERO, ONE, TWO, THREE, FOUR, EIGHT = (np.uint64(n) for n in (0, 1, 2, 3, 4, 8))


def level_offsets(leaves: int) -> NDArray[np.int64]:
    """Returns where each level begins in the tree's float64 array, and the array's length as the last entry."""
    offsets, nodes = [0], leaves
    while True:
        padded = -(-nodes // FANOUT) * FANOUT if nodes > 1 else 1
        offsets.append(offsets[-1] + padded)
        if nodes == 1:
            return np.array(offsets, np.int64)
        nodes = padded // FANOUT


def empty_tree(offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns zeros for a tree, aligned so that the children of each node lie in as few cache lines as possible."""
    room = np.zeros(int(offsets[-1]) + LINE_ITEMS)
    first = -(room.ctypes.data // room.itemsize) % LINE_ITEMS
    return room[first : first + int(offsets[-1])]


@inlined
def prefetch_children(tree, offset, node):
    """Prefetches a node's children, two cache lines from `offset` on."""
    children = tree.ctypes.data + 8 * (offset + FANOUT * node)
    prefetch(children)
    prefetch(children + 64)


@inlined
def _joined(x, y, least):
    return min(x, y) if least else x + y


@inlined
def _of_children(tree, first, least):
    """Returns the sum or the minimum of 16 children, computed in four independent accumulators."""
    a, b, c, d = tree[first], tree[first + 1], tree[first + 2], tree[first + 3]
    for k in range(first + 4, first + FANOUT, 4):
        a = _joined(a, tree[k], least)
        b = _joined(b, tree[k + 1], least)
        c = _joined(c, tree[k + 2], least)
        d = _joined(d, tree[k + 3], least)
    return _joined(_joined(a, b, least), _joined(c, d, least), least)


@jit
def repair_range(tree, offsets, bottom, first, last, least=False):
    """Recomputes the sums, or minima, above the nodes [first, last) of level `bottom`."""
    for level in range(bottom + 1, len(offsets) - 1):
        first, last = first // FANOUT, (last + FANOUT - 1) // FANOUT
        for node in range(first, last):
            tree[offsets[level] + node] = _of_children(tree, offsets[level - 1] + FANOUT * node, least)


@jit
def repair(tree, offsets, leaves, count, least=False):
    """Recomputes the sums, or minima, above the leaves numbered in leaves[:count]; overwrites `leaves`."""
    for level in range(1, len(offsets) - 1):
        width = offsets[level + 1] - offsets[level]
        if width <= count:  # this level and all above are faster to recompute whole
            repair_range(tree, offsets, level - 1, 0, offsets[level] - offsets[level - 1], least)
            return
        for i in range(count):
            leaves[i] //= FANOUT
            prefetch(tree.ctypes.data + 8 * (offsets[level - 1] + FANOUT * leaves[i]))
            prefetch(tree.ctypes.data + 8 * (offsets[level - 1] + FANOUT * leaves[i]) + 64)
        for i in range(count):
            tree[offsets[level] + leaves[i]] = _of_children(tree, offsets[level - 1] + FANOUT * leaves[i], least)


@inlined
def _child_at(tree, first, target):
    """Finds without branches on which of 16 children a point falls; returns the child and the point's place in it."""
    a = (tree[first] + tree[first + ONE]) + (tree[first + TWO] + tree[first + THREE])
    second, third = first + FOUR, first + EIGHT
    b = a + ((tree[second] + tree[second + ONE]) + (tree[second + TWO] + tree[second + THREE]))
    c = b + ((tree[third] + tree[third + ONE]) + (tree[third + TWO] + tree[third + THREE]))
    quarter = np.uint64(target >= a) + np.uint64(target >= b) + np.uint64(target >= c)
    before = a if target >= a else 0.0
    before = b if target >= b else before
    before = c if target >= c else before
    at = first + FOUR * quarter
    x = before + tree[at]
    y = x + tree[at + ONE]
    z = y + tree[at + TWO]
    child = FOUR * quarter + np.uint64(target >= x) + np.uint64(target >= y) + np.uint64(target >= z)
    before = x if target >= x else before
    before = y if target >= y else before
    before = z if target >= z else before
    while child > ZERO and tree[first + child] <= 0.0:  # rounding put the point past the last mass
        child -= ONE
    return child, target - before


@inlined
def _walk(tree, first, width, targets, nodes, count):
    """Finds the node in which each of the ascending targets falls, in one pass over a level."""
    node, begin = 0, 0.0
    last = width - 1
    while last > 0 and tree[first + last] <= 0.0:
        last -= 1
    for i in range(count):
        while node < last and targets[i] >= begin + tree[first + node]:
            begin += tree[first + node]
            node += 1
        nodes[i] = node
        targets[i] -= begin


@jit
def find(tree, offsets, targets, leaves, count):
    """Finds the leaf of each target in targets[:count], ascending in [0, total); overwrites the targets."""
    level = len(offsets) - 2
    while level > 0 and offsets[level] - offsets[level - 1] <= 2 * count:
        level -= 1
    _walk(tree, offsets[level], offsets[level + 1] - offsets[level], targets, leaves, count)
    for below in range(level - 1, -1, -1):
        for i in range(min(AHEAD, count)):
            prefetch_children(tree, offsets[below], leaves[i])
        for i in range(count):
            if i + AHEAD < count:
                prefetch_children(tree, offsets[below], leaves[i + AHEAD])
            first = FANOUT * leaves[i]
            child, targets[i] = _child_at(tree, np.uint64(offsets[below] + first), targets[i])
            leaves[i] = first + np.int64(child)
