"""The parent's watch over a run, with workers that the test makes up."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import marlcore as mc
from marlcore.training import async_run


def test_a_stop_in_the_last_moment_of_grace_ends_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner elsewhere that has no machine is not awaited any more; workers that still start are killed at once."""
    ended: list[bool] = []
    workers = [SimpleNamespace(ready=ready, end=partial(ended.append, ready)) for ready in (True, False)]
    elsewhere: Any = SimpleNamespace(done=True, unfinished=["learner-a"], tick=lambda: None)
    supervisor: Any = SimpleNamespace(workers={}, unfinished=[], running=workers, stand_down=lambda: None)
    control: Any = SimpleNamespace(stop=elsewhere.unfinished.clear)
    monitor: Any = SimpleNamespace(tick=lambda: None, say_stopping=lambda: None)
    interrupts: Any = SimpleNamespace(stopping=True, again=False, finishing=False)
    blueprint: Any = SimpleNamespace(config=mc.Config(), crew=SimpleNamespace(names=[]), policies=())
    monkeypatch.setattr(async_run, "grace_of", lambda _: -1.0)
    async_run.run_async(supervisor, blueprint, control, monitor, interrupts, elsewhere)
    assert elsewhere.unfinished == [] and ended == [False]


def test_a_stopped_learner_is_named_and_not_long_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [0.0], list[str]()
    learner = SimpleNamespace(name="learner-a", ready=True, process=SimpleNamespace(is_stopped=True))
    later: Any = lambda seconds: now.__setitem__(0, now[0] + 1)  # noqa: E731
    supervisor: Any = SimpleNamespace(workers={}, unfinished=[learner], running=[learner], stand_down=int, watch=later)
    monitor: Any = SimpleNamespace(tick=int, say_stopping=int, say=said.append)
    interrupts: Any = SimpleNamespace(stopping=True, again=False, finishing=False)
    blueprint: Any = SimpleNamespace(config=mc.Config(), crew=SimpleNamespace(names=[]), policies=())
    monkeypatch.setattr(async_run, "grace_of", lambda _: 120.0)
    monkeypatch.setattr(async_run.time, "monotonic", lambda: now[0])
    async_run.run_async(supervisor, blueprint, SimpleNamespace(stop=int), monitor, interrupts)  # type: ignore[arg-type]
    assert said == ["still waiting for learner-a, which a signal has stopped"] and 10 < now[0] < 13
