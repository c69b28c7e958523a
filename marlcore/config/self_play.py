"""The settings of self-play."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..checks import absolute, brief, check_type, did_you_mean, short
from ..declared import Declared, Number, Whole
from ..processes import encoded_name
from ..references import is_importable, reference_to
from .schedules import Schedule, Scheduled
from .sections import Reference, probability

BOTH = "both"
MAIN, MAIN_EXPLOITER = "main", "main_exploiter"
ROLES = (MAIN, MAIN_EXPLOITER, "league_exploiter")
DRAWS = ("uniform", "recent", "pfsp", "variance", "rating")
COUNTS_CHECKED = (0, 10**9)  # the counts at which the sum of the shares is checked


def _last_part(reference: str) -> str:
    if reference.endswith(".pt"):
        return reference.removesuffix(".pt").rpartition("/")[2]
    return reference.rpartition(":")[2].rpartition(".")[2]


def _anchors(label: str, anchors: Any) -> dict[str, Schedule]:
    """Returns the anchors' shares by reference; the reference to a function or class is module:name."""
    check_type(label, anchors, Mapping, expected="shares by opponent")
    shares = {}
    for anchor, share in anchors.items():
        name = anchor if isinstance(anchor, str) else reference_to(anchor) or ""
        if not name.endswith(".pt") and not is_importable(name):
            got = brief(anchor)
            raise ValueError(f"{label}: expected module:name of an importable object, or a checkpoint, got {got}")
        shares[name] = probability(f"{label} {short(name)}", share)
    if len({_last_part(name) for name in shares}) < len(shares):
        raise ValueError(f"{label}: expected names that differ in their last parts, got {brief(list(shares))}")
    return shares


def _roles(label: str, roles: Any) -> dict[str, str]:
    check_type(label, roles, Mapping, expected="roles by policy")
    for policy, role in roles.items():
        if not isinstance(policy, str) or not policy:
            raise TypeError(f"{label}: expected names of policies, got {brief(policy)}")
        encoded_name(label, policy)  # refuses names that metrics cannot hold
        if role not in ROLES:
            expected = f"{label}: expected one of {', '.join(ROLES)} for {brief(policy)}"
            raise ValueError(f"{expected}, got {brief(role)}{did_you_mean(role, ROLES)}")
    if roles and MAIN not in roles.values():
        raise ValueError(f"{label}: expected a policy of the role {MAIN}, got {dict(roles)}")
    return dict(roles)


