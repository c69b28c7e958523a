"""Backward induction for robots among people whose policies are known.

    Q(r) = E of d * V over the people's profiles and the outcomes; pi = softmax(beta * Q), or the power law (-Q)^-beta
    attainable(h, g) = E of 1 where the goal is achieved, else d * attainable, if person h pursues the goal g

V is the expectation of Q under pi plus the caller's aggregate of what people can attain. Impossible profiles are left
out, and the probabilities of the other profiles are divided by their sum.
"""

import math
from typing import Any, NamedTuple

from ...kernels.jit import inlined, jit
from .expectations import OFFERED, divide, expect, is_complete, soften, wide


class People(NamedTuple):
    """The people's policies, averaged over their goals, and powers of n, which split a profile into actions."""

    policy: Any  # float64 [people, states, actions]
    places: Any  # int64 [people], n to the power of each person's index
    robots: Any  # int64 [robots], n to the power of each robot's index


@jit
def mix(flags, weight, policy, numbers, mixed):
    """Averages a person's policy over the goals on offer, by weight, into mixed[state]; 0 if all weights are 0."""
    for state in numbers:
        total, mean = 0.0, mixed[state]
        for action in range(len(mean)):
            mean[action] = 0.0
        for goal in range(flags.shape[1]):
            if flags[state, goal] & OFFERED:
                total += weight[state, goal]
                for action in range(len(mean)):
                    mean[action] += weight[state, goal] * policy[state, goal, action]
        if total > 0.0:
            divide(mean, total)


@inlined
def _action_of(profile, place, actions):
    return profile // place % actions


@inlined
def _robots_profile(people, profile):
    """Returns the number of the robots' actions in a profile: the sum of action_i * n^i over robots i = 0, 1, ..."""
    actions, number, power = people.policy.shape[2], 0, 1
    for i in range(len(people.robots)):
        number += _action_of(profile, people.robots[i], actions) * power
        power *= actions
    return number


@inlined
def _probability(people, state, profile, without):
    """Multiplies the probabilities of the people's actions in a profile; skips the person `without` (-1: nobody)."""
    p, actions = 1.0, people.policy.shape[2]
    for person in range(len(people.places)):
        if person != without:
            p *= people.policy[person, state, _action_of(profile, people.places[person], actions)]
    return p


@inlined
def _expected_value(rows, row, values):
    total = 0.0
    for outcome in range(rows.start[row], rows.start[row + 1]):
        discount = rows.discount[outcome * rows.stride]
        total += rows.probability[outcome] * (discount * values[rows.successor[outcome]])
    return total


@inlined
def _evaluate(rows, state, people, values, q, mass):
    for r in range(len(q)):
        q[r] = mass[r] = 0.0
    for row in range(rows.first[state], rows.first[state + 1]):
        p = _probability(people, state, rows.profile[row], -1)
        if p > 0.0:
            r = _robots_profile(people, rows.profile[row])
            mass[r] += p
            q[r] += p * _expected_value(rows, row, values)
    if not is_complete(rows, state):
        for r in range(len(q)):
            if mass[r] > 0.0:
                q[r] /= mass[r]


@jit
def choose(rows, people, beta, power, values, policy, numbers, q, score, mass):
    """Computes the robots' policy in the states `numbers`; writes the expectation of Q under it to `values`.

    policy: float64 [states, robots' profiles]. q, score, mass: float64 [robots' profiles], scratch memory.

    Returns: -1; or the number of a state where the people's policies make all profiles impossible or, with `power`,
        where a Q is not negative.
    """
    for state in numbers:
        if rows.first[state] == rows.first[state + 1]:
            continue
        _evaluate(rows, state, people, values, q, mass)
        possible = False
        for r in range(len(q)):
            if mass[r] > 0.0:
                possible = True
                if power and q[r] >= 0.0:
                    return state
                # An infinite beta only looks for the best, whose rounding is relative to Q and not to its logarithm.
                score[r] = -math.log(-q[r]) if power and beta < math.inf else q[r]
        if not possible:
            return state
        soften(score, mass, beta, policy[state])
        expected = 0.0
        for r in range(len(q)):
            expected += policy[state, r] * q[r]
        values[state] = expected
    return -1


@jit
def attain(rows, people, person, chosen, policy, flags, values, numbers, scratch):
    """Computes what one person can attain in the states `numbers`, for each goal on offer.

    `chosen`, the robots' policy, and the other people's policies give each row's probability; `policy` is the person's
    own. `scratch` has three arrays float64 [goals].
    """
    attained, mass, total = scratch
    for state in numbers:
        if rows.first[state] == rows.first[state + 1]:
            continue
        for goal in range(len(attained)):
            attained[goal] = mass[goal] = 0.0
        for row in range(rows.first[state], rows.first[state + 1]):
            profile = rows.profile[row]
            p = chosen[state, _robots_profile(people, profile)] * _probability(people, state, profile, person)
            if p > 0.0:
                action = _action_of(profile, people.places[person], people.policy.shape[2])
                expect(rows, row, flags, values, total)
                for goal in range(len(total)):
                    share = p * wide(policy[state, goal, action])
                    mass[goal] += share
                    attained[goal] += share * total[goal]
        for goal in range(len(attained)):
            if flags[state, goal] & OFFERED:
                partial = not is_complete(rows, state) and mass[goal] > 0.0
                values[state, goal] = attained[goal] / mass[goal] if partial else attained[goal]
