"""float16 in kernels is NumPy's float16, and their exponentials and logarithms are those of `math`."""

import math

import numpy as np
import pytest

from marlcore.kernels import jit as jit_kernels
from marlcore.planning.kernels.expectations import narrow, wide

FINITE = np.arange(0x7C00, dtype=np.uint16)  # the bits of all numbers of at least 0


@jit_kernels.jit
def _widen(stored, out):
    for i in range(len(stored)):
        out[i] = wide(stored[i])


@jit_kernels.jit
def _narrow(numbers, out):
    for i in range(len(numbers)):
        out[i] = narrow(out, numbers[i])


@jit_kernels.jit
def _exp_and_log(numbers, exponentials, logarithms):
    for i in range(len(numbers)):
        exponentials[i] = math.exp(-50.0 * numbers[i])
        logarithms[i] = math.log(50.0 * numbers[i])


def test_every_float16_is_widened_as_numpy_does() -> None:
    out = np.empty(len(FINITE))
    _widen(FINITE, out)
    assert np.array_equal(out, FINITE.view(np.float16).astype(float))


def test_numbers_are_rounded_to_float16_as_numpy_does() -> None:
    """The numbers lie around each midpoint between two neighbours, and at random places of every magnitude."""
    exact = FINITE.view(np.float16).astype(float)
    middles = (exact[1:] + exact[:-1]) / 2
    generator = np.random.default_rng(0)
    sizes = 2.0 ** -generator.integers(0, 40, 100_000) * generator.random(100_000)
    numbers = np.concatenate([exact, middles, np.nextafter(middles, 0), np.nextafter(middles, math.inf), sizes])
    out = np.empty(len(numbers), np.uint16)
    _narrow(numbers, out)
    assert np.array_equal(out, numbers.astype(np.float16).view(np.uint16))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_floats_pass_as_they_are(dtype: str) -> None:
    numbers = np.random.default_rng(0).random(1000)
    stored, back = np.empty(len(numbers), dtype), np.empty(len(numbers))
    _narrow(numbers, stored)
    _widen(stored, back)
    assert np.array_equal(stored, numbers.astype(dtype)) and np.array_equal(back, stored.astype(float))


def test_kernels_compute_exponentials_as_python_does() -> None:
    """The results are equal to the last bit, since planning and its oracle are compared so."""
    numbers = np.random.default_rng(0).random(50_000)
    exponentials, logarithms = np.empty((2, len(numbers)))
    _exp_and_log(numbers, exponentials, logarithms)
    assert exponentials.tolist() == [math.exp(-50.0 * number) for number in numbers.tolist()]
    assert logarithms.tolist() == [math.log(50.0 * number) for number in numbers.tolist()]
