"""The actor: it steps one world or several copies of it, by sorrel's own `take_turn`, with the newest weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import ClosedError, TimedOut
from ...memory import interrupt_waits_with
from ...processes import EPISODES, READY, STEPS
from ...weights import ParameterStore
from .packing import pack, unpack
from .role import MEMORY, Plan, Role, networks

STEPS_A_MESSAGE = 100


class Turns:
    """In the place of the environment's logger: keeps what sorrel's own would record of each turn."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self.steps: list[Any] = []

    def record_step(self, stats: Any) -> None:
        if self._wanted:
            self.steps.append(stats)


class World:
    """One copy of the environment, during its epochs."""

    def __init__(self, env: Any, plan: Plan, animated: bool) -> None:
        self.env = env
        self._plan = plan
        self._animated = animated and plan.options.animate
        self._renderer: Any = None

    def begin(self, epoch: int) -> None:
        env, options = self.env, self._plan.options
        self.epoch = epoch
        self.turns = Turns(self._plan.wants_steps)
        env._active_logger = self.turns if options.logging else None
        env.reset()
        if self._animated and epoch % (self._plan.schedule.record_period or 1) == 0:
            self._renderer = self._new_renderer()
        for agent in env.agents:
            env._model_start_epoch_action(agent, epoch)

    @property
    def over(self) -> bool:
        env = self.env
        return bool(env.turn >= self._plan.schedule.max_turns or (env.turn and env.world.is_done and env.stop_if_done))

    def take_turn(self) -> None:
        if self._renderer is not None:
            self._renderer.add_image(self.env.world)
        self.env.take_turn(self.epoch)

    def end(self) -> dict[str, Any]:
        """Ends the epoch; returns the further values that sorrel's loop would log."""
        env = self.env
        env.world.is_done = True
        if self._renderer is not None:
            self._renderer.save_gif(self.epoch, Path(self._plan.options.output_dir or ".") / "gifs")
            self._renderer = None
        for agent in env.agents:
            env._model_end_epoch_action(agent, self.epoch)
        return dict(env.aggregate_epoch_stats()) if self._plan.options.logging else {}

    def _new_renderer(self) -> Any:
        from sorrel.utils.visualization import ImageRenderer

        schedule = self._plan.schedule
        return ImageRenderer(type(self.env).__name__, schedule.record_period, schedule.max_turns)


class Actor(Role):
    """All copies of the world; a successor begins with the epoch in which its predecessor was killed.

    Args:
        env: the packed environment, with all models.
    """

    def __init__(self, env: bytes, name: str, plan: Plan, mail: str, attempt: int) -> None:
        super().__init__(name, plan, mail, attempt)
        rings = {MEMORY.format(i): model.rings[0] for i, model in enumerate(plan.models)}
        first = unpack(env, rings)
        self._worlds = [World(first, plan, animated=True)]
        self._worlds += [World(self._copy(first, i), plan, animated=False) for i in range(1, plan.options.copies)]
        self._subscribers = []
        for model in plan.models:
            store = self.hold(ParameterStore.attach(model.weights))
            played = [world.env.agents[model.agents[0]].model for world in self._worlds]
            self._subscribers.append((store.subscriber(networks(played[0])), played))
        self._steps = self.counters.load(STEPS)

    def _copy(self, env: Any, number: int) -> Any:
        """Another copy of the world: its models have rings of their own, and the first copy's parameters."""
        kept: list[tuple[Any, str]] = []
        given: dict[str, Any] = {}
        for i, plan in enumerate(self.plan.models):
            model, name = env.agents[plan.agents[0]].model, MEMORY.format(i)
            kept.append((model.memory, name))
            given[name] = plan.rings[number]
            module = networks(model)
            for j, tensor in enumerate([*module.parameters(), *module.buffers()]):
                kept.append((tensor, f"tensor-{i}-{j}"))
                given[f"tensor-{i}-{j}"] = tensor
        return unpack(pack(env, kept), given)

    def step(self) -> bool:
        """Plays an epoch in each copy, where the learners are near enough; False once every epoch has ended."""
        epochs, options, epoch = self.plan.schedule.epochs, self.plan.options, self.clock.ended
        if epoch >= epochs:
            return False
        if options.updates_per_epoch is not None:
            self.clock.wait_for_learners(epoch - options.ahead)
        self._pull()
        self._play(self._worlds[: epochs - epoch], epoch)
        return True

    def _pull(self) -> None:
        for subscriber, models in self._subscribers:
            try:
                subscriber.pull()
            except TimedOut:  # the only slot of a snapshot store, whose publisher died while it wrote
                continue
            for model in models if subscriber.version else ():
                model.epsilon = subscriber.extras["epsilon"]

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
            self._report(world, world.end())
        self.clock.end(first + len(worlds))
        self.counters.store(EPISODES, first + len(worlds))

    def _report(self, world: World, values: dict[str, Any]) -> None:
        steps, env = world.turns.steps, world.env
        for at in range(0, len(steps), STEPS_A_MESSAGE):
            self.sender.send("steps", world.epoch, at, steps[at : at + STEPS_A_MESSAGE])
        self.sender.send("score", world.epoch, env.world.total_reward, env.agents[0].model.epsilon, values)


def run_actor(env: bytes, name: str, plan: Plan, mail: str, attempt: int) -> None:
    """Runs the actor in its own process."""
    with Actor(env, name, plan, mail, attempt) as actor:
        interrupt_waits_with(actor.beat)
        try:
            while actor.step():
                pass
        except ClosedError:
            if not actor.control.stopping:
                raise
        finally:
            interrupt_waits_with(None)
