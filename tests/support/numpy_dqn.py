"""The plainest compiled policy, DQN's dueling network by NumPy, and an environment, in a module without torch."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from marlcore.interfaces import Action


class NumpyDQN:
    """Acts as DQN does on plain vectors with unmasked, discrete actions; without normalization or first priorities."""

    weights: Mapping[str, Any] = {}

    def load(self, weights: Mapping[str, Any]) -> None:
        self.weights = weights
        parameters = [array for name, array in weights.items() if name.endswith(("weight", "bias"))]
        self._layers = [*zip(parameters[::2], parameters[1::2], strict=True)]

    def act(self, obs: Any, *, explore: Any, mask: Any, generator: np.random.Generator) -> Action:
        assert mask is None
        obs = obs.reshape(len(obs), -1)
        explores, place = np.zeros((2, len(obs))) if explore is None else generator.random((2, len(obs)))
        explores = explores < (0.0 if explore is None else explore["epsilon"])
        for weight, bias in self._layers[:-1]:
            obs = np.maximum(obs @ weight.T + bias, 0.0)
        weight, bias = self._layers[-1]
        advantages = (obs @ weight.T + bias)[:, :-1]  # the state's value, in the last column, changes no choice
        return Action(np.where(explores, (place * advantages.shape[1]).astype(np.int64), advantages.argmax(1)))

    def first_priority(self, before: Any, reward: Any, discount: float, after: Any) -> Any:
        raise NotImplementedError


class Asked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole; each process that plays it writes down which of the slow libraries it has imported."""

    def __init__(self, folder: Path) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._folder = folder

    def reset(self, **options: Any) -> Any:
        (self._folder / f"{os.getpid()}").write_text(" ".join(sorted({"torch", "numba"} & sys.modules.keys())))
        return super().reset(**options)


class Drawing(Asked):
    """Imports torch where it is made; each process writes down torch's seed."""

    def __init__(self, folder: Path) -> None:
        import torch

        super().__init__(folder)
        self._seed = torch.initial_seed

    def reset(self, **options: Any) -> Any:
        reset = super().reset(**options)
        (self._folder / f"{os.getpid()}").write_text(str(self._seed()))
        return reset
