"""An environment and an algorithm whose rows and weights can all be checked, for runs with killed processes.

The episode and the step determine the reward and the observation, which rows.py computes. All weights of the network
are one number, which grows by one with each update. The algorithm appends a line for each fault to the file `faults` in
its directory, and the number of checked rows to the file `rows`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, Space
from numpy.typing import NDArray

from ..interfaces import Action, Algorithm, ReplaySource, Trainer, Update
from ..replay import Prioritized
from ..spaces import Spaces
from .rows import filled, torn

LONGEST = 40  # most steps of an episode
WEIGHTS = 50_000
KEYS = 2**31
AGENTS = ("agent_0", "agent_1")


def read_faults(folder: Path) -> list[str]:
    return _lines(folder / "faults")


def read_rows(folder: Path) -> int:
    """Returns the number of rows that learners checked."""
    return sum(map(int, _lines(folder / "rows")))


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _append(path: Path, line: str) -> None:
    """Appends a line, whole or not at all; if the process is killed, earlier lines remain."""
    with path.open("a") as file:
        file.write(line + "\n")


class CheckedEnvironment:
    """Two agents act in turn, in episodes that terminate or are truncated after random numbers of steps."""

    agents = AGENTS
    observation_spaces: Mapping[str, Space] = dict.fromkeys(AGENTS, Box(-(2**63), 2**63 - 1, (4,), np.int64))
    action_spaces: Mapping[str, Space] = dict.fromkeys(AGENTS, Discrete(4))

    def __init__(self) -> None:
        self._rng = np.random.default_rng()
        self.agent: str | None = None

    def reset(self, seed: int | None = None) -> None:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._key = int(self._rng.integers(KEYS))
        self._steps = dict.fromkeys(AGENTS, 0)
        self._length = int(self._rng.integers(1, LONGEST))
        self._terminates = bool(self._rng.integers(2))
        self._left = list(AGENTS)
        self.agent = AGENTS[0]

    def last(self) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        assert self.agent is not None
        step = self._steps[self.agent]
        over = step == self._length
        reward = float(reward_of(self._key, step - 1)) if step else 0.0
        obs = filled(4, self._key, step).view(np.int64)  # torch computes only with unsigned integers of 8 bits
        return obs, reward, over and self._terminates, over and not self._terminates, {}

    def step(self, action: int | None) -> None:
        if self.agent is None or (action is None) != (self._steps[self.agent] == self._length):
            raise ValueError(f"step: expected an action, or None after the agent's end, got {action!r} of {self.agent}")
        if action is None:
            self._left.remove(self.agent)
        else:
            self._steps[self.agent] += 1
        turn = AGENTS[1 - AGENTS.index(self.agent)]
        self.agent = turn if turn in self._left else (self._left[0] if self._left else None)

    def close(self) -> None:
        pass


def reward_of(key: Any, step: Any) -> Any:
    return (key + 7 * step) % 1000


class _Network(torch.nn.Module):
    weights: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(WEIGHTS))


@dataclass(frozen=True)
class CheckedAlgorithm(Algorithm):
    """Learns nothing; checks the weights that actors pull and the rows that learners sample."""

    folder: str  # of the files `faults` and `rows`
    prioritized: bool = False  # sample by priorities, which are random

    def source(self, chosen: ReplaySource) -> ReplaySource:
        return replace(chosen, prioritized=Prioritized()) if self.prioritized else chosen

    def make_model(self, spaces: Spaces) -> torch.nn.Module:
        return _Network()

    def act(self, model: Any, obs: torch.Tensor, *, generator: np.random.Generator, **_: Any) -> Action:
        weights = model.weights.detach()
        low, high = float(weights.min()), float(weights.max())
        if low != high:
            _append(Path(self.folder) / "faults", f"torn weights: from {low:g} to {high:g}")
        before = model.__dict__.setdefault("newest", low)
        if low < before:
            _append(Path(self.folder) / "faults", f"older weights: {low:g} after {before:g}")
        model.__dict__["newest"] = low
        return Action(generator.integers(4, size=len(obs)))

    def make_trainer(self, model: Any) -> Trainer:
        return _Checker(model, Path(self.folder))


def _whole(observations: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(~torn(observations.cpu().numpy(), 2)).to(observations.device)


class _Checker:
    def __init__(self, network: _Network, folder: Path) -> None:
        self._weights = network.weights
        self._folder = folder

    def update(self, batch: Any) -> Update:
        for name, good in self._look(batch).items():
            if not bool(good.all()):
                row = int((~good).nonzero()[0])
                obs, after, reward = batch.obs[row].tolist(), batch.next_obs[row].tolist(), float(batch.reward[row])
                _append(self._folder / "faults", f"{name}: obs {obs}, next_obs {after}, reward {reward}")
        _append(self._folder / "rows", str(len(batch.reward)))
        with torch.no_grad():
            self._weights += 1.0
        return Update({"loss": torch.zeros(())}, priority=torch.rand(len(batch.reward)))

    def _look(self, batch: Any) -> dict[str, torch.Tensor]:
        key, step = batch.obs[:, :2].T
        after = batch.next_obs
        ended = batch.terminated
        return {
            "torn observation": _whole(batch.obs),
            "reward of another row": batch.reward == reward_of(key, step).float(),
            "torn next observation": ended | _whole(after),
            "next observation of another episode": ended | (after[:, 0] == key),
            "next observation of another step": ended | (after[:, 1] == step + 1),
            "discount": batch.discount == torch.where(ended, 0.0, 0.99).float(),
        }

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
