"""Tells an environment the step and the stage of the run that uses it, for rewards that depend on them."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple


class RunStep(NamedTuple):
    """A moment of a run: `step` of its `total_steps`, counted over all agents of all actors, and its stage, from 0."""

    step: int
    total_steps: int
    stage: int

    @property
    def fraction(self) -> float:
        """The part of the run that is over: from 0 at its beginning to 1 at its end."""
        return self.step / self.total_steps


NO_RUN = RunStep(0, 1, 0)
_look: ContextVar[Callable[[], RunStep] | None] = ContextVar("marlcore run step", default=None)  # for this thread


def run_step() -> RunStep:
    """Returns the run's present step and stage, for an environment that an actor or the run's evaluator steps.

    Example: `shaping * (1 - marlcore.run_step().fraction)`. `Config.stages` sets the stage at each step. Outside
    of a run, and in processes that the environment starts itself, returns RunStep(step=0, total_steps=1, stage=0).
    """
    look = _look.get()
    return NO_RUN if look is None else look()


class RunStepProvider:
    """Makes `run_step` return `look`'s result in this thread, until the provider is closed."""

    def __init__(self, look: Callable[[], RunStep]) -> None:
        _look.set(look)

    def close(self) -> None:
        _look.set(None)
