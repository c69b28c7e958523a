"""The role of a learner process: builds, trains and saves a model for each of its policies."""

import copy
import logging
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ...algos.compiled import with_engine
from ...algos.compiled.cuda_graphs import can_capture, capture
from ...checks import brief
from ...config import MAIN, AssignedPolicy, Constant, LearnerConfig, schedules_of
from ...devices import choose_device
from ...errors import TimedOut, pass_on_from_handler
from ...interfaces import QueueSource, Trainer
from ...loops import (
    FiniteCheck,
    Learner,
    PolicyModel,
    build_model,
    catch_up,
    learn,
    learn_while,
    run_seed,
)
from ...processes import DONE, READY, STEPS, UPDATES, Telemetry
from ...record import CHECKPOINT_S, checkpoint_path, load_checkpoint, save_checkpoint
from ...self_play import League, Pool, Snapshot, own_first
from ...weights import ParameterStore
from .batches import QueueBatches, ReplayBatches
from .role import Role

log = logging.getLogger(__name__)
# Modes of torch.compile with CUDA graphs of its own, and the same modes without them
CUDA_GRAPHS = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}


class LearnerRole(Role):
    """Trains the policies of a learner process in turn."""

    def build(self) -> None:
        self._offline = self.config.offline  # a property, too slow for each round
        policies = {policy.name: policy for policy in self.spec.policies}
        names = self.spec.learners[self.name]
        self.learners = [self._learner(policies[name]) for name in names]
        self._tallies = [self.control.tallies[name] for name in names]
        self.count_updates()
        # For serial mode: makes the due updates or, on recorded data, one update of each policy
        self.take_turn = self._update_all if self._offline else partial(catch_up, self.learners, self.count_updates)

    def _learner(self, policy: AssignedPolicy) -> Learner:
        """Makes a policy's learner; after a restart, with the published weights and the checkpoint's other state."""
        self.beat()  # hundreds of policies take longer than a worker's timeout
        config, settings = self.config.of(policy.name), self.config.learner_of(policy.name)
        device = choose_device(settings.device, policy.index, settings.device_per_agent)
        model = build_model(policy, config).to(device)
        store = self.hold(ParameterStore.attach(self.memory.weights[policy.name]))
        checkpoint = self.memory.checkpoint(policy.name)
        if (hold := self.memory.holds.get(policy.name)) is not None:
            hold.begin()
        state = load_checkpoint(checkpoint)
        # A durable queue's rows since the checkpoint are read again: newer weights have already learnt from them.
        reads_again = config.replay.durable and isinstance(policy.source, QueueSource)
        updates = _restore(model, None if reads_again else store, state)
        batches: QueueBatches | ReplayBatches
        if isinstance(policy.source, QueueSource):
            batches = QueueBatches(policy, policy.source, self, state)
        else:
            batches = ReplayBatches(policy, policy.source, self, updates, device, state)
        league = self._league(policy, model, state)
        publisher = self.hold(store.publisher(model.acting))
        trainer = _trainer_of(policy, model, settings)  # after the publisher moved the weights into its row
        if "trainer" in state:  # an empty state, or another run's (init_from), has none
            _restore_trainer(trainer, policy, checkpoint, state, updates)
        if league is not None:
            self._keep_snapshots(league, policy, model, trainer)
        return Learner(
            batches,
            trainer,
            publisher,
            schedules=schedules_of(policy.algorithm, config),
            steps=lambda: self.control.steps,
            config=settings,
            device=device,
            norm=model.norm,
            rewards=model.rewards,
            finite=FiniteCheck(policy.name, model, trainer.state_dict(), checkpoint, state.get("updates")),
            report=partial(self.report, policy.name),
            save_state=partial(self._save, policy.name, model, batches, league),
            pace=None if isinstance(config.pace, Constant) else config.pace,
            clearing=config.clearing_stages,
            updates=updates,
            stage=int(state.get("stage", 0)),
            also_publish=league.publish if league else None,
            also_report=partial(self._also_report, device, league),
        )

    def _league(self, policy: AssignedPolicy, model: PolicyModel, state: Mapping[str, Any]) -> League | None:
        games, run_dir = self.memory.league, self.memory.run_dir
        if not games:
            return None
        stores = [self.hold(ParameterStore.attach(game.pool)) for game in own_first(games, policy.index)]
        names = [rival.name for rival in own_first(self.spec.policies, policy.index)]
        pool = self.hold(Pool(stores[0], model.acting, run_dir, policy.name))
        results = self.hold(Telemetry.attach(games[policy.index].results))
        report, rivals = partial(self.report, policy.name), dict(zip(names, stores, strict=True))
        settings, saved = self.config.self_play, state.get("self_play", {})
        seed = run_seed(self.config, "exploiter", policy.index)
        return League(settings, pool, rivals, results, run_dir, report, saved, seed=seed)

    def _keep_snapshots(self, league: League, policy: AssignedPolicy, model: PolicyModel, trainer: Trainer) -> None:
        def snapshot(which: str) -> Snapshot:
            return Snapshot(checkpoint_path(self.memory.run_dir, policy.name, which), model, trainer)

        if self.config.self_play.rollback is not None:
            league.best = snapshot("rollback")
        if self.config.self_play.role_of(policy.name) != MAIN:
            league.initial = snapshot("initial")

    def _save(
        self, policy: str, model: PolicyModel, batches: QueueBatches | ReplayBatches, league: League | None,
        state: Mapping[str, Any],
    ) -> None:  # fmt: skip
        began, hold = time.monotonic(), self.memory.holds.get(policy)
        further = batches.save(state["version"])  # before the checkpoint
        if league is not None:
            further |= {"self_play": league.state_dict()}
        whole = {**state, **model.saved(), **further, "torch": torch.get_rng_state()}
        save_checkpoint(self.memory.checkpoint(policy), whole, hold)
        batches.commit(self.memory.checkpoint(policy))
        if league is not None:
            league.write()
        self.report(policy, CHECKPOINT_S, time.monotonic() - began, state["step"])

    def _also_report(self, device: torch.device, league: League | None) -> None:
        self.report_gpu(device)
        if league is not None:
            league.report_rates()

    def learning(self) -> bool:
        if self._offline:  # an update is a step
            self.await_evaluation()
        return not self.control.stopping and not self.done

    @property
    def done(self) -> bool:
        """Whether this learner has made all updates of a run on recorded data."""
        share = self.config.total_steps // len(self.spec.policies)
        return self._offline and all(learner.updates >= share for learner in self.learners)

    def _update_all(self) -> None:
        for learner in self.learners:
            learn(learner)
        self.count_updates()

    def count_updates(self) -> None:
        for tally, learner in zip(self._tallies, self.learners, strict=True):
            tally.store(UPDATES, learner.updates)
        updates = sum(learner.updates for learner in self.learners)
        self.counters.store(UPDATES, updates)
        if self._offline:
            self.counters.store(STEPS, updates)
        self.beat()

    def finish(self) -> None:
        """Publishes and saves the last weights of each policy."""
        for learner in self.learners:
            learner.publish()
            learner.save()
        self.counters.store(DONE, 1)

    def work(self) -> None:
        self.counters.store(READY, self.attempt)
        learn_while(self.learning, self.learners, self.count_updates)
        if self.control.finishing:
            catch_up(self.learners, self.count_updates)
        self.finish()


