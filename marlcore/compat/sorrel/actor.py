"""The actor: it steps one world or several copies of it, by sorrel's own `take_turn`, with the newest weights."""

import math
import time
from collections.abc import Iterator
from itertools import chain
from types import SimpleNamespace
from typing import Any

from ...errors import TimedOut
from ...processes import READY, STEPS, Metric
from .messages import as_number
from .packing import networks, pack, tensors_of, unpack
from .role import MEMORY, Plan, Role, ended_epochs


def play(env: Any, epoch: int, plan: Plan, animate: bool) -> Iterator[Any]:
    """An epoch as sorrel's loop plays it: yields None after each turn.

    At last it yields the score, epsilon, the further values that sorrel's loop logs, and the statistics of each turn.
    """
    experiment = env.config.experiment
    max_turns, renderer = experiment.max_turns, None
    turns: list[Any] = []
    logger = SimpleNamespace(record_step=turns.append if plan.wants_turns else lambda stats: None)
    env._active_logger = logger if plan.options.logging else None
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
        renderer.save_gif(epoch, plan.options.output_dir / "gifs")
    for agent in env.agents:
        env._model_end_epoch_action(agent, epoch)
    values = dict(env.aggregate_epoch_stats()) if plan.options.logging else {}
    yield env.world.total_reward, env.agents[0].model.epsilon, values, turns


class Actor(Role):
    """All copies of the packed world; a successor begins with the epoch in which its predecessor was killed."""

    def __init__(self, name: str, env: bytes, plan: Plan, attempt: int) -> None:
        super().__init__(name, plan, attempt)
        first = unpack(env, {MEMORY.format(i): model.rings[0] for i, model in enumerate(plan.models)})
        self._worlds = [first, *(self._copy(first, i) for i in range(1, plan.options.copies))]
        self._last = first.config.experiment.epochs
        self._subscribers = []
        for model in plan.models:
            played = [world.agents[model.agents[0]].model for world in self._worlds]
            self._subscribers.append((model.weights.subscriber(networks(played[0])), played))
        self._ended = self.hold(plan.ended.publisher(ended_epochs()))
        self._reporter = self.hold(plan.telemetry.reporter(name))
        self._steps = self.counters.load(STEPS)

    def _copy(self, env: Any, number: int) -> Any:
        """Another copy of the world: its models have rings of their own, and the first copy's parameters."""
        models = [env.agents[plan.agents[0]].model for plan in self.plan.models]
        shared = chain.from_iterable(map(tensors_of, models))
        tensors = {f"tensor-{i}": tensor for i, tensor in enumerate(shared)}
        memories = {MEMORY.format(i): model.memory for i, model in enumerate(models)}
        rings = {MEMORY.format(i): plan.rings[number] for i, plan in enumerate(self.plan.models)}
        return unpack(pack(env, memories | tensors), rings | tensors)

    def step(self) -> bool:
        """Plays an epoch in each copy, where the learners are near enough; False once every epoch has ended."""
        options, epoch = self.plan.options, self._ended.version
        if epoch > self._last:
            return False
        self._pull(0 if options.updates_per_epoch is None else epoch - options.ahead)
        self._play(self._worlds[: self._last + 1 - epoch], epoch)
        return True

    def _pull(self, epochs: int) -> None:
        """Takes the newest weights, once every learner has learned from so many epochs."""
        while True:
            for subscriber, models in self._subscribers:
                try:
                    subscriber.pull()
                except TimedOut:  # the only slot of a snapshot store, whose publisher died while it wrote
                    continue
                for model in models if subscriber.version else ():
                    model.epsilon = subscriber.extras["epsilon"]
            late = [subscriber for subscriber, _ in self._subscribers if subscriber.extras.get("epochs", 0) < epochs]
            if not late:
                return
            self.check_wait()
            late[0].wait(newer_than=late[0].version, timeout=math.inf)

    def _play(self, worlds: list[Any], first: int) -> None:
        """One epoch in each world, a turn in each at a time."""
        plan, ended = self.plan, {}
        playing = {
            epoch: play(world, epoch, plan, animate=plan.options.animate and world is self._worlds[0])
            for epoch, world in enumerate(worlds, first)
        }
        while playing:
            for epoch, turns in [*playing.items()]:
                self.check_wait()
                content = next(turns)
                if content is None:
                    self._steps += len(worlds[0].agents)
                    self.counters.store(STEPS, self._steps)
                else:
                    ended[epoch] = content
                    del playing[epoch]
            self.counters.store(READY, self.attempt)
        for epoch, content in sorted(ended.items()):
            self.send(epoch, content)
            score = as_number(content[0])
            self._reporter.report(Metric(time.monotonic(), self._steps, "world", "episode_return", score))
        for _ in worlds:
            self._ended.publish()
