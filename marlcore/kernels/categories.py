"""Draws from categorical distributions."""

import math

from .jit import jit


@jit
def draw_category(output, first, end, place, action, log_prob):
    """Draws one of the values `first` to `end` - 1 in each row, never one of probability 0.

    `output`, float32 [k, outputs], has logarithms of the values' probabilities, up to a constant for each row; `place`,
    float64 [k], multiples of 2^-53 in [0, 1): where each draw lies in the sum of the probabilities. Writes `action`,
    int64 [k], counted from `first`, and adds the logarithm of its probability to `log_prob`, float32 [k].
    """
    for row in range(len(place)):
        most = float(output[row, first])
        for i in range(first + 1, end):
            most = max(most, float(output[row, i]))
        total = 0.0
        for i in range(first, end):
            total += math.exp(output[row, i] - most)
        rest, drawn, passed = place[row] * total, first, 0.0
        for i in range(first, end):
            if passed <= rest:  # always less than the total, which is the same sum: multiples of 2^-53 do not round up
                drawn = i
            passed += math.exp(output[row, i] - most)
        action[row] = drawn - first
        log_prob[row] += output[row, drawn] - most - math.log(total)
