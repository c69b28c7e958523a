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
