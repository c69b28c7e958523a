"""Ratings of the learning policy and of its opponents; each game changes the ratings of its two players."""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeAlias

from ..config import SelfPlayConfig


@dataclass(frozen=True)
class Elo:
    """Elo's ratings (Elo 1978, The Rating of Chessplayers): a game with score S changes a rating R to R + k (S - E).

    The expected score is E = 1 / (1 + 10^((R of the other player - R) / 400)); S is 1, 1/2 or 0. A rating is a list of
    numbers, of which the first is the strength.
    """

    k: float
    name: ClassVar[str] = "elo"

    @property
    def first(self) -> list[float]:
        """The rating before any game."""
        return [1000.0]

    def after(self, policy: list[float], opponent: list[float], result: int) -> tuple[list[float], list[float]]:
        """Returns both ratings after a game that the policy won (1), drew (0) or lost (-1)."""
        moved = self.k * ((result + 1) / 2 - self._expected(policy, opponent))
        return [policy[0] + moved], [opponent[0] - moved]

    def _expected(self, policy: list[float], opponent: list[float]) -> float:
        distance = min(max((opponent[0] - policy[0]) / 400.0, -300.0), 300.0)  # so that no power overflows
        return float(1.0 / (1.0 + 10.0**distance))

    def evenness(self, policy: list[float], opponent: list[float]) -> float:
        """Returns how even a game would be, in [0, 1]: 4 E (1 - E), where E is the expected score."""
        expected = self._expected(policy, opponent)
        return 4.0 * expected * (1.0 - expected)

    def shown(self, rating: list[float]) -> dict[str, float]:
        return {"elo": rating[0]}


class TrueSkill:
    """Ratings by the package trueskill: the mean and the standard deviation of a skill, at first 25 and 25/3.

    Herbrich, Minka and Graepel 2006, "TrueSkill: A Bayesian skill rating system".
    """

    name: ClassVar[str] = "trueskill"

    def __init__(self) -> None:
        import trueskill

        self._of: Any = trueskill.Rating
        env = trueskill.TrueSkill()
        self._rate: Any = partial(trueskill.rate_1vs1, env=env)
        self._quality: Any = partial(trueskill.quality_1vs1, env=env)

    @property
    def first(self) -> list[float]:
        return [25.0, 25.0 / 3.0]

    def after(self, policy: list[float], opponent: list[float], result: int) -> tuple[list[float], list[float]]:
        winner, loser = (opponent, policy) if result < 0 else (policy, opponent)
        rated = self._rate(self._of(*winner), self._of(*loser), drawn=result == 0)
        higher, lower = ([float(one.mu), float(one.sigma)] for one in rated)
        return (lower, higher) if result < 0 else (higher, lower)

    def evenness(self, policy: list[float], opponent: list[float]) -> float:
        """Returns trueskill's quality, in [0, 1]: the chance of a draw, relative to equal players of known skill."""
        return float(self._quality(self._of(*policy), self._of(*opponent)))

    def shown(self, rating: list[float]) -> dict[str, float]:
        return {"mu": rating[0], "sigma": rating[1]}


Rating: TypeAlias = Elo | TrueSkill


def rating_of(config: SelfPlayConfig) -> Rating:
    return TrueSkill() if config.rating == "trueskill" else Elo(config.elo_k)
