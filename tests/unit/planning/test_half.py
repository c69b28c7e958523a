"""Kernels convert float16 as NumPy does; the oracle of test_induction.py holds their other arithmetic to the bit."""

import math

import numpy as np

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
