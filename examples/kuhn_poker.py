"""Kuhn poker by policy-space response oracles: DQN learns best responses, whose mixture is hard to exploit.

    pip install "marlcore[envs,games]"
    python examples/kuhn_poker.py [ITERATIONS] [STEPS] [SEED] [POPULATIONS]

Two players ante 1 and get one of three cards each. In turn they check or bet 1; against a bet they fold or call. The
higher card wins the pot (Kuhn 1950). The program prints the exploitability of the mixture; uniform play has 0.458.
"""

import itertools
import random
import sys
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from pettingzoo import AECEnv

import marlcore as mc

PASS, BET = 0, 1  # check or fold; bet or call
DEALS = list(itertools.permutations(range(3), 2))


class Kuhn(NamedTuple):
    """A state as `mc.exploitability` takes it, and as OpenSpiel has it."""

    cards: tuple[int, ...] = ()
    moves: tuple[int, ...] = ()

    def is_terminal(self) -> bool:
        return len(self.moves) > 1 and self.moves != (PASS, BET)

    def is_chance_node(self) -> bool:
        return not self.cards

    def chance_outcomes(self) -> list[tuple[int, float]]:
        return [(deal, 1 / len(DEALS)) for deal in range(len(DEALS))]

    def current_player(self) -> int:
        return len(self.moves) % 2

    def legal_actions(self) -> list[int]:
        return [PASS, BET]

    def child(self, action: int) -> "Kuhn":
        return Kuhn(self.cards, (*self.moves, action)) if self.cards else Kuhn(DEALS[action])

    def returns(self) -> tuple[float, float]:
        folds = self.moves[-2:] == (BET, PASS)
        wins = len(self.moves) % 2 == 0 if folds else self.cards[0] > self.cards[1]  # player 0
        amount = 2.0 if self.moves[-2:] == (BET, BET) else 1.0
        return (amount, -amount) if wins else (-amount, amount)

    def information_state_string(self) -> str:
        return f"{self.cards[self.current_player()]}{self.moves}"

    def seen(self, player: int) -> Any:
        """What a network sees: the player's card and each move so far, one-hot."""
        ones = self.cards[player], *(3 + 2 * i + move for i, move in enumerate(self.moves))
        return np.isin(np.arange(9), ones).astype(np.float32)


class KuhnPoker(AECEnv):
    def __init__(self) -> None:
        self.possible_agents = ["player_0", "player_1"]
        self.observation_space = lambda agent: gymnasium.spaces.Box(0, 1, (9,))
        self.action_space = lambda agent: gymnasium.spaces.Discrete(2)
        self.random = random.Random()

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        if seed is not None:
            self.random.seed(seed)
        self.agents, self.infos = [*self.possible_agents], {agent: {} for agent in self.possible_agents}
        self.truncations = dict.fromkeys(self.agents, False)
        self._enter(Kuhn(self.random.choice(DEALS)))

    def _enter(self, state: Kuhn) -> None:
        returns = state.returns() if state.is_terminal() else (0.0, 0.0)
        self.state, self.agent_selection = state, self.possible_agents[state.current_player()]
        self.rewards, self._cumulative_rewards = (dict(zip(self.agents, returns, strict=True)) for _ in range(2))
        self.terminations = dict.fromkeys(self.agents, state.is_terminal())

    def observe(self, agent: str) -> Any:
        return self.state.seen(self.possible_agents.index(agent))

    def step(self, action: int | None) -> None:
        if self.state.is_terminal():
            self._was_dead_step(action)
        else:
            self._enter(self.state.child(int(action or PASS)))


def strategy(policy: mc.LoadedPolicy, state: Kuhn) -> dict[int, float]:
    return {int(policy.act(state.seen(state.current_player()))): 1.0}


def main(iterations: int = 10, steps: int = 12_000, seed: int = 0, populations: int = 1) -> mc.PSROResult:
    config = mc.Config(
        total_steps=steps,
        seed=seed,
        mode="serial",
        policies={"player_0": "first", "player_1": "second"} if populations == 2 else None,
        updates_per_step=0.1,
        actor=mc.ActorConfig(envs=64),
        learner=mc.LearnerConfig(batch_size=256, warmup=min(1_000, steps // 2), n_step=1),
        exploration=mc.ExplorationConfig(epsilon=0.5),
    )
    dqn = mc.DQN(hidden=(64, 64), learning_rate=f"linear(3e-3, 1e-4, {steps})", reward_scale=0.25)
    result = mc.psro(KuhnPoker, dqn, config, iterations=iterations, min_gain=None, progress=False)
    seats = result.populations[0], result.populations[-1]
    strategies = [[partial(strategy, policy) for policy in seat.policies] for seat in seats]
    print(f"exploitability {mc.exploitability(Kuhn(), strategies, [seat.mixture for seat in seats]):.3f}")
    return result


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
