"""Numbers of at least 0 stored as float16: Numba has no float16 on CPUs, so kernels see the bits as uint16.

`wide` and `narrow` are what `numpy.astype` does, to the last bit, for the numbers from 0 to 65504. Other dtypes pass
unchanged, so that one kernel serves float64, float32 and float16 storage.
"""

from numba.core import types
from numba.extending import overload

from ...kernels.jit import bits_of, float_of

DROPPED = 42  # bits of float64's mantissa that float16 lacks
HALF, EVEN = (1 << (DROPPED - 1)) - 1, 1 << DROPPED  # what rounds to the nearest, ties to even
REBIAS = (1023 - 15) << 10  # difference of the exponents' biases, in float16's place
SCALE = 2.0**1008  # the same as a factor
LEAST_NORMAL = 2.0**-14
SUBNORMAL = 2.0**28  # added to a smaller number, it leaves the float16's bits in the low bits


def wide(value):
    """A stored number as float64."""
    raise NotImplementedError("only kernels call it")


def narrow(values, value):
    """A float64 as the items of the array `values` store it."""
    raise NotImplementedError("only kernels call it")


@overload(wide, inline="always")
def _wide(value):
    if isinstance(value, types.Integer):
        return lambda value: float_of((value & 0x7FFF) << DROPPED) * SCALE
    return lambda value: value


@overload(narrow, inline="always")
def _narrow(values, value):
    if isinstance(values.dtype, types.Integer):

        def half(values, value):
            if value < LEAST_NORMAL:
                return bits_of(value + SUBNORMAL) & 0x7FF
            bits = bits_of(value)
            return ((bits + HALF + ((bits & EVEN) >> DROPPED)) >> DROPPED) - REBIAS

        return half
    return lambda values, value: value
