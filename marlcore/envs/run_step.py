"""The step and the stage of the run for which an environment is stepped, so that its rewards can follow them."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple


class RunStep(NamedTuple):
    """A moment of a run: `step` of its `total_steps`, all agents of all actors together, and its stage, from 0."""

    step: int
    total_steps: int
    stage: int

    @property
    def fraction(self) -> float:
        """From 0 at the run's beginning to 1 at its end."""
        return self.step / self.total_steps


NO_RUN = RunStep(0, 1, 0)
_look: ContextVar[Callable[[], RunStep] | None] = ContextVar("marlcore run step", default=None)  # of this thread's run


def run_step() -> RunStep:
    """The present step and stage of the run, for an environment that an actor or the run's evaluator steps.

    Such as `shaping * (1 - marlcore.run_step().fraction)`. The stage is that of `Config.stages` at this step. Outside
    of a run, and in processes that the environment starts itself, it is RunStep(step=0, total_steps=1, stage=0).
    """
    look = _look.get()
    return NO_RUN if look is None else look()


class RunStepProvider:
    """Makes `run_step` of this thread answer by a function, until it is closed."""

    def __init__(self, look: Callable[[], RunStep]) -> None:
        _look.set(look)

    def close(self) -> None:
        _look.set(None)
