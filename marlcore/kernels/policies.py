"""Arithmetic of policy gradients, row by row: drawing actions, and computing advantages."""

import math

from .jit import jit


@jit
def draw_category(output, first, end, place, action, log_prob):
    """Draws one of the values `first` to `end` - 1 in each row, never one of probability 0.

    `output`, float32 [k, outputs], has logarithms of the values' probabilities, up to a constant for each row. `place`,
    float64 [k], multiples of 2^-53 in [0, 1), tells where each draw falls in the sum of probabilities. Writes `action`,
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


@jit
def trace(reward, discount, value, following, continues, ratio, decay, rho_bar, c_bar, advantage, target):
    """Fills in V-trace's targets (Espeholt et al. 2018, arXiv:1802.01561, equation 1), and the advantages beside them.

    With a ratio of 1 in each row, the advantages are those of GAE (Schulman et al. 2016, arXiv:1506.02438) with the
    lambda `decay`. All arrays are float32 [B], except `continues`, bool: whether the next row is the episode's next
    transition. `following` is the value of the next observation. `ratio` is the action's probability today, divided by
    that when it was taken; `rho_bar` clips it in the error of its row, `c_bar` in the weight of later errors.
    """
    later = 0.0  # the next row's target minus its value
    for i in range(len(reward) - 1, -1, -1):
        if not continues[i]:
            later = 0.0
        own, passed = min(ratio[i], rho_bar), min(ratio[i], c_bar)
        error = reward[i] + discount[i] * following[i] - value[i]
        kept = discount[i] * decay * later
        advantage[i] = own * (error + kept)
        later = own * error + passed * kept
        target[i] = value[i] + later
