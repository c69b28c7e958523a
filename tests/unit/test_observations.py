"""Both forms of an observation, one array or several by name, are read, written and mapped alike."""

from __future__ import annotations

import numpy as np
import pytest

from marlcore.observations import ALONE, by_name, each, in_form, put_rows, rows_at


def plain(values):
    return each(np.ndarray.tolist, values)


@pytest.mark.parametrize("index", [slice(1, 3), np.array([1, 2]), np.array([False, True, True, False])], ids=str)
def test_arrays_and_dicts_of_arrays_are_indexed_alike(index):
    array = np.arange(4.0)
    named = {"a": np.arange(4.0), "b": np.arange(8).reshape(4, 2)}
    assert plain(rows_at(array, index)) == [1, 2]
    assert plain(rows_at(named, index)) == {"a": [1, 2], "b": [[2, 3], [4, 5]]}
    put_rows(array, index, np.zeros(2))
    put_rows(named, index, {"a": np.zeros(2), "b": np.zeros((2, 2))})
    assert plain(array) == plain(named)["a"] == [0, 0, 0, 3]
    assert plain(named)["b"] == [[0, 1], [0, 0], [0, 0], [6, 7]]


@pytest.mark.parametrize(
    "values", [np.arange(3), {"a": np.arange(3)}, {ALONE: np.arange(3)}], ids=["array", "a", ALONE]
)
def test_parts_by_name_return_to_their_form(values):
    parts = by_name(values)
    assert list(parts) == (list(values) if isinstance(values, dict) else [ALONE])
    assert plain(in_form(parts, values)) == plain(values)
    assert plain(each(np.add, values, values)) == plain(each(lambda part: 2 * part, values))
