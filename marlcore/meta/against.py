"""Turns a game of two agents into an environment of one agent, who plays against a mixture of saved policies."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ..envs import vectorize
from ..envs.agent_view import Wrapper
from ..evaluation import load_policy
from ..interfaces import Outcome, Turn
from ..loops import PlayersByShare

Saved: TypeAlias = tuple[Path, str, str]  # a policy, as the arguments of `load_policy`


class Against(Wrapper):
    """A VectorEnvironment of `agent` alone; each episode's opponent is drawn from saved policies by their shares.

    The opponents act greedily. `reset` loads their weights; `observe` plays their turns before it returns.
    """

    def __init__(self, env_fn: Callable[[], Any], copies: int, agent: str, shares: Mapping[Saved, float]) -> None:
        self._env = env = vectorize(env_fn, copies)
        self.agents, self.spaces = (agent,), {agent: env.spaces[agent]}
        self._saved, self._odds = [*shares], [*shares.values()]

    def reset(self, seed: int) -> None:
        players = [load_policy(*saved).player(self._env.copies) for saved in self._saved]
        self._opponent = PlayersByShare(players, self._odds, self._env.copies, np.random.default_rng([seed, 1]))
        self._env.reset(seed)

    def observe(self) -> tuple[list[Outcome], list[Turn]]:
        outcomes, turns = self._env.observe()
        for outcome in outcomes:
            if outcome.agent not in self.agents and outcome.acted:
                self._opponent.reward(outcome.reward, outcome.copies)
        for turn in turns:
            if turn.agent not in self.agents:
                self._env.act(turn, self._opponent.choose(turn.obs, turn.copies, turn.begins).action)
        learners = [outcome for outcome in outcomes if outcome.agent in self.agents]
        return learners, [turn for turn in turns if turn.agent in self.agents]
