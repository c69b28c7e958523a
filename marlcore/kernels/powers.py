"""Raises many numbers to a power at once: the compiler vectorises these polynomials, but not calls of `pow`.

x = 2^e m with m in [sqrt(1/2), sqrt(2)), and x^a = 2^(a log2 x). The logarithm of m is the series of atanh; the power
of two is a Taylor series around the nearest integer. Both are as exact as float64.
"""

import math

from .jit import bits_of, float_of, inlined

SQRT_HALF = 0x3FE6A09E667F3BCD  # bits of sqrt(1/2)
ONE = 0x3FF0000000000000
WHOLE = 1.5 * 2.0**52  # the sum of this and a number below 2^51 has the nearest integer in its low bits
WHOLE_BITS = 0x4338000000000000
LEAST, MOST = 0x3370000000000000, 0x4C70000000000000  # bits of 2^-200 and 2^200, the bounds of the polynomials' range
STEEPEST = 5.0  # largest absolute exponent: no power leaves the range of float64
ATANH = tuple(2.0 / ((2 * k + 1) * math.log(2.0)) for k in range(11))
EXP2 = tuple(math.log(2.0) ** k / math.factorial(k) for k in range(14))


@inlined
def _log2(x):
    bits = bits_of(x)
    exponent = (bits - SQRT_HALF) >> 52
    m = float_of(bits - (exponent << 52))
    z = (m - 1.0) / (m + 1.0)
    square, total = z * z, ATANH[10]
    for k in range(9, -1, -1):
        total = total * square + ATANH[k]
    return (float_of(exponent + WHOLE_BITS) - WHOLE) + total * z


@inlined
def _exp2(y):
    whole = y + WHOLE
    rest, total = y - (whole - WHOLE), EXP2[13]
    for k in range(12, -1, -1):
        total = total * rest + EXP2[k]
    return total * float_of((bits_of(whole) << 52) + ONE)


@inlined
def _in_range(values, count):
    signs = 0
    for i in range(count):
        bits = bits_of(values[i])
        signs |= (bits - LEAST) | (MOST - bits)
    return signs >= 0


@inlined
def raise_all(values, exponent, count):
    """Replaces values[:count], float64 and at least 0, by their powers with this exponent."""
    if exponent == 1.0:
        return
    if abs(exponent) <= STEEPEST and _in_range(values, count):
        for i in range(count):
            values[i] = _exp2(exponent * _log2(values[i]))
        return
    for i in range(count):
        values[i] = values[i] ** exponent
