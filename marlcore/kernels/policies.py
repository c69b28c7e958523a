"""Computes the advantages of policy gradients, row by row."""

from .jit import jit


@jit
def trace(reward, discount, value, following, continues, ratio, decay, rho_bar, c_bar, advantage, target):
    """Fills in V-trace's targets (Espeholt et al. 2018, arXiv:1802.01561, equation 1), and the advantages.

    With a ratio of 1 in each row, the advantages are those of GAE (Schulman et al. 2016, arXiv:1506.02438) with the
    lambda `decay`. All arrays are float32 [B], except `continues`, bool: whether the next row is the episode's next
    transition. `following` is the value of the next observation. `ratio` is the action's probability under the
    learner's policy, divided by that under the acting policy. `rho_bar` clips the ratio in its row's error, `c_bar`
    clips it in the weight of later errors.
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


@jit
def moments(values):
    """Returns the mean and the variance of floats [B], summed in float64."""
    mean, squares = 0.0, 0.0
    for value in values:
        mean += value
    mean /= len(values)
    for value in values:
        squares += (value - mean) ** 2
    return mean, squares / len(values)
