"""How a learner draws its batches: from its policy's replay, or a mixture of the replay's parts."""

from __future__ import annotations

from typing import Any

from ..interfaces import ReplaySource
from ..replay import Mixture, ReplayBuffer, Sampler
from .blueprint import PolicyPlan
from .config import Config

__all__ = ["Draws", "make_draws", "resumed_draws"]

Draws = Sampler | Mixture
RANDOM = ("generator", "batches")  # of a sampler's state, what does not concern the rows


def make_draws(replay: ReplayBuffer, plan: PolicyPlan, config: Config, source: ReplaySource, seed: int) -> Draws:
    """The sampler of a policy's replay, by the settings and what the algorithm asked for."""
    settings, shares = config.learner_of(plan.name), config.replay.mixture
    options: dict[str, Any] = {
        "stack": config.replay.frames,
        "n_step": source.n_step,
        "gamma": settings.gamma,
        "seed": seed,
        "pad": config.replay.pad,
        "prioritized": source.prioritized,
        "sequence": source.sequence,
    }
    if not shares:
        return replay.sampler(settings.batch_size, min_size=settings.warmup, **options)
    size = len(plan.agents) * config.lanes
    lanes = [range(part * size, (part + 1) * size) for part in range(len(shares))]
    total = sum(shares.values())
    fractions = [share / total for share in shares.values()]
    least = max(1, int(settings.warmup * min(fraction for fraction in fractions if fraction > 0)))
    return Mixture([replay] * len(shares), fractions, settings.batch_size, min_size=least, lanes=lanes, **options)


def resumed_draws(saved: dict[str, Any], fresh: dict[str, Any], same_rows: bool, again: bool) -> dict[str, Any]:
    """The state from which draws continue.

    Args:
        saved: of a checkpoint. fresh: of a new sampler.
        same_rows: the replay holds the rows of the checkpoint; otherwise its priorities are of others.
        again: updates were made since the checkpoint, whose random numbers must not be repeated.
    """
    if not same_rows:
        saved = fresh | {name: value for name, value in saved.items() if _last_part(name) in RANDOM}
    if again:
        saved = saved | {name: value for name, value in fresh.items() if _last_part(name) == "generator"}
    return saved


def _last_part(name: str) -> str:
    """The name without the number of a mixture's part."""
    return name.rpartition(".")[2]
