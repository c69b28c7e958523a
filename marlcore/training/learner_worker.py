"""Learners in their worker: each builds its model, feed and trainer, continues its predecessor, and saves."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..errors import TimedOut
from ..processes import DONE, READY, UPDATES
from ..weights import ParameterStore
from .blueprint import Blueprint, PolicyPlan, build_model, run_seed, schedules_of
from .checkpoints import load_checkpoint, save_checkpoint
from .feeds import Feed, feed_of
from .finite import FiniteCheck
from .learner import Beginning, Learner, Publications, choose_device, crosses
from .names import learner_names
from .policy import PolicyModel
from .self_play.join import join_league
from .self_play.league import League
from .worker import WAIT_S, Worker

__all__ = ["LearnerWorker", "run_learner"]

SHARED_WAIT_S = 0.005  # for one of several policies without data in a learner process
log = logging.getLogger(__name__)


class PolicyLearner:
    """A policy's learner in its worker; a restarted one continues from its predecessor's state.

    From shared memory it takes the last published weights and the count of updates; from the last checkpoint it takes
    the rest of the trainer's state, or everything if shared memory holds no weights.

    Attributes:
        name: of the policy.
    """

    def __init__(self, index: int, blueprint: Blueprint, worker: Worker) -> None:
        plan, config = blueprint.policies[index], blueprint.config
        settings = config.learner_of(plan.name)
        self.name = plan.name
        self._worker = worker
        self._log_interval = settings.log_interval
        self._counters = worker.control.tallies[plan.name]
        device = choose_device(settings.device, index, settings.device_per_agent)
        model = build_model(plan, config, index).to(device)
        store = worker.hold(ParameterStore.attach(plan.weights))
        state = load_checkpoint(plan.checkpoint)
        updates = _restore(model, store, state)
        self._feed = feed = feed_of(plan, index, config, worker, updates, device)
        self._league = join_league(blueprint, plan, model.acting, worker, state.get("self_play", {}))
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
        if feed.on_policy:
            settings = replace(settings, publish_interval=1)
        self._learner = Learner(
            feed.batches,
            trainer,
            Publications(
                publisher,
                schedules_of(plan.algorithm, config),
                lambda: worker.control.steps,
                None if self._league is None else self._league.publish,
            ),
            settings,
            device,
            prioritized=feed.prioritized,
            norm=model.norm,
            report=partial(worker.report, plan.name),
            save=partial(_save, plan, model, feed, self._league),
            finite=FiniteCheck(plan.name, model, trainer.state_dict(), plan.checkpoint, state.get("updates")),
            clears=config.replay.clear_at_stage,
            beginning=Beginning(updates, int(state.get("stage", 0))),
        )
        self._counters.store(UPDATES, updates)

    @property
    def updates(self) -> int:
        """Made so far, by all its processes."""
        return self._learner.updates

    @property
    def due(self) -> bool:
        """Whether an update is due by `updates_per_step`, or drawn ahead; never when the run is free."""
        return self._feed.due

    def step(self, wait_s: float) -> bool:
        """Makes one update, if there is data within `wait_s` seconds."""
        before = self._learner.updates
        updated = self._learner.step(wait_s)
        if updated:
            self._counters.store(UPDATES, self._learner.updates)
            if crosses(self._log_interval, before, self._learner.updates):
                self._report_stats()
        return updated

    def finish(self) -> None:
        """Publishes the last weights, and saves them in a checkpoint."""
        self._learner.publish()
        self._learner.save()

    def _report_stats(self) -> None:
        for name, value in self._feed.stats().items():
            self._worker.report(self.name, name, float(value))
        if self._league is not None:
            self._league.report()


class LearnerWorker(Worker):
    """A learner process's work: it trains its policies in turn."""

    def __init__(self, name: str, blueprint: Blueprint) -> None:
        super().__init__(name, blueprint)
        mine = learner_names(blueprint.config, [plan.name for plan in blueprint.policies])[name]
        with ExitStack() as unless_built:
            unless_built.callback(self.close)
            indices = [i for i, plan in enumerate(blueprint.policies) if plan.name in mine]
            self._learners = [PolicyLearner(i, blueprint, self) for i in indices]
            self._turn = 0
            self._count()
            unless_built.pop_all()

    def step(self) -> None:
        """Makes an update of each policy that has data; waits a while if none has."""
        wait_s = WAIT_S if len(self._learners) == 1 else 0.0
        if not sum(learner.step(wait_s) for learner in self._learners) and not wait_s:
            self._turn = (self._turn + 1) % len(self._learners)
            self._learners[self._turn].step(SHARED_WAIT_S)
        self._count()
        self.beat()

    def catch_up(self) -> None:
        """Makes the due updates."""
        for learner in self._learners:
            while learner.due and learner.step(0.0):
                self._count()
                self.beat()

    def finish(self) -> None:
        """Publishes and saves the last weights of each policy."""
        for learner in self._learners:
            learner.finish()
        self.counters.store(DONE, 1)

    def _count(self) -> None:
        self.counters.store(UPDATES, sum(learner.updates for learner in self._learners))


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


def _save(plan: PolicyPlan, model: PolicyModel, feed: Feed, league: League | None, state: Mapping[str, Any]) -> None:
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
        while not worker.control.stopping:
            worker.step()
        if worker.control.finishing:
            worker.catch_up()
        worker.finish()
    finally:
        worker.close()
