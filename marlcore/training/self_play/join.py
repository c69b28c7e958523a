"""Where self-play joins the workers: the learner keeps opponents, actors seat them, the evaluator meets them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...interfaces import VectorEnvironment
from ...memory import SegmentHandle
from ...processes import Metric, Telemetry
from ...weights import ParameterStore
from ..loops import ActingModel, Candidate, Player, PublishedPolicy, Seat, choose_device
from ..workers import Blueprint, PolicyPlan, Worker, build_model, run_seed
from .anchors import make_anchors
from .league import League
from .matches import Matches
from .opponent_games import OpponentGames
from .players import FrozenPlayers
from .pool import Pool, held_by


@dataclass(frozen=True)
class SelfPlay:
    """The places of what self-play needs; see `Opponents` in workers/blueprint.py.

    Attributes:
        pool: of frozen opponents. results: of games, a lane for each actor.
    """

    pool: SegmentHandle
    results: SegmentHandle

    def join_league(
        self, blueprint: Blueprint, plan: PolicyPlan, model: ActingModel, worker: Worker, state: Mapping[str, Any]
    ) -> League:
        """See `Opponents`."""
        run_dir = plan.checkpoint.parents[1]
        pool = worker.hold(Pool(worker.hold(ParameterStore.attach(self.pool)), model, run_dir, plan.name))
        results = worker.hold(Telemetry.attach(self.results))
        report = partial(worker.report, plan.name)
        return League(blueprint.config.self_play, pool, results, run_dir, report, state)

    def join_matches(
        self,
        blueprint: Blueprint,
        worker: Worker,
        index: int,
        env: VectorEnvironment,
        seats: Mapping[str, Seat],
        policy: PublishedPolicy,
    ) -> Matches:
        """See `Opponents`."""
        config = blueprint.config
        generator = np.random.default_rng(run_seed(config, "opponents", index, worker.control.steps))
        pool = worker.hold(ParameterStore.attach(self.pool))
        anchors, frozen = _opponents(blueprint, pool, env.copies, generator)
        reporter = worker.hold(worker.hold(Telemetry.attach(self.results)).reporter(worker.name))

        def report(opponent: int, agent: str, result: int) -> None:
            reporter.report(Metric(time.monotonic(), worker.control.steps, str(opponent), agent, float(result)))

        parts = list(config.replay.mixture)
        return Matches(
            config.self_play, seats, env.ended, lambda: policy.extras, frozen, anchors, parts, generator, report
        )

    def join_games(
        self,
        blueprint: Blueprint,
        worker: Worker,
        env: VectorEnvironment,
        candidate: Candidate,
        seed: Callable[[int], int],
    ) -> OpponentGames:
        """See `Opponents` and `OpponentGames`."""
        generator = np.random.default_rng()  # seeded before each evaluation
        pool = worker.hold(ParameterStore.attach(self.pool))
        anchors, frozen = _opponents(blueprint, pool, env.copies, generator)
        return OpponentGames(
            env, candidate, blueprint.config, anchors, frozen, partial(held_by, pool), generator, seed,
            blueprint.policies[0].name, worker.report,
        )  # fmt: skip


def _opponents(
    blueprint: Blueprint, pool: ParameterStore, copies: int, generator: np.random.Generator
) -> tuple[list[Player], FrozenPlayers]:
    """The anchors and the pool's members as players in `copies` copies."""
    (plan,), config = blueprint.policies, blueprint.config
    device = choose_device(config.actor.device)
    model = build_model(plan, config, 0).acting.to(device)
    frozen = FrozenPlayers(
        plan.algorithm, plan.spaces, pool.subscriber(model), model, device, copies, config.replay.pad, generator,
        config.self_play.explore,
    )  # fmt: skip
    return make_anchors(plan, config, copies, generator), frozen
