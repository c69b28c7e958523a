"""Seeds of copies, their random draws, and the base of environments whose copies are always at the same step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import check_whole

_STEP = np.uint64(0x9E37_79B9_7F4A_7C15)


def child_seeds(seed: int, copies: int) -> list[int]:
    """Returns a seed for each copy: copy i gets the first number of the i-th child of the seed's SeedSequence."""
    return [int(child.generate_state(1)[0]) for child in np.random.SeedSequence(seed).spawn(copies)]


class Draws:
    """A SplitMix64 random sequence for each copy; any number can be computed without the numbers before it.

    Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", figure 16.

    Args:
        seeds: one for each copy; neighbouring seeds give unrelated sequences. None: one copy, seeded by the system.
    """

    def __init__(self, seeds: Sequence[int] | None = None) -> None:
        if seeds is None:
            self.keys = np.random.SeedSequence().generate_state(1, np.uint64)
        else:
            self.keys = _mix(_mix(np.array([seed % 2**64 for seed in seeds], np.uint64)) ^ _STEP)
        self.counts = np.zeros(len(self.keys), np.uint64)  # of draws so far

    def take(self, copies: Any = slice(None)) -> NDArray[np.float64]:
        """Draws the next number of each of these copies: float64 [k], multiples of 2^-53 in [0, 1)."""
        drawn = _unit(self.keys[copies], self.counts[copies])
        self.counts[copies] += np.uint64(1)
        return drawn

    def peek(self, copies: Any, ahead: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns the number that each of these copies would draw after `ahead` further draws; draws nothing."""
        return _unit(self.keys[copies], self.counts[copies] + ahead.astype(np.uint64))


def _unit(keys: NDArray[np.uint64], counts: NDArray[np.uint64]) -> NDArray[np.float64]:
    return (_mix(keys + counts * _STEP) >> np.uint64(11)) * np.float64(2.0**-53)


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return bits ^ (bits >> np.uint64(31))


class Lockstep:
    """A VectorEnvironment whose copies are always at the same step, so their episodes end together."""

    def __init__(self, copies: int) -> None:
        check_whole("copies", copies)
        self.copies = copies
        self.episodes = 0
        self.ended = np.zeros(copies, np.int64)
        self._all = np.arange(copies)
        self._never, self._always = np.zeros(copies, bool), np.ones(copies, bool)

    def reset(self, seed: int) -> None:
        self.episodes = 0
        self.ended[:] = 0
        self._draws = Draws(child_seeds(seed, self.copies))
        self._begin()

    def _begin(self) -> None:
        raise NotImplementedError

    def _begin_next(self) -> None:
        self.episodes += self.copies
        self.ended += 1
        self._begin()

    def close(self) -> None:
        """Does nothing: the environment holds no resources."""
