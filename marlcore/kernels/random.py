"""The random generator that makes all draws, and its distributions."""

import numpy as np

from .jit import inlined


@inlined
def _rotl(x, k):
    return (x << np.uint64(k)) | (x >> np.uint64(64 - k))


@inlined
def next_random(state):
    """Steps xoshiro256++ (Blackman and Vigna 2021, "Scrambled linear pseudorandom number generators", figure 3)."""
    result = _rotl(state[0] + state[3], 23) + state[0]
    t = state[1] << np.uint64(17)
    state[2] ^= state[0]
    state[3] ^= state[1]
    state[1] ^= state[2]
    state[0] ^= state[3]
    state[2] ^= t
    state[3] = _rotl(state[3], 45)
    return result


@inlined
def below(state, bound):
    """Draws a number in [0, bound), bound < 2^32, uniformly (Lemire 2019, arXiv:1805.10941, algorithm 5)."""
    wide = np.uint64(bound)
    product = (next_random(state) >> np.uint64(32)) * wide
    low = product & np.uint64(0xFFFFFFFF)
    if low < wide:
        threshold = (np.uint64(1 << 32) - wide) % wide
        while low < threshold:
            product = (next_random(state) >> np.uint64(32)) * wide
            low = product & np.uint64(0xFFFFFFFF)
    return np.int64(product >> np.uint64(32))


@inlined
def unit(state):
    """Draws a multiple of 2^-53 in [0, 1), uniformly."""
    return np.float64(next_random(state) >> np.uint64(11)) * 2.0**-53
