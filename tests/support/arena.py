"""A game of two or more that notes who acted with which weights, and an algorithm whose actions say which it has."""

import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from crowd import Rounds

import marlcore as mc

SIDES = ("left", "right")
ANCHOR, STRONG = -1.0, 500.0
_numbers = itertools.count()


class Arena(Rounds):
    """Three to six rounds; a higher sum of actions wins against each lower one.

    An observation is the environment's number, the episode's, the side and the round. When an episode ends, a line in a
    file of the folder says what each side did.
    """

    see = gymnasium.spaces.Box(-1, np.inf, (4,), np.float32)
    do = gymnasium.spaces.Box(-2, np.inf, (1,), np.float32)

    def __init__(self, folder: Path, tags: tuple[str, ...] = (), sides: tuple[str, ...] = SIDES) -> None:
        self.possible_agents = list(sides)
        self.number = os.getpid() % 10_000 + 10_000 * next(_numbers)
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{self.number}.jsonl"
        self._tags = tags
        self._episode = -1

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self._round = [*self.possible_agents], 0
        self._episode += 1
        self._acted: dict[str, list[float]] = {side: [] for side in self.agents}
        tag = {"tag": self._tags[self._episode % len(self._tags)]} if self._tags else {}
        return self._look(), dict.fromkeys(self.agents, tag)

    def _look(self) -> dict[str, Any]:
        return {side: np.float32([self.number, self._episode, i, self._round]) for i, side in enumerate(self._acted)}

    def step(self, actions: dict[str, Any]) -> Any:
        for side, action in actions.items():
            self._acted[side].append(float(action[0]))
        self._round += 1
        over = self._round == 3 + self._episode % 4
        rewards = dict.fromkeys(self._acted, 0.0)
        if over:
            self.agents = []
            sums = {side: sum(acted) for side, acted in self._acted.items()}
            rewards = {side: float(sum(np.sign(own - other) for other in sums.values())) for side, own in sums.items()}
            with self._path.open("a") as file:
                file.write(json.dumps([self.number, self._episode, *self._acted.values()]) + "\n")
        ends = dict.fromkeys(self._acted, over), dict.fromkeys(self._acted, False)
        return self._look(), rewards, *ends, {side: {} for side in self._acted}


def episodes_of(folder: Path, sides: tuple[str, ...] = SIDES) -> dict[tuple[int, int], dict[str, list[float]]]:
    """The actions of each side in all episodes that ended, by environment and episode."""
    lines = [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    return {(number, episode): dict(zip(sides, acted, strict=True)) for number, episode, *acted in lines}


class Marked(torch.nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.mark = torch.nn.Parameter(torch.zeros(size))


@dataclass(frozen=True)
class Marking(mc.Algorithm):
    """Acts with its weight, and adds one to it in each update; an explorer adds a quarter."""

    size: int = 1

    def make_model(self, spaces: mc.Spaces) -> torch.nn.Module:
        return Marked(self.size)

    def act(self, model: Any, obs: Any, *, explore: Any, state: Any, mask: Any, generator: Any) -> mc.Action:
        value = float(model.mark.detach()[0]) + (0.25 if explore is not None else 0.0)
        return mc.Action(np.full((len(obs), 1), value, np.float32))

    def make_trainer(self, model: Any) -> Any:
        return Counting(model)


ROLES = {"main": "main", "rival": "main_exploiter", "hunter": "league_exploiter"}
BAND = 1_000.0  # between the weights of two policies


@dataclass(frozen=True)
class Banded(Marking):
    """Its actions also say which policy of a league it is."""

    place: int = 0

    def act(self, model: Any, obs: Any, **options: Any) -> mc.Action:
        chosen = super().act(model, obs, **options)
        return chosen._replace(action=chosen.action + np.float32(BAND * self.place))


class Stateless:
    """A trainer that saves nothing of its own."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Counting(Stateless):
    def __init__(self, model: Any) -> None:
        self.model = model

    def update(self, batch: Any) -> mc.Update:
        with torch.no_grad():
            self.model.mark.add_(1.0)
        tags = batch.obs[:, 1]
        return mc.Update({"loss": torch.zeros(()), "drawn": tags.float().mean()})


def weak(obs: Any) -> Any:
    assert obs.shape == (4,) and obs.dtype == np.float32
    return np.float32([ANCHOR])


def strong(obs: Any) -> Any:
    return np.float32([STRONG])


class Counted:
    """An anchor with an object for each copy, whose actions tell how often it acted in this episode."""

    def __init__(self) -> None:
        self.acted = 0

    def act(self, obs: Any) -> Any:
        self.acted = 0 if obs[3] == 0 else self.acted + 1
        return np.float32([-2.0 if self.acted == obs[3] else 0.0])
