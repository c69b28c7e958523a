"""Learners in their worker: each builds its model, feed and trainer, continues its predecessor, and saves."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from ...errors import TimedOut
from ...processes import DONE, READY, UPDATES
from ...weights import ParameterStore
from ..config import learner_names, schedules_of
from ..loops import FiniteCheck, Learner, PolicyModel, Publications, catch_up, choose_device, learn_until_stopped
from ..record import load_checkpoint, save_checkpoint
from .blueprint import Blueprint, League, PolicyPlan, build_model, run_seed
from .feeds import SavedFeed, feed_of
from .worker import Worker

log = logging.getLogger(__name__)


class LearnerWorker(Worker):
    """A learner process's work: it trains its policies in turn.

    Attributes:
        learners: of its policies.
    """

    def __init__(self, name: str, blueprint: Blueprint) -> None:
        super().__init__(name, blueprint.control, blueprint.telemetry, blueprint.began)
        mine = learner_names(blueprint.config, [plan.name for plan in blueprint.policies])[name]
        with ExitStack() as unless_built:
            unless_built.callback(self.close)
            indices = [i for i, plan in enumerate(blueprint.policies) if plan.name in mine]
            self.learners = [build_learner(i, blueprint, self) for i in indices]
            self._tallies = [self.control.tallies[blueprint.policies[i].name] for i in indices]
            self.count_updates()
            unless_built.pop_all()

    def learning(self) -> bool:
        return not self.control.stopping

    def count_updates(self) -> None:
        for tally, learner in zip(self._tallies, self.learners, strict=True):
            tally.store(UPDATES, learner.updates)
        self.counters.store(UPDATES, sum(learner.updates for learner in self.learners))
        self.beat()

    def finish(self) -> None:
        """Publishes and saves the last weights of each policy."""
        for learner in self.learners:
            learner.publish()
            learner.save()
        self.counters.store(DONE, 1)


def build_learner(index: int, blueprint: Blueprint, worker: Worker) -> Learner:
    """The learner of the index-th policy; a restarted one continues from its predecessor's state.

    From shared memory it takes the last published weights and the count of updates; from the last checkpoint it takes
    the rest of the trainer's state, or everything if shared memory holds no weights.
    """
    plan, config = blueprint.policies[index], blueprint.config
    settings = config.learner_of(plan.name)
    report = partial(worker.report, plan.name)
    device = choose_device(settings.device, index, settings.device_per_agent)
    model = build_model(plan, config, index).to(device)
    store = worker.hold(ParameterStore.attach(plan.weights))
    state = load_checkpoint(plan.checkpoint)
    updates = _restore(model, store, state)
    feed = feed_of(plan, index, config, worker, updates, device)
    league = None
    if blueprint.self_play is not None:
        league = blueprint.self_play.join_league(blueprint, plan, model.acting, worker, state.get("self_play", {}))
    publisher = worker.hold(store.publisher(model.acting))
    published = _addresses(model)
    if settings.compile != "off":
        model.whole.compile(mode=settings.compile)  # copies, such as the trainer's target, are not compiled
    trainer = plan.algorithm.make_trainer(model.whole)  # after the publisher moved the weights into its row
    if _addresses(model) != published:
        raise ValueError("make_trainer: expected it to change the model's tensors in place, but it replaced some")
    if state:
        trainer.load_state_dict(state["trainer"])
        again = updates != state["updates"]
        feed.restore(state, again)
        if not again:
            torch.set_rng_state(state["torch"])
    schedules = schedules_of(plan.algorithm, config)
    return Learner(
        feed,
        trainer,
        Publications(publisher, schedules, lambda: worker.control.steps, league.publish if league else None),
        settings,
        device,
        model.norm,
        report,
        save=partial(_save, plan, model, feed, league),
        further_reports=league.report if league else None,
        finite=FiniteCheck(plan.name, model, trainer.state_dict(), plan.checkpoint, state.get("updates")),
        clears=config.replay.clear_at_stage,
        updates=updates,
        stage=int(state.get("stage", 0)),
    )


def _addresses(model: PolicyModel) -> dict[str, int]:
    """Where the published tensors lie."""
    return {name: tensor.data_ptr() for name, tensor in model.acting.state_dict(keep_vars=True).items()}


def _restore(model: PolicyModel, store: ParameterStore, state: Mapping[str, Any]) -> int:
    """Gives a model its predecessor's weights: those of the checkpoint, and what was published since.

    Returns: their updates.
    """
    if state:
        model.restore(state)
    updates = int(state["updates"]) if state else 0
    if store.version:
        newest = copy.deepcopy(model.acting)  # since the store may hold older weights than the checkpoint
        subscriber = store.subscriber(newest)
        try:
            subscriber.pull()
        except TimedOut:  # the store's only slot is torn: its publisher died while writing it
            log.warning("the published weights are torn: continuing from the checkpoint")
        else:
            published = int(subscriber.extras["updates"])
            if published >= updates:
                model.acting.load_state_dict(newest.state_dict())
                return published
    return updates


def _save(
    plan: PolicyPlan, model: PolicyModel, feed: SavedFeed, league: League | None, state: Mapping[str, Any]
) -> None:
    """Saves what the learner's batches come from, then the checkpoint."""
    fed = feed.save()
    played = {} if league is None else {"self_play": league.state_dict()}
    save_checkpoint(plan.checkpoint, {**state, **model.saved(), **fed, **played, "torch": torch.get_rng_state()})
    if league is not None:
        league.write()


def run_learner(name: str, blueprint: Blueprint, attempt: int) -> None:
    """Runs a learner in its own process; see `run_worker`."""
    learners = list(learner_names(blueprint.config, [plan.name for plan in blueprint.policies]))
    torch.manual_seed(run_seed(blueprint.config, "torch-learner", learners.index(name), attempt - 1))
    worker = LearnerWorker(name, blueprint)
    try:
        worker.counters.store(READY, attempt)
        learn_until_stopped(worker.learners, worker)
        if worker.control.finishing:
            catch_up(worker.learners, worker)
        worker.finish()
    finally:
        worker.close()
