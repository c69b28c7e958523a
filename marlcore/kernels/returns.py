"""Computes n-step returns, their discounts, and how their episodes ended."""

from .jit import float32_at, inlined, int64_at, uint8_at
from .rows import REWARD, TERMINATED, TRUNCATED, last_of, record_of, successor_of


@inlined
def _sum_rewards(p, lane, first, last):
    """The discounted sum of the rewards of rows `first` to `last`, and the discount of the value after them."""
    total, discount = 0.0, 1.0
    for ticket in range(first, last + 1):
        floats = float32_at(record_of(p, lane, ticket))
        total += discount * floats[REWARD]
        discount *= p.gamma
    return total, discount


@inlined
def write_returns(p, out, lane, ticket, rows, at):
    """Writes the returns of `rows` checked transitions from `ticket` on to the places from `at` on.

    If a writer overwrites rows after the check, the numbers are wrong, and validation reports it.
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
