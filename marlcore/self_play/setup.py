"""Sets up self-play in a run's parent: checks the settings, and creates the pools and the lanes of results."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from ..config import BOTH, AssignedPolicy, Config, SelfPlayConfig, actor_names, node_names, policy_names, schedules_of
from ..devices import choose_device
from ..interfaces import Algorithm
from ..loops import LATEST, part_of_tag
from ..memory import SegmentHandle
from ..processes import Telemetry
from ..spec import Field
from .matchmaking import Standings, pool_odds
from .opponents import make_anchors, name_of
from .pool import pool_store

T = TypeVar("T")

POLICY = "main"  # the policy's name if the configuration gives none


@dataclass(frozen=True)
class SelfPlay:
    """Handles of the shared memory that self-play adds for a policy."""

    pool: SegmentHandle  # of frozen opponents
    results: SegmentHandle  # of games, a lane for each actor and each other machine


def policies_in_self_play(config: Config, agents: tuple[str, ...]) -> dict[str, str] | None:
    """Maps each agent to the policy's name; returns None in a league. Raises ValueError if settings conflict."""
    if len(agents) < 2:
        raise ValueError(f"self_play: expected an environment of two or more agents, got {list(agents)}")
    if config.self_play.roles:
        if config.policies is not None:
            expected = "None for self_play.roles, whose policies play every agent"
            raise ValueError(f"policies: expected {expected}, got {config.policies}")
        return None
    names = policy_names(list(agents), config.policies or dict.fromkeys(agents, POLICY))
    if len(set(names.values())) > 1:
        raise ValueError(f"self_play: expected one policy for all agents, got {names}")
    return names


def check_self_play(config: Config, policy: AssignedPolicy) -> None:
    """Checks self-play's settings, and that the replay has a part for each opponent. Raises ValueError or TypeError."""
    settings = config.self_play
    if settings.side != BOTH and settings.side not in policy.agents:
        raise ValueError(f"self_play.side: expected {BOTH} or one of {list(policy.agents)}, got {settings.side!r}")
    games = (1 + len(settings.anchors)) * (len(policy.agents) if settings.side == BOTH else 1)
    if config.evaluation.evaluates and config.evaluation.episodes < games:
        raise ValueError(
            f"evaluation.episodes: expected at least {games}, one on each side against each anchor and the pool, "
            f"got {config.evaluation.episodes}"
        )
    for make in make_anchors(policy, config, 1, np.random.default_rng(0), choose_device("cpu")):
        make()
    pool_odds(settings, Standings(np.array([0.5, 0.25]), np.array([0, 2]), np.ones(2)))  # calls a function of the user
    parts = list(config.replay.mixture)
    for number in (LATEST, *(-i - 1 for i in range(len(settings.anchors)))):
        try:
            part_of_tag(name_of(number, settings.names), parts)
        except ValueError as error:
            raise ValueError(f"self_play: {error}") from None


def published_numbers(algorithm: Algorithm, config: Config) -> dict[str, tuple[int, ...] | Field]:
    """Returns the fields of the numbers that are published with a policy's weights: counts and scheduled values."""
    return {"updates": (), "step": (), **dict.fromkeys(schedules_of(algorithm, config), ())}


def odds_fields(config: SelfPlayConfig) -> dict[str, tuple[int, ...] | Field]:
    """Returns the fields of opponents' numbers and odds, published with a policy's weights; {} without self-play."""
    if not config.pool:
        return {}
    return {"opponents": Field((config.opponents,), "int64"), "odds": Field((config.opponents,), "float64")}


def create_self_play(
    stack: ExitStack, policies: tuple[AssignedPolicy, ...], config: Config, run_dir: Path
) -> tuple[SelfPlay, ...]:
    """Creates each policy's pool and lanes of results; () without self-play. Raises ValueError as `pool_store` does."""
    created: list[SelfPlay] = []
    if not config.self_play.pool:
        return ()
    from ..loops import build_model  # which imports torch

    for policy in policies:
        numbers = published_numbers(policy.algorithm, config.of(policy.name))
        pool = pool_store(build_model(policy, config), config.self_play.pool, numbers, run_dir, policy.name)
        stack.enter_context(pool)
        results = stack.enter_context(closing(Telemetry.create([*actor_names(config), *node_names(config)])))
        created.append(SelfPlay(pool.handle, results.handle))
    return tuple(created)


def own_first(items: Sequence[T], place: int) -> list[T]:
    """Rotates a league's items, one for each policy, so that the item with index `place` comes first."""
    return [*items[place:], *items[:place]]