@dataclass(frozen=True)
class SelfPlayConfig(Declared):
    """Self-play: in environments of two or more agents, one policy learns against frozen copies of itself."""

    pool: Annotated[int, Whole(0)] = 0
    """Number of frozen opponents in the pool; a new opponent replaces the oldest. 0: no self-play."""
    admit_updates: Annotated[int | None, Whole(1)] = 1000
    """Updates of the learner after which a copy of it joins the pool; None: a copy joins only by admit_win_rate."""
    admit_win_rate: Annotated[float | None, Number(0, 1)] = None
    """Win rate at which a copy joins the pool at once, taken over the last `window` episodes since a copy last
    joined."""
    window: Annotated[int, Whole(1)] = 100
    """Number of most recent episodes over which a win rate is taken; a draw counts half."""
    draw: Annotated[str, Reference(f"{', '.join(DRAWS)}, or module:name of a function", DRAWS)] = "pfsp"
    """How an opponent is drawn from the pool. uniform: each is equally likely. The others weight each opponent. recent:
    by 1 / age^power, the newest opponent's age being 1. pfsp: by (1 - w)^power, variance: by w (1 - w), where w is the
    win rate against the opponent (Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z, Methods: f_hard and f_var).
    rating: by how even the ratings expect a game to be. module:name: by a function of the win rates and the
    numbers of games, arrays [k], oldest opponent first, that returns k weights."""
    power: Annotated[float, Number(0)] = 2.0
    """The exponent if `draw` is recent or pfsp."""
    latest: Annotated[Scheduled, probability] = 0.2
    """Share of episodes against the latest policy itself, which learns from both sides; a number or a schedule."""
    anchors: Annotated[Mapping[str, Scheduled], _anchors] = field(default_factory=dict)
    """Shares of episodes, numbers or schedules, against opponents that stay the same: module:name of a function that
    returns an action for an observation, or of a class whose objects, one for each copy and agent, have a method
    act(obs); or a checkpoint, FILE.pt. Anchors also play in evaluations, whatever their share."""
    begin_win_rate: Annotated[float | None, Number(0, 1)] = None
    """Win rate against the anchors, over the last `window` episodes, at which self-play begins; before, the anchors are
    the only opponents, and no copy joins the pool. None: self-play begins at once, or at begin_step."""
    begin_step: Annotated[int | None, Whole(1)] = None
    """The step of the run at which self-play begins at the latest; see begin_win_rate."""
    block: Annotated[int, Whole(1)] = 1
    """Episodes in a row against an opponent before a copy of the environment draws the next one."""
    rollback: Annotated[float | None, Number(above=0, high=1)] = None
    """Largest allowed drop of the learner's win rate against the anchors, over `window` episodes, below its highest
    value so far. After a larger drop, the learner returns to the weights and the optimizer that it had at the highest
    value. None: it never returns."""
    rating: Literal["elo", "trueskill"] = "elo"
    """The ratings in the table of results: Elo's (1978), or TrueSkill's (Herbrich et al. 2006) by the package
    trueskill, `pip install "marlcore[ratings]"`."""
    elo_k: Annotated[float, Number(above=0)] = 16.0
    """Elo's K: the points that a game moves at most."""
    side: str = BOTH
    """The agent that the learning policy plays; both: the policy plays each agent in turn, episode by episode. An
    opponent is drawn for every other agent."""
    explore: bool = False
    """Whether opponents explore, as they did when they joined the pool, instead of acting greedily."""
    roles: Annotated[Mapping[str, str], _roles] = field(default_factory=dict)
    """The role of each policy in a league (Vinyals et al. 2019, Methods), where each policy plays every agent: main;
    main_exploiter, whose opponents are the newest main policies; league_exploiter, whose opponents are the pools of all
    policies. Empty: there is one policy, main."""
    reset: Annotated[float, Number(0, 1)] = 0.25
    """The probability that a league exploiter returns to its first weights when a copy of it joins the pool; a main
    exploiter always does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.admit_updates is None and self.admit_win_rate is None:
            raise ValueError("admit_updates: expected a number, or an admit_win_rate, got None for both")
        for count in COUNTS_CHECKED:
            total = float(self.shares_at({"steps": count, "updates": count}).sum())
            if total > 1.0 + 1e-9:
                raise ValueError(f"anchors: expected shares that sum to at most 1 with `latest`, got {total:g}")
        for name, usual in {"roles": {}, "anchors": {}, "side": BOTH}.items():
            if getattr(self, name) != usual and not self.pool:
                raise ValueError(f"{name}: expected {usual} without a pool, got {brief(getattr(self, name))}")
        for name in ("begin_win_rate", "begin_step", "rollback"):
            if getattr(self, name) is not None and not self.anchors:
                raise ValueError(f"{name}: expected None without anchors, got {brief(getattr(self, name))}")
        if self.rating == "trueskill" and importlib.util.find_spec("trueskill") is None:
            raise ValueError(
                'rating: expected elo, or trueskill with its package (pip install "marlcore[ratings]"), got trueskill'
            )

    def shares_at(self, counts: Mapping[str, int]) -> NDArray[np.float64]:
        """Returns the shares [1 + anchors] of the latest policy and the anchors, at counts of "steps" and "updates"."""
        schedules = [Schedule.from_value("share", share) for share in (self.latest, *self.anchors.values())]
        return np.array([schedule.at(counts[schedule.of]) for schedule in schedules])

    def role_of(self, policy: str) -> str:
        return self.roles.get(policy, MAIN)

    @property
    def opponents(self) -> int:
        """The largest number of opponents that a policy can have: newest policies, anchors, and pools' members."""
        return len(self.anchors) + max(len(self.roles), 1) * (1 + self.pool)

    @property
    def names(self) -> tuple[str, ...]:
        """The anchors' names: "anchor:" followed by the last part of the reference."""
        return tuple(f"anchor:{_last_part(anchor)}" for anchor in self.anchors)


def absolute_anchors(anchors: Mapping[str, Scheduled]) -> dict[str, Scheduled]:
    """Returns the anchors' shares, with absolute paths of checkpoints."""
    return {str(absolute(name)) if name.endswith(".pt") else name: share for name, share in anchors.items()}
