"""How a policy's learner keeps its opponents, how an actor seats them, and how the evaluator meets them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ...interfaces import VectorEnvironment
from ...processes import Metric, Reporter, Telemetry
from ...weights import ParameterStore
from ..actor import Acting, Seat
from ..blueprint import Blueprint, PolicyPlan, build_model, run_seed
from ..choosers import Chooser
from ..evaluator import Candidate
from ..learner import choose_device
from ..policy import ActingModel, PublishedPolicy
from ..routes import Routes
from ..worker import Worker
from .anchors import make_anchors
from .league import League
from .matches import Matches
from .opponent_games import OpponentGames
from .players import FrozenPlayers
from .pool import Pool, held_by
from .seat import SharedSeat

__all__ = ["join_games", "join_league", "join_matches"]


def join_league(
    blueprint: Blueprint, plan: PolicyPlan, model: ActingModel, worker: Worker, state: Mapping[str, Any]
) -> League | None:
    """The opponents as the policy's learner keeps them; None without self-play.

    Args:
        state: of the checkpoint.
    """
    if blueprint.self_play is None:
        return None
    run_dir = plan.checkpoint.parents[1]
    store = worker.hold(ParameterStore.attach(blueprint.self_play.pool))
    pool = worker.hold(Pool(store, model, run_dir, plan.name))
    results = worker.hold(Telemetry.attach(blueprint.self_play.results))
    report = partial(worker.report, plan.name)
    return League(blueprint.config.self_play, pool, results, run_dir, report, state)


def join_matches(
    blueprint: Blueprint,
    worker: Worker,
    index: int,
    env: VectorEnvironment,
    seats: Mapping[str, Seat],
    policy: PublishedPolicy,
) -> dict[str, Acting]:
    """The seats of both agents, shared with their opponents.

    Args:
        policy: which learns, and acts in all seats.
    """
    assert blueprint.self_play is not None
    config = blueprint.config
    generator = np.random.default_rng(run_seed(config, "opponents", index, worker.control.steps))
    pool = worker.hold(ParameterStore.attach(blueprint.self_play.pool))
    anchors, frozen = _opponents(blueprint, pool, env.copies, generator)
    matches = Matches(
        config.self_play, env.agents, env.ended, lambda: policy.published, frozen, anchors,
        Routes(config.replay.mixture).part_of, generator,
    )  # fmt: skip
    results = worker.hold(Telemetry.attach(blueprint.self_play.results))
    report = _report(worker.hold(results.reporter(worker.name)), lambda: worker.control.steps)
    for seat in seats.values():
        seat.parts = matches.parts
    return {agent: SharedSeat(agent, seat, matches, report) for agent, seat in seats.items()}


def join_games(
    blueprint: Blueprint, worker: Worker, env: VectorEnvironment, candidate: Candidate, seed: Callable[[int], int]
) -> OpponentGames:
    """The games in which the evaluator measures the policy; see `OpponentGames`."""
    assert blueprint.self_play is not None
    generator = np.random.default_rng()  # seeded before each evaluation
    pool = worker.hold(ParameterStore.attach(blueprint.self_play.pool))
    anchors, frozen = _opponents(blueprint, pool, env.copies, generator)
    return OpponentGames(
        env, candidate, blueprint.config, anchors, frozen, partial(held_by, pool), generator, seed,
        blueprint.policies[0].name, worker.report,
    )  # fmt: skip


def _opponents(
    blueprint: Blueprint, pool: ParameterStore, copies: int, generator: np.random.Generator
) -> tuple[list[Chooser], FrozenPlayers]:
    """The anchors and the pool's members as players in `copies` copies."""
    (plan,), config = blueprint.policies, blueprint.config
    device = choose_device(config.actor.device)
    model = build_model(plan, config, 0).acting.to(device)
    frozen = FrozenPlayers(
        plan.algorithm, plan.spaces, pool.subscriber(model), model, device, copies, config.replay.pad, generator,
        config.self_play.explore,
    )  # fmt: skip
    return make_anchors(plan, config, copies, generator), frozen


def _report(reporter: Reporter, steps: Callable[[], int]) -> Callable[[int, str, int], None]:
    def report(opponent: int, agent: str, result: int) -> None:
        reporter.report(Metric(time.monotonic(), steps(), str(opponent), agent, float(result)))

    return report
