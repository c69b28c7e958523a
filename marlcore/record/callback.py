"""Calls the program's callback with a run's metrics, evaluations and checkpoints; the callback may end the run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from ..checks import brief
from ..errors import StopRun
from ..processes import Interrupts, Metric
from .events import CheckpointEvent, EvaluationEvent, Event

METHODS = ("on_metric", "on_evaluation", "on_checkpoint")


@dataclass(frozen=True)
class Stop:
    """A callback returns `Stop` or `Stop(reason)` to end the run in order."""

    reason: str = "the callback returned Stop"


class OnMetric(Protocol):
    def on_metric(self, metric: Metric, /) -> object: ...


class OnEvaluation(Protocol):
    def on_evaluation(self, evaluation: EvaluationEvent, /) -> object: ...


class OnCheckpoint(Protocol):
    def on_checkpoint(self, checkpoint: CheckpointEvent, /) -> object: ...


Callback: TypeAlias = Callable[[Metric], object] | OnMetric | OnEvaluation | OnCheckpoint


def check_callback(callback: Any) -> None:
    """Raises TypeError unless the callback is None, a function, or an object with an `on_` method."""
    steers = any(callable(getattr(callback, name, None)) for name in METHODS)
    if callback is not None and (isinstance(callback, type) if steers else not callable(callback)):
        expected = "callback: expected a function of a Metric, an object with on_metric, on_evaluation or on_checkpoint"
        raise TypeError(f"{expected}, or None, got {brief(callback)}")


class CallbackSink:
    """A sink that calls a callback, which may end the run through `interrupts`."""

    def __init__(self, callback: Callback, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._methods = {name: method for name in METHODS if callable(method := getattr(callback, name, None))}
        if callable(callback):
            self._methods.setdefault("on_metric", callback)
        self._failed = False

    def record(self, metric: Metric) -> None:
        self._call("on_metric", metric)

    def announce(self, event: Event) -> None:
        self._call("on_evaluation" if isinstance(event, EvaluationEvent) else "on_checkpoint", event)

    def _call(self, name: str, event: object) -> None:
        if self._failed or name not in self._methods:
            return
        try:
            answer = self._methods[name](event)
        except StopRun as stop:
            self._interrupts.finish(str(stop) or "the callback raised StopRun")
        except BaseException as error:  # `Interrupts.deliver` raises it again
            self._failed = True
            self._interrupts.stop(f"the callback raised {type(error).__name__}", error)
        else:
            if answer is Stop or isinstance(answer, Stop):
                self._interrupts.finish(answer.reason)

    def flush(self) -> None: ...

    def close(self) -> None: ...
