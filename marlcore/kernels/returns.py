"""What a transition that can be drawn earns: its n-step return, its discount, and how its episode ended."""

from __future__ import annotations

from .jit import float32_at, inlined, int64_at, uint8_at
from .rows import REWARD, TERMINATED, TRUNCATED, last_of, record_of, successor_of

__all__ = ["write_returns"]


@inlined
def _sum_rewards(p, lane, first, last):
    """The rewards of the rows from `first` to `last`, each discounted, and the discount of what follows them."""
    total, discount = 0.0, 1.0
    for ticket in range(first, last + 1):
        floats = float32_at(record_of(p, lane, ticket))
        total += discount * floats[REWARD]
        discount *= p.gamma
    return total, discount


@inlined
def write_returns(p, out, lane, ticket, rows, at):
    """Writes those of `rows` transitions from `ticket` on to the places from `at` on, after a check of them.

    A writer may overwrite rows between the check and this: then the numbers are wrong, and validation says so.
    """
    for i in range(rows):
        _, last, flags = last_of(p, lane, ticket + i)
        _, successor = successor_of(p, lane, last, flags)
        total, discount = _sum_rewards(p, lane, ticket + i, last)
        int64_at(p.successors)[at + i] = successor
        float32_at(out + p.reward)[at + i] = total
        float32_at(out + p.discount)[at + i] = 0.0 if flags & TERMINATED else discount
        uint8_at(out + p.terminated)[at + i] = (flags & TERMINATED) != 0
        uint8_at(out + p.truncated)[at + i] = (flags & TRUNCATED) != 0