def _trainer_of(policy: AssignedPolicy, model: PolicyModel, settings: LearnerConfig) -> Trainer:
    """Makes a model's trainer. Raises ValueError if that replaces tensors of the model: new ones are not published."""

    def addresses() -> dict[str, int]:
        return {name: tensor.data_ptr() for name, tensor in model.acting.state_dict(keep_vars=True).items()}

    published = addresses()
    trainer = policy.algorithm.make_trainer(model.whole)
    if addresses() != published:
        raise ValueError("make_trainer: expected the model's tensors to be changed in place, got new ones")
    if settings.compile == "off":
        trainer, reason = with_engine(trainer, settings.engine)
    else:
        prioritized = getattr(policy.source, "prioritized", None) is not None
        reason = compile_updates(trainer, model.whole, settings.compile, prioritized)
    log.info("%s: updates are %s", policy.name, f"torch's: {reason}" if reason else "compiled")
    return trainer


def compile_updates(trainer: Any, module: torch.nn.Module, mode: str, prioritized: bool) -> str:
    """Compiles a trainer's model, with whole steps as CUDA graphs if mode and trainer allow; says how, for the log."""
    if mode not in CUDA_GRAPHS or not can_capture(trainer):
        compile_model(module, mode)
        return "learner.compile"
    compile_model(module, CUDA_GRAPHS[mode])
    capture(trainer, module, prioritized)
    return "learner.compile, by CUDA graphs"


def compile_model(module: torch.nn.Module, mode: str) -> None:
    """Compiles a module in place; later copies of it, such as a trainer's target, are not compiled."""
    module.compile(mode=mode)
    call: Any = module._compiled_call_impl  # copies of the module drop this attribute (but not a replaced `forward`)
    if mode in CUDA_GRAPHS:  # each call overwrites the outputs of the last one, and an update makes several calls

        def call_and_keep(*args: Any, **kwargs: Any) -> Any:
            return tree_map(lambda part: part.clone() if torch.is_tensor(part) else part, call(*args, **kwargs))

        module._compiled_call_impl = call_and_keep


def _restore_trainer(
    trainer: Trainer, policy: AssignedPolicy, checkpoint: Path, state: dict[str, Any], updates: int
) -> None:
    """Restores a trainer and, if no update was made after the checkpoint, torch's random state. Raises ValueError."""
    try:
        trainer.load_state_dict(state["trainer"])
        if updates == state["updates"]:
            torch.set_rng_state(state["torch"])
    except Exception as error:  # another run's trainer state may have any form
        pass_on_from_handler(error)
        expected = f"resume: expected a checkpoint of {policy.name}'s trainer"
        raise ValueError(f"{expected}, got {str(checkpoint)!r} ({brief(error)})") from None


def _restore(model: PolicyModel, store: ParameterStore | None, state: Mapping[str, Any]) -> int:
    """Loads the newer of checkpoint and published weights into a model; returns how many updates made them.

    Without a store, loads the checkpoint.
    """
    updates = int(state.get("updates", 0))
    if state:
        model.restore(state)
    if store is not None and store.version:
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
