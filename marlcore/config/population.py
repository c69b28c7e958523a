"""The settings of a population: the hyperparameters in which its members differ, and the search for better ones."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np

from ..checks import brief, is_number
from ..declared import Declared, Number, Whole
from .sections import Count


@dataclass(frozen=True)
class Uniform:
    """Uniformly distributed numbers from `low` to `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        numbers = [is_number(end) and math.isfinite(end) for end in (self.low, self.high)]
        if not all(numbers) or self.low >= self.high:
            kind = type(self).__name__
            raise ValueError(f"{kind}: expected two numbers, the lower one first, got {self.low!r} and {self.high!r}")

    @property
    def ends(self) -> tuple[float, float]:
        """The range's ends: a setting that allows both allows every value in between."""
        return float(self.low), float(self.high)

    def restored(self, label: str, value: Any) -> float:
        """Returns a value that was read from a file. Raises ValueError if it is outside the distribution."""
        return float(Number(self.low, self.high)(label, value))

    def draw(self, generator: np.random.Generator) -> float:
        return float(generator.uniform(self.low, self.high))

    def perturbed(self, value: float, factor: float) -> float:
        """Returns the value times `factor`, kept within the range."""
        return min(max(value * factor, self.low), self.high)


@dataclass(frozen=True)
class LogUniform(Uniform):
    """Log-uniformly distributed numbers from `low` to `high`, which are above 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low <= 0:
            raise ValueError(f"LogUniform: expected numbers above 0, got {brief(self.low)}")

    def draw(self, generator: np.random.Generator) -> float:
        drawn = math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        return min(max(drawn, self.low), self.high)


@dataclass(frozen=True, init=False)
class Choice:
    """One of several options in a meaningful order, such as Choice(16, 32, 64); perturbed, it becomes a neighbour."""

    options: tuple[Any, ...]

    def __init__(self, *options: Any) -> None:
        if len(options) < 2:
            raise ValueError(f"Choice: expected at least two options, got {brief(options)}")
        object.__setattr__(self, "options", options)

    @property
    def ends(self) -> tuple[Any, ...]:
        """All options; a setting that may vary must allow each of them."""
        return self.options

    def restored(self, label: str, value: Any) -> Any:
        """See `Uniform.restored`."""
        for option in self.options:
            if json.dumps(option) == json.dumps(value):
                return option
        raise ValueError(f"{label}: expected one of {brief(self.options)}, got {brief(value)}")

    def draw(self, generator: np.random.Generator) -> Any:
        return self.options[int(generator.integers(len(self.options)))]

    def perturbed(self, value: Any, factor: float) -> Any:
        """Returns the next option if `factor` is above 1, otherwise the previous one."""
        place = self.options.index(value) + (1 if factor > 1 else -1)
        return self.options[min(max(place, 0), len(self.options) - 1)]


Distribution: TypeAlias = Uniform | Choice


def _searched(label: str, settings: Any) -> dict[str, Distribution]:
    if not isinstance(settings, Mapping) or not settings:
        raise ValueError(f"{label}: expected distributions by the names of settings, got {brief(settings)}")
    for name, distribution in settings.items():
        if not isinstance(distribution, Distribution):
            expected = f"{label}: expected a Uniform, a LogUniform or a Choice for {name!r}"
            raise ValueError(f"{expected}, got {brief(distribution)}")
    return dict(settings)


def _factors(label: str, factors: Any) -> tuple[float, ...]:
    if not isinstance(factors, tuple) or not factors:
        raise ValueError(f"{label}: expected a tuple of factors, got {brief(factors)}")
    return tuple(Number(above=0)(label, factor) for factor in factors)


@dataclass(frozen=True)
class PopulationConfig(Declared):
    """A population, such as PopulationConfig(settings={"algorithm.learning_rate": LogUniform(1e-5, 1e-2)}).

    Raises ValueError, in one line, if a setting is out of range or has another type.
    """

    settings: Annotated[dict[str, Distribution], _searched]
    """The distribution of each setting that differs between members, by its dotted name, such as "learner.gamma", or
    "algorithm.learning_rate" for a hyperparameter."""
    size: Annotated[int, Whole(2)] = 16
    """Members; each is a run with settings of its own."""
    parallel: Count = 2
    """Members that train at a time; 1 in serial mode."""
    interval: Count = 10_000
    """Steps between a member's comparisons with the scores of the others; with "halving", steps before its first
    comparison."""
    method: Literal["pbt", "random", "halving"] = "pbt"
    """pbt: losers copy winners, and change the settings (Jaderberg et al. 2017). random: each member keeps its settings
    for all its steps. halving: of the members that have taken equally many steps, the best 1/eta continue until they
    have taken eta times as many (Jamieson & Talwalkar 2016); a member continues as soon as it is among the best (Li et
    al. 2020)."""
    share: Annotated[float, Number(above=0, high=0.5)] = 0.25
    """With pbt: the fraction of members at each end of the ranking; those at the low end copy those at the high end."""
    factors: Annotated[tuple[float, ...], _factors] = (0.8, 1.2)
    """With pbt: a copied number is multiplied by one of these factors, within its range; a copied Choice moves to the
    option before or after."""
    resample: Annotated[float, Number(0, 1)] = 0.25
    """With pbt: the probability that a copied setting is drawn again instead of changed."""
    eta: Annotated[int, Whole(2)] = 3
    """With halving: one of `eta` members continues."""
