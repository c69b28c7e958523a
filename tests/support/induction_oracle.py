"""Backward induction in plain Python over lists, straight from the formulas: the oracle of tests and benchmarks.

It shares no code with the package. Sums run in the order of the outcomes, of the beliefs, and of the actions.
Python's `sum` is not used: since 3.12 it compensates for rounding.
"""

from itertools import product
from math import exp, inf, log

import numpy as np


class Induction:
    """Values and policies by agent, goal number and state number: `values[agent][goal][i]`, `policies[agent][goal][i]`.

    Args:
        states, transitions: as `Graph.to_lists` returns them.
        n: actions of each agent.
        goals: by agent whose policy is computed: predicates of states.
        offered: offered(state, agent) -> the goals on offer; all by default.
        believed: believed(state, agent, action) -> [(probability, profile)]; by default all other agents but the robots
            act at random.
        discount: discount(state, profile, [(probability, successor)]) -> a factor for each outcome.
        store: rounds a value as its storage does, such as to float16.
        half: sums are those of NumPy's float16.
    """

    def __init__(self, states, transitions, agents, n, goals, *, robots=(), optimistic=False, offered=None,
                 believed=None, beta=10.0, gamma=1.0, discount=None, store=float, half=False):  # fmt: skip
        self.states, self.n, self.agents = states, n, agents
        self.rows = [{profile: (p, successors) for profile, p, successors in of_state} for of_state in transitions]
        self.robots, self.optimistic, self.beta, self.store, self.half = robots, optimistic, beta, store, half
        self.kept = rounded if half else float
        self.believed = believed or self._at_random
        self.discount = discount or (lambda state, profile, outcomes: [gamma] * len(outcomes))
        self.values, self.policies, self.achieved = {}, {}, {}
        for agent, predicates in goals.items():
            self.values[agent], self.policies[agent], self.achieved[agent] = [], [], []
            for goal in predicates:
                achieved = [bool(goal(state)) for state in states]
                values, policies = [0.0] * len(states), [[0.0] * n for _ in states]
                for i in reversed(range(len(states))):
                    if self.rows[i] and (offered is None or goal in offered(states[i], agent)):
                        policies[i], values[i] = self._choose(i, agent, achieved, values)
                self.achieved[agent].append(achieved)
                self.values[agent].append(values)
                self.policies[agent].append(policies)

    def _at_random(self, state, agent, action):
        acting = [() if i == agent or i in self.robots else range(self.n) for i in reversed(range(self.agents))]
        profiles = [tuple(reversed(profile)) for profile in product(*[choices or (0,) for choices in acting])]
        return [(1.0 / len(profiles), profile) for profile in profiles]

    def _choose(self, i, agent, achieved, values):
        q = [self._q(i, agent, action, achieved, values) for action in range(self.n)]
        possible = [action for action in range(self.n) if q[action] is not None]
        if achieved[i]:
            return [float(action == possible[0]) for action in range(self.n)], 0.0
        policy = softmax(q, self.beta)
        return policy, self.store(added(policy[action] * q[action] for action in possible))

    def _q(self, i, agent, action, achieved, values):
        """Returns the action's Q; None if no believed profile is possible."""
        total, mass, missing = 0.0, 0.0, False
        for p, profile in self.believed(self.states[i], agent, action):
            expectations = []
            for robots in product(range(self.n), repeat=len(self.robots)):
                whole = [*profile]
                whole[agent] = action
                for robot, its in zip(self.robots, robots, strict=True):
                    whole[robot] = its
                if tuple(whole) in self.rows[i]:
                    expectations.append(self._expectation(i, tuple(whole), achieved, values))
            if not expectations:
                missing = True
                continue
            mass += p
            best = max(expectations) if self.optimistic else min(expectations)
            total = self.kept(total + self.kept(self.kept(p) * best))
        if not mass > 0.0:
            return None
        return total / mass if missing else total

    def _expectation(self, i, profile, achieved, values):
        probabilities, successors = self.rows[i][profile]
        outcomes = [(p, self.states[j]) for p, j in zip(probabilities, successors, strict=True)]
        factors = self.discount(self.states[i], profile, outcomes)
        gains = [1.0 if achieved[j] else factor * values[j] for j, factor in zip(successors, factors, strict=True)]
        if self.half:
            return float(np.dot(np.array(probabilities, np.float16), np.array(gains, np.float16)))
        return added(p * gain for p, gain in zip(probabilities, gains, strict=True))


