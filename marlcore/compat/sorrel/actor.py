"""The actor: it steps one world or several copies of it, by sorrel's own `take_turn`, with the newest weights."""

import math
import time
from itertools import chain
from typing import Any

from ...errors import TimedOut
from ...processes import READY, STEPS, Metric, Telemetry
from ...weights import ParameterStore
from .packing import networks, pack, tensors_of, unpack
from .role import MEMORY, Plan, Role, ended_epochs


class World:
    """One copy of the environment, and its logger, which keeps the statistics of each turn for the parent."""

    def __init__(self, env: Any, plan: Plan, animated: bool) -> None:
        self.env = env
        self._plan = plan
        self._animated = animated and plan.options.animate
        self._renderer: Any = None
        self._max_turns = env.config.experiment.max_turns

    def begin(self, epoch: int) -> None:
        env, experiment = self.env, self.env.config.experiment
        self.epoch = epoch
        self.turns: list[Any] = []
        env._active_logger = self if self._plan.options.logging else None
        env.reset()
        if self._animated and epoch % experiment.record_period == 0:
            from sorrel.utils.visualization import ImageRenderer

            self._renderer = ImageRenderer(type(env).__name__, experiment.record_period, experiment.max_turns)
        for agent in env.agents:
            env._model_start_epoch_action(agent, epoch)

    def record_step(self, stats: Any) -> None:
        if self._plan.wants_turns:
            self.turns.append(stats)

    @property
    def over(self) -> bool:
        env = self.env
        return bool(env.turn >= self._max_turns or (env.turn and env.world.is_done and env.stop_if_done))

    def take_turn(self) -> None:
        if self._renderer is not None:
            self._renderer.add_image(self.env.world)
        self.env.take_turn(self.epoch)

    def end(self) -> tuple[float, float, dict[str, Any], list[Any]]:
        """Ends the epoch; returns its score, epsilon, the further values that sorrel's loop logs, and its turns."""
        env, options = self.env, self._plan.options
        env.world.is_done = True
        if self._renderer is not None:
            self._renderer.save_gif(self.epoch, options.output_dir / "gifs")
            self._renderer = None
        for agent in env.agents:
            env._model_end_epoch_action(agent, self.epoch)
        values = dict(env.aggregate_epoch_stats()) if options.logging else {}
        return env.world.total_reward, env.agents[0].model.epsilon, values, self.turns


class Actor(Role):
    """All copies of the packed world; a successor begins with the epoch in which its predecessor was killed."""

    def __init__(self, name: str, env: bytes, plan: Plan, attempt: int) -> None:
        super().__init__(name, plan, attempt)
        first = unpack(env, {MEMORY.format(i): model.rings[0] for i, model in enumerate(plan.models)})
        copies = [self._copy(first, i) for i in range(1, plan.options.copies)]
        self._worlds = [World(world, plan, animated=world is first) for world in (first, *copies)]
        self._last = first.config.experiment.epochs
        self._subscribers = []
        for model in plan.models:
            store = self.hold(ParameterStore.attach(model.weights))
            played = [world.env.agents[model.agents[0]].model for world in self._worlds]
            self._subscribers.append((store.subscriber(networks(played[0])), played))
        self._ended = self.hold(self.hold(ParameterStore.attach(plan.ended)).publisher(ended_epochs()))
        self._reporter = self.hold(self.hold(Telemetry.attach(plan.telemetry)).reporter(name))
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
            self.beat()
            late[0].wait(newer_than=late[0].version, timeout=math.inf)

    def _play(self, worlds: list[World], first: int) -> None:
        """One epoch in each world, a turn in each at a time."""
        for epoch, world in enumerate(worlds, first):
            world.begin(epoch)
        while playing := [world for world in worlds if not world.over]:
            for world in playing:
                self.beat()
                world.take_turn()
                self._steps += len(world.env.agents)
                self.counters.store(STEPS, self._steps)
            self.counters.store(READY, self.attempt)
        for world in worlds:
            score, *rest = world.end()
            self.send(world.epoch, (score, *rest))
            self._reporter.report(Metric(time.monotonic(), self._steps, "world", "episode_return", float(score)))
        for _ in worlds:
            self._ended.publish()

    def finish(self) -> None:
        """The rows lie in shared memory already."""
