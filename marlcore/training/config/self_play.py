"""The settings of self-play."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from ...checks import absolute
from ...declared import By, Declared, Number, Whole
from ...references import is_importable, reference_to

BOTH = "both"
SHARE = Number(0, 1)


def _last_part(reference: str) -> str:
    if reference.endswith(".pt"):
        return reference.removesuffix(".pt").rpartition("/")[2]
    return reference.rpartition(":")[2].rpartition(".")[2]


def _anchors(label: str, anchors: Any) -> dict[str, float]:
    """The shares by reference; functions and classes that can be imported become references."""
    if not isinstance(anchors, Mapping):
        raise TypeError(f"{label}: expected shares by opponent, got {anchors!r}")
    shares = {}
    for anchor, share in anchors.items():
        name = anchor if isinstance(anchor, str) else reference_to(anchor) or ""
        if not name.endswith(".pt") and (":" not in name or not is_importable(name)):
            raise ValueError(f"{label}: expected module:name of what can be imported, or a checkpoint, got {anchor!r}")
        shares[name] = float(SHARE.checked(f"{label} {name}", share))
    if len({_last_part(name) for name in shares}) < len(shares):
        raise ValueError(f"{label}: expected names that differ in their last parts, got {list(shares)}")
    return shares


@dataclass(frozen=True)
class SelfPlayConfig(Declared):
    """Self-play: in environments of two agents, one policy learns against frozen copies of itself."""

    pool: Annotated[int, Whole(0)] = 0
    """Frozen opponents held; a new one replaces the oldest. 0: no self-play."""
    admit_updates: Annotated[int | None, Whole(1)] = 1000
    """Updates of the learner after which a copy of it joins the pool; None: only past admit_win_rate."""
    admit_win_rate: Annotated[float | None, Number(0, 1)] = None
    """Win rate over the last `window` episodes, since the last admission, from which a copy joins the pool at once."""
    window: Annotated[int, Whole(1)] = 100
    """Episodes, the last ones, of which a win rate is the average; draws count half."""
    draw: Literal["uniform", "recent", "pfsp"] = "pfsp"
    """How an episode's opponent is drawn from the pool: uniformly; in proportion to 1 / age^power, the newest one's age
    being 1; or to (1 - win rate)^power, prioritized fictitious self-play (Vinyals et al. 2019)."""
    power: Annotated[float, Number(0)] = 2.0
    """The exponent of `draw`."""
    latest: Annotated[float, SHARE] = 0.2
    """Share of episodes against the latest policy itself, which learns from both sides."""
    anchors: Annotated[dict[str, float], By(_anchors)] = field(default_factory=dict)
    """Shares of episodes against opponents that stay the same: module:name of a function of an observation that returns
    an action, or of a class whose objects have a method act(obs), one for each copy; or a checkpoint, FILE.pt. Anchors
    also play in evaluations, whatever their share."""
    side: str = BOTH
    """The agent that the learning policy plays; both: it takes the sides in turn, episode by episode."""
    explore: bool = False
    """Frozen opponents explore as at their admission, instead of acting greedily."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.admit_updates is None and self.admit_win_rate is None:
            raise ValueError("admit_updates: expected a number, or an admit_win_rate, got None for both")
        if self.from_pool < -1e-9:
            total = self.latest + sum(self.anchors.values())
            raise ValueError(f"anchors: expected shares that are at most 1 with `latest`, got {total:g}")

    @property
    def from_pool(self) -> float:
        return 1.0 - self.latest - sum(self.anchors.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The anchors' names: "anchor:" and the last part of the reference."""
        return tuple(f"anchor:{_last_part(anchor)}" for anchor in self.anchors)


def absolute_anchors(anchors: Mapping[str, float]) -> dict[str, float]:
    """The shares of anchors, with the absolute paths of checkpoints."""
    return {str(absolute(name)) if name.endswith(".pt") else name: share for name, share in anchors.items()}
