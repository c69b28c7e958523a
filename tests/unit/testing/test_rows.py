"""Rows that say by themselves whether they are whole, in Python and in C."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
from core import CORE, mutants

from marlcore.testing.rows import filled, torn

SHARED = '#include "rows.h"\nvoid make(uint8_t *row, uint64_t size, uint64_t ticket) { fill(row, size, ticket); }\n'


def test_a_row_begins_with_its_name():
    rows = filled(6, 7, np.arange(4)[:, None], np.arange(-2, 3))
    assert rows.shape == (4, 5, 6) and rows.dtype == np.uint64
    assert (rows[2, 0, :3] == np.array([7, 2, 2**64 - 2], np.uint64)).all()
    assert not torn(rows, 3).any()


@pytest.mark.parametrize("name", [1, 3])
@pytest.mark.parametrize("word", range(8))
def test_a_row_with_any_word_changed_is_torn(name, word):
    rows = filled(8, *[np.arange(20)] * name)
    rows[5, word] += np.uint64(1)
    assert torn(rows, name).tolist() == [at == 5 for at in range(20)]


@pytest.mark.parametrize("cut", range(2, 16))
def test_a_row_of_two_tickets_is_torn(cut):
    """However far apart they are, and where the one ends in the other."""
    for apart in (1, 2, 96, 2**32, 2**63):
        old, new = filled(16, 5, 1), filled(16, 5, 1 + apart)
        assert torn(np.concatenate([new[:cut], old[cut:]]), 2)


def test_a_row_named_by_its_ticket_is_that_of_c(tmp_path: Path):
    (tmp_path / "rows.c").write_text(SHARED)
    built = tmp_path / "rows.so"
    mutants.compile_with(["gcc", "-shared", "-fPIC", f"-I{CORE / 'test'}", str(tmp_path / "rows.c"), "-o", str(built)])
    make = ctypes.CDLL(str(built)).make
    make.argtypes = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64
    made = np.zeros(9, np.uint64)
    for ticket in (0, 1, 2**40 + 3):
        make(made.ctypes.data, made.nbytes, ticket)
        assert (made == filled(9, ticket)).all()
