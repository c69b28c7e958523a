"""Puck: a small table-hockey game as an environment of two players; cheap, and soon learned.

    marlcore train --env examples.puck:two_player_puck --algo dqn --self-play.pool 10

Each player moves a bat up and down its own side of the table, and loses when the puck passes it. The puck is faster
after a swing, and leaves the bat at an angle that depends on where it was hit.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from marlcore.envs import TwoPlayer

BAT = 0.25  # half of a bat's length; the table reaches from -1 to 1 both ways
BAT_SPEED = 0.12  # per step
PUCK_SPEED, SWING_SPEED = 0.06, 0.04
SPIN = 0.06  # vertical speed that a hit at the bat's end adds
STEPS = 250
NEARNESS = 0.01  # reward for a bat in line with a puck that comes towards it

ACTIONS = ((-1.0, 1.0), (0.0, 1.0), (1.0, 1.0))  # down, stay, up, each with a swing
DOWN, STAY, UP = range(3)


class Puck(gymnasium.Env):
    """The game, from the first player's point of view; the second player sees it mirrored.

    Observation, float64 [6] although the space says float32: the heights of the own bat and the other's, the puck's
    place and its velocity, times ten. Action, float32 [4]: for each player the movement of the bat and the swing, from
    -1 to 1. Reward: 1 for the winner, -1 for the loser, and a little for a bat in line with a puck that approaches.
    """

    def __init__(self) -> None:
        self.observation_space = gym.Box(-np.inf, np.inf, (6,), np.float32)
        self.action_space = gym.Box(-1.0, 1.0, (4,), np.float32)
        self._serve = 1.0

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[NDArray[Any], dict[str, Any]]:
        """Begin an episode: the players get the first puck in turn."""
        super().reset(seed=seed)
        self._serve = -self._serve if seed is None else -1.0
        self._bats = [0.0, 0.0]
        self._puck = [0.0, float(self.np_random.uniform(-0.5, 0.5))]
        self._velocity = [self._serve * PUCK_SPEED, float(self.np_random.uniform(-0.05, 0.05))]
        self._steps, self._winner = 0, 0
        return self._seen(1.0), self._info(1.0)

    def step(self, action: NDArray[Any]) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        moves = np.clip(action, -1.0, 1.0).tolist()
        for player in (0, 1):
            height = self._bats[player] + BAT_SPEED * moves[2 * player]
            self._bats[player] = max(-1.0, min(1.0, height))
        self._move_puck((moves[1], moves[3]))
        self._steps += 1
        info = self._info(1.0)
        over = self._winner != 0 or self._steps >= STEPS
        return self._seen(1.0), self._reward(1.0, info), over, False, info

    def _move_puck(self, swings: tuple[float, float]) -> None:
        puck, velocity = self._puck, self._velocity
        puck[0] += velocity[0]
        puck[1] += velocity[1]
        if abs(puck[1]) > 1.0:
            puck[1], velocity[1] = (2.0 if puck[1] > 0 else -2.0) - puck[1], -velocity[1]
        if abs(puck[0]) < 1.0:
            return
        player, side = (0, -1.0) if puck[0] < 0 else (1, 1.0)
        offset = (puck[1] - self._bats[player]) / BAT
        if abs(offset) > 1.0:
            self._winner = -1 if player == 0 else 1
            return
        puck[0] = side
        velocity[0] = -side * (PUCK_SPEED + SWING_SPEED * max(0.0, swings[player]))
        velocity[1] = max(-0.12, min(0.12, velocity[1] + SPIN * offset))

    def obs_agent_two(self) -> NDArray[Any]:
        return self._seen(-1.0)

    def get_info_agent_two(self) -> dict[str, Any]:
        return self._info(-1.0)

    def get_reward_agent_two(self, info: dict[str, Any]) -> float:
        return self._reward(-1.0, info)

    def _seen(self, side: float) -> NDArray[Any]:
        own, other = self._bats if side > 0 else self._bats[::-1]
        (x, y), (dx, dy) = self._puck, self._velocity
        return np.array([own, other, side * x, y, 10 * side * dx, 10 * dy])

    def _info(self, side: float) -> dict[str, Any]:
        own = self._bats[0 if side > 0 else 1]
        comes = self._velocity[0] * side < 0
        nearness = NEARNESS * max(0.0, 1.0 - abs(own - self._puck[1])) if comes else 0.0
        return {"winner": int(side) * self._winner, "reward_nearness": nearness}

    def _reward(self, side: float, info: dict[str, Any]) -> float:
        return side * self._winner + float(info["reward_nearness"])


def two_player_puck(discrete: bool = True) -> TwoPlayer:
    """The game as an environment of two agents, by default with the three actions down, stay and up."""
    return TwoPlayer(Puck(), actions=ACTIONS if discrete else None, max_steps=STEPS)


def chaser(obs: NDArray[Any]) -> int:
    """A scripted player of the discrete game that follows the puck, and is late for steep ones."""
    gap = obs[3] - obs[0]
    return STAY if obs[4] > 0 or abs(gap) < 0.1 else UP if gap > 0 else DOWN


def idle(obs: NDArray[Any]) -> int:
    """A scripted player of the discrete game that never moves."""
    return STAY