def added(terms):
    """The numbers' sum, in order."""
    total = 0.0
    for term in terms:
        total += term
    return total


def rounded(value):
    return float(np.float16(value))


def softmax(scores, beta):
    """softmax(beta * scores); 0 where a score is None. An infinite beta chooses among the best at random.

    Scores are then equal if they differ by the rounding of their sums alone, to one part in 10^12.
    """
    best = max(score for score in scores if score is not None)
    tied = best - 1e-12 * abs(best) if beta == inf else best
    weights = [0.0 if score is None else 1.0 if score >= tied else exp(beta * (score - best)) for score in scores]
    total = added(weights)
    return [weight / total for weight in weights]


class RobotInduction:
    """The robots' `values[i]` and `policies[i]`, and what people can attain: `attainable[h][goal][i]`.

    Args:
        human: the people's Induction.
        weights: weights(i, agent) -> by goal number its weight, for the goals on offer in state i.
        aggregate: aggregate(i, {agent: [attainable by goal]}) -> the robots' reward in state i.
    """

    def __init__(self, human, weights, aggregate, *, beta=1.0, gamma=1.0, human_gamma=1.0, terminal=0.0, power=False):
        self.human, self.weights, self.gamma, self.human_gamma = human, weights, gamma, human_gamma
        states, n = human.states, human.n
        self.people = [*human.values]
        self.robots = [agent for agent in range(human.agents) if agent not in self.people]
        self.profiles = [tuple(reversed(p)) for p in product(range(n), repeat=len(self.robots))]
        self.values = [terminal] * len(states)
        self.policies = [[0.0] * len(self.profiles) for _ in states]
        self.attainable = {h: [[0.0] * len(states) for _ in human.values[h]] for h in self.people}
        for i in reversed(range(len(states))):
            if human.rows[i]:
                mixed = {h: self._mixed(i, h) for h in self.people}
                q = [self._q(i, r, mixed) for r in self.profiles]
                scores = [None if x is None else -log(-x) if power and beta < inf else x for x in q]
                self.policies[i] = softmax(scores, beta)
                expected = added(p * (0.0 if x is None else x) for p, x in zip(self.policies[i], q, strict=True))
                for h in self.people:
                    for goal in weights(i, h):
                        self.attainable[h][goal][i] = self._attain(i, h, goal, mixed)
                self.values[i] = expected + aggregate(i, {h: [v[i] for v in self.attainable[h]] for h in self.people})

    def _mixed(self, i, h):
        weights, policies = self.weights(i, h), self.human.policies[h]
        total = added(weights.values())
        mean = [added(w * policies[goal][i][a] for goal, w in weights.items()) for a in range(self.human.n)]
        return [x / total for x in mean]

    def _joint(self, mixed, profile, without=None):
        p = 1.0
        for h in self.people:
            if h != without:
                p *= mixed[h][profile[h]]
        return p

    def _q(self, i, robots, mixed):
        total, mass = 0.0, 0.0
        for profile, (probabilities, successors) in self.human.rows[i].items():
            p = self._joint(mixed, profile)
            if p > 0.0 and tuple(profile[r] for r in self.robots) == robots:
                mass += p
                outcomes = zip(probabilities, successors, strict=True)
                total += p * added(q * (self.gamma * self.values[j]) for q, j in outcomes)
        if len(self.human.rows[i]) == self.human.n**self.human.agents:
            return total
        return total / mass if mass > 0.0 else None

    def _attain(self, i, h, goal, mixed):
        total, mass = 0.0, 0.0
        for profile, (probabilities, successors) in self.human.rows[i].items():
            chosen = self.policies[i][self.profiles.index(tuple(profile[r] for r in self.robots))]
            p = chosen * self._joint(mixed, profile, h)
            if p > 0.0:
                own = p * self.human.policies[h][goal][i][profile[h]]
                achieved, reached = self.human.achieved[h][goal], self.attainable[h][goal]
                outcomes = zip(probabilities, successors, strict=True)
                mass += own
                total += own * added(q * (1.0 if achieved[j] else self.human_gamma * reached[j]) for q, j in outcomes)
        if len(self.human.rows[i]) == self.human.n**self.human.agents or not mass > 0.0:
            return total
        return total / mass
