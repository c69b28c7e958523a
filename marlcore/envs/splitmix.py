"""Seeds of copies, and a random generator of one formula, the same for a Python integer and for an array of copies."""

from __future__ import annotations

from typing import Any

import numpy as np

_MASK64 = 0xFFFF_FFFF_FFFF_FFFF
_STEP = 0x9E37_79B9_7F4A_7C15


def child_seeds(seed: int, copies: int) -> list[int]:
    """A seed for each copy: the children of a SeedSequence."""
    return [int(child.generate_state(1)[0]) for child in np.random.SeedSequence(seed).spawn(copies)]


def unit(key: Any, count: Any) -> Any:
    """Draw number `count` of the sequence `key`, a multiple of 2^-53 in [0, 1): two integers, or two uint64 arrays.

    SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", figure 16), whose state
    after n draws is known without the draws before.
    """
    mixed = _mix((key + count * _STEP) & _MASK64)
    return (mixed >> 11) * 2.0**-53


def key_of(seed: int) -> int:
    """The key of a seed; sequences of neighbouring seeds have nothing in common."""
    return int(_mix(_mix(seed & _MASK64) ^ _STEP))


def keys_of(seed: int, copies: int) -> Any:
    """The keys of the copies, uint64 [copies]."""
    return np.array([key_of(child) for child in child_seeds(seed, copies)], np.uint64)


def fresh_key() -> int:
    """A key from the system's entropy."""
    return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])


def _mix(bits: Any) -> Any:
    bits = ((bits ^ (bits >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK64
    bits = ((bits ^ (bits >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK64
    return bits ^ (bits >> 31)
