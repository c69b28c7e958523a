"""Backward induction for one agent: its values and soft policies, for all of its goals.

    Q(a) = sum over believed profiles b of p(b) * min over robots' profiles r of E(1 if achieved, else d * V)
    pi = softmax(beta * Q),  V = sum of pi(a) * Q(a)

Impossible profiles are left out, and the probabilities of the others are divided by their sum. An action without
possible profiles gets pi = 0.
"""

from typing import Any, NamedTuple

from ...kernels.jit import inlined, jit
from .expectations import ACHIEVED, OFFERED, divide, expect, kept, narrow, row_of, soften


class Belief(NamedTuple):
    """An agent's beliefs about the others' actions.

    Beliefs depend on the agent's action and, if `stride` is not 0, on the state: the entries start[i] to
    start[i + 1] - 1 belong to the action a in the state s, where i = s * stride + a.
    """

    start: Any  # int64
    stride: int  # the number of actions if beliefs depend on the state, else 0
    probability: Any  # float64 [entries]
    base: Any  # int64 [entries], the number of a profile in which the agent and the robots take action 0
    robots: Any  # int64 [robots' profiles], numbers to add to a base
    best: bool  # whether the agent expects the robots' best profile instead of the worst


class Scratch(NamedTuple):
    """Memory for one thread, float64."""

    q: Any  # [actions, goals]
    total: Any  # [goals]; float32 for sums of float16
    extreme: Any  # [goals]
    mass: Any  # [actions]
    chosen: Any  # [actions]


@inlined
def _expect_extreme(rows, state, profile, belief, flags, values, scratch):
    """Writes the worst or best expectation over robots' possible profiles to scratch.extreme; False if none exists."""
    possible = False
    total, extreme = scratch.total, scratch.extreme
    for i in range(len(belief.robots)):
        row = row_of(rows, state, profile + belief.robots[i])
        if row < 0:
            continue
        expect(rows, row, flags, values, total)
        for goal in range(len(total)):
            better = total[goal] > extreme[goal] if belief.best else total[goal] < extreme[goal]
            if better or not possible:
                extreme[goal] = total[goal]
        possible = True
    return possible


@inlined
def _evaluate(rows, state, action, place, belief, flags, values, scratch):
    """Writes an action's Q to scratch.q; returns the sum of the believed probabilities of possible profiles."""
    q, missing, mass = scratch.q[action], False, 0.0
    for goal in range(len(q)):
        q[goal] = 0.0
    choice = state * belief.stride + action
    for entry in range(belief.start[choice], belief.start[choice + 1]):
        p = belief.probability[entry]
        if not _expect_extreme(rows, state, belief.base[entry] + action * place, belief, flags, values, scratch):
            missing = True
            continue
        mass += p
        for goal in range(len(q)):
            q[goal] = kept(scratch.total, q[goal] + kept(scratch.total, kept(scratch.total, p) * scratch.extreme[goal]))
    if missing and mass > 0.0:
        divide(q, mass)
    scratch.mass[action] = mass
    return mass


@inlined
def _choose(flag, goal, beta, scratch):
    chosen, value = scratch.chosen, 0.0
    if flag & ACHIEVED:
        chosen[:] = 0.0
        for action in range(len(chosen)):
            if scratch.mass[action] > 0.0:
                chosen[action] = 1.0
                break
        return 0.0
    soften(scratch.q[:, goal], scratch.mass, beta, chosen)
    for action in range(len(chosen)):
        value += chosen[action] * scratch.q[action, goal]
    return value


@jit
def induce(rows, belief, place, beta, flags, values, policy, numbers, scratch):
    """Computes one agent's values and policies in the states `numbers`, in this order; successors must come first.

    place: the number of actions, to the power of the agent's index. flags: uint8 [states, goals]. values: [states,
    goals], float64, float32 or float16's bits. policy: [states, goals, actions], float64 or float32. `values` and
    `policy` must hold zeros at first.

    Returns: -1; or, if all believed profiles are impossible in a state, the number of that state, where it stops.
    """
    for state in numbers:
        if rows.first[state] == rows.first[state + 1]:
            continue
        possible = 0.0
        for action in range(len(scratch.mass)):
            possible += _evaluate(rows, state, action, place, belief, flags, values, scratch)
        if not possible > 0.0:
            return state
        for goal in range(flags.shape[1]):
            if flags[state, goal] & OFFERED:
                value = _choose(flags[state, goal], goal, beta, scratch)
                values[state, goal] = narrow(values, value)
                for action in range(len(scratch.chosen)):
                    policy[state, goal, action] = scratch.chosen[action]
    return -1
