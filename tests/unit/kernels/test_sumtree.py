"""The tree of sums against plain NumPy: each sum is that of 16 children, and points fall as cumulative sums say."""

import math

import numpy as np
import pytest

from marlcore.kernels import sumtree

FANOUT = 16
SIZES = [1, 2, 16, 17, 255, 257, 4096, 4097, 20_000]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def planted(masses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns a tree with every sum made, and its offsets."""
    offsets = sumtree.level_offsets(len(masses))
    tree = np.zeros(offsets[-1])
    tree[: len(masses)] = masses
    sumtree.repair_range(tree, offsets, 0, 0, len(masses))
    return tree, offsets


def found(tree: np.ndarray, offsets: np.ndarray, points: np.ndarray) -> np.ndarray:
    leaves = np.full(len(points), -1)
    sumtree.find(tree, offsets, points.astype(float), leaves, len(points))
    return leaves


def sparse(rng: np.random.Generator, size: int) -> np.ndarray:
    """Returns small integers, whose sums are exact in any order; about half of them are 0, and at least one is not."""
    masses = rng.integers(1, 9, size) * (rng.random(size) < 0.5)
    masses[rng.integers(size)] = 5
    return masses.astype(float)


def test_each_node_of_a_level_has_16_below():
    powers = [FANOUT**k + d for k in range(2, 7) for d in (-1, 0, 1)]
    for leaves in [*range(1, 5_001), *powers]:
        widths = np.diff(sumtree.level_offsets(leaves)).tolist()
        nodes = leaves
        for width in widths[:-1]:
            assert nodes > 1
            assert width == math.ceil(nodes / FANOUT) * FANOUT, f"{leaves} leaves"
            nodes = math.ceil(nodes / FANOUT)
        assert (nodes, widths[-1]) == (1, 1), f"{leaves} leaves"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [0, 1, 3, 40, 1000])
def test_a_repaired_tree_equals_one_built_anew(size, count, rng):
    masses = rng.random(size)
    tree, offsets = planted(masses)
    leaves = rng.integers(0, size, count)
    tree[leaves] = masses[leaves] = rng.random(count) * (rng.random(count) < 0.8)
    # With duplicates NumPy's last assignment stands in both.
    masses[leaves] = tree[leaves]
    sumtree.repair(tree, offsets, leaves, count)
    assert (tree == planted(masses)[0]).all()


@pytest.mark.parametrize("size", SIZES)
def test_whole_points_fall_where_the_cumulative_sum_says(size, rng):
    masses = sparse(rng, size)
    tree, offsets = planted(masses)
    ends = np.cumsum(masses)
    assert tree[-1] == ends[-1]
    points = np.arange(ends[-1])
    expected = np.searchsorted(ends, points, side="right")
    assert (found(tree, offsets, points) == expected).all()
    assert (found(tree, offsets, points + 0.5) == expected).all()
    assert (found(tree, offsets, np.nextafter(points + 1, 0)) == expected).all()


@pytest.mark.parametrize("size", [1, 2, 16, 17, 256, 257, 5000])
@pytest.mark.parametrize("where", ["first", "last", "middle"])
def test_the_only_leaf_with_mass_is_always_found(size, where):
    only = {"first": 0, "last": size - 1, "middle": size // 2}[where]
    for mass in (5e-324, 1e-300, 0.1, 1.0, 1e300):
        masses = np.zeros(size)
        masses[only] = mass
        tree, offsets = planted(masses)
        points = np.array([0.0, 0.3 * mass, np.nextafter(mass, 0), mass, np.nextafter(mass, np.inf)])
        assert (found(tree, offsets, points) == only).all()


@pytest.mark.parametrize("size", SIZES)
def test_real_points_fall_right_but_for_rounding(size, rng):
    masses = 10.0 ** rng.uniform(-6, 6, size) * (rng.random(size) < 0.7)
    masses[size // 2] = 1.0
    tree, offsets = planted(masses)
    total = tree[-1]
    points = np.sort(rng.random(5000)) * total  # find takes targets in ascending order
    leaves, ends = found(tree, offsets, points), np.cumsum(masses)
    assert (masses[leaves] > 0).all()
    slack = 64 * np.spacing(total)
    assert (points < ends[leaves] + slack).all()
    assert (points >= ends[leaves] - masses[leaves] - slack).all()


@pytest.mark.parametrize("leaves", [1, 2, 17, 1000])
def test_an_empty_tree_begins_with_a_cache_line(leaves):
    offsets = sumtree.level_offsets(leaves)
    for _ in range(20):
        tree = sumtree.empty_tree(offsets)
        assert tree.ctypes.data % 64 == 0 and len(tree) == offsets[-1] and not tree.any()
