"""An actor: steps one or several copies of the world, by sorrel's own `take_turn`, with the newest weights."""

import math
import time
from collections.abc import Iterator, Mapping
from itertools import chain
from types import SimpleNamespace
from typing import Any

from ...errors import TimedOut
from ...processes import READY, STEPS, Metric
from .buffer import Buffer
from .memory import rollout_of
from .messages import as_number
from .options import has_own_loop
from .packing import move, networks, pack, tensors_of, unpack
from .role import ACTOR, MEMORY, ExperimentSpec, ModelSpec, Role, ended_epochs


def play(env: Any, epoch: int, spec: ExperimentSpec, animate: bool) -> Iterator[Any]:
    """Plays an epoch as sorrel's loop does, and yields None after each turn.

    At last it yields (score, epsilon, the further values that sorrel's loop logs, the statistics of each turn).
    """
    experiment = env.config.experiment
    max_turns, renderer = experiment.max_turns, None
    turns: list[Any] = []
    logger = SimpleNamespace(record_step=turns.append if spec.wants_turns else lambda stats: None)
    env._active_logger = logger if spec.options.logging else None
    env.reset()
    if animate and epoch % experiment.record_period == 0:
        from sorrel.utils.visualization import ImageRenderer

        renderer = ImageRenderer(type(env).__name__, experiment.record_period, max_turns)
    for agent in env.agents:
        env._model_start_epoch_action(agent, epoch)
    while env.turn < max_turns and not (env.turn and env.world.is_done and env.stop_if_done):
        if renderer is not None:
            renderer.add_image(env.world)
        env.take_turn(epoch)
        yield None
    env.world.is_done = True
    if renderer is not None:
        renderer.save_gif(epoch, spec.options.output_dir / "gifs")
    for agent in env.agents:
        env._model_end_epoch_action(agent, epoch)
    env._active_logger = None
    values = {**env.aggregate_epoch_stats(), **encounters(env)} if spec.options.logging else {}
    yield env.world.total_reward, env.agents[0].model.epsilon, values, turns


def encounters(env: Any) -> dict[str, dict[str, Any]]:
    """Returns an epoch's encounters by kind of entity, summed over the agents, as sorrel's iowa logs them."""
    found = [getattr(agent, "encounters", None) for agent in env.agents if has_own_loop(env)]
    by_agent = [counts for counts in found if isinstance(counts, Mapping)]
    kinds = dict.fromkeys(chain.from_iterable(by_agent))
    return {"encounters": {kind: sum(counts.get(kind, 0) for counts in by_agent) for kind in kinds}} if kinds else {}


class Actor(Role):
    """Steps its copies of the packed world. After a restart, it repeats the epoch in which it was killed."""

    def __init__(self, name: str, env: bytes, spec: ExperimentSpec, attempt: int) -> None:
        super().__init__(name, spec, attempt)
        number = int(name.removeprefix(ACTOR.format("")))
        self._first_ring = number * spec.options.copies
        world = unpack(env, self._named(0))
        if device := spec.options.of("device", name):
            for model in spec.models:
                move(world.agents[model.agents[0]].model, device)
        self._worlds = [world, *(self._copy(world, i) for i in range(1, spec.options.copies))]
        self._epochs = spec.epochs_of(number)
        self._turns = 0  # in each world
        self._subscribers = []
        for model in spec.models:
            played = [world.agents[model.agents[0]].model for world in self._worlds]
            self._subscribers.append((model.weights.subscriber(networks(played[0])), played))
        self._rollouts = [
            (model, {store: self.hold(store.publisher(rollout_of(self._memory_of(model)))) for store in mine})
            for model in spec.models
            if (mine := model.rollouts[number :: spec.options.actors])
        ]
        self._ended = self.hold(spec.ended[number].publisher(ended_epochs()))
        self._reporter = self.hold(spec.telemetry.reporter(name))
        self._steps = self.counters.load(STEPS)

    def _named(self, copy: int) -> dict[str, Buffer]:
        """Returns the memories of a copy's models, by their names in a packed environment."""
        number, models = self._first_ring + copy, enumerate(self.spec.models)
        return {MEMORY.format(i): model.rings[number] for i, model in models if model.rings}

    def _memory_of(self, model: ModelSpec, copy: int = 0) -> Any:
        return self._worlds[copy].agents[model.agents[0]].model.memory

    def _copy(self, env: Any, copy: int) -> Any:
        """Makes another copy of the world, whose models have their own rings, but share the first copy's parameters."""
        models = [env.agents[each.agents[0]].model for each in self.spec.models]
        shared = chain.from_iterable(map(tensors_of, models))
        tensors = {f"tensor-{i}": tensor for i, tensor in enumerate(shared)}
        return unpack(pack(env, self._named(0) | tensors), self._named(copy) | tensors)

    def step(self) -> bool:
        """Waits for the learners, then plays an epoch in each copy; returns False once every epoch has ended."""
        options, played = self.spec.options, self._ended.version
        begun = played - played % options.copies  # less than `played` if this actor was killed while it ended epochs
        epochs = self._epochs[played : begun + options.copies]
        if not epochs:
            return False
        self._await(0 if options.updates_per_epoch is None else begun * options.actors - options.ahead)
        self._play(epochs)
        return True

    def _pull(self) -> None:
        for subscriber, models in self._subscribers:
            try:
                newer = subscriber.pull()
            except TimedOut:  # the publisher died while it wrote to the only slot of a "snapshot" store
                continue
            for model in models if newer else ():
                if hasattr(model, "_version"):  # sorrel's threadsafe models act with a snapshot of this version
                    model._version += 1
            for model in models if subscriber.version else ():
                model.epsilon = subscriber.extras["epsilon"]

    def _await(self, epochs: int) -> None:
        """Waits until every learner has learned from `epochs` epochs, then pulls the newest weights."""
        while True:
            self._pull()
            late = [subscriber for subscriber, _ in self._subscribers if subscriber.extras.get("epochs", 0) < epochs]
            if not late:
                return
            self.check_wait()
            late[0].wait(newer_than=late[0].version, timeout=math.inf)

    def _play(self, epochs: range) -> None:
        """Plays each epoch in a separate copy of the world; the copies take turns. Then sends the results."""
        spec, ended, agents = self.spec, {}, len(self._worlds[0].agents)
        playing = {
            epoch: play(world, epoch, spec, animate=spec.options.animate and world is self._worlds[0])
            for epoch, world in zip(epochs, self._worlds, strict=False)
        }
        while playing:
            for epoch, turns in [*playing.items()]:
                self.check_wait()
                content = next(turns)
                if content is None:
                    self._steps += agents
                    self.counters.store(STEPS, self._steps)
                else:
                    ended[epoch] = content
                    del playing[epoch]
            self.counters.store(READY, self.attempt)
            self._turns += bool(playing)
            if playing and spec.options.sync_interval and self._turns % spec.options.sync_interval == 0:
                self._pull()
        for model, publishers in self._rollouts:
            for copy, epoch in enumerate(epochs):
                publishers[model.rollout(epoch)].publish(rollout_of(self._memory_of(model, copy)))
        for epoch, content in sorted(ended.items()):
            self.send(epoch, content)
            score = as_number(content[0])
            self._reporter.report(Metric(time.monotonic(), self._steps, "world", "episode_return", score))
        for _ in epochs:
            self._ended.publish()
