"""The programs that measure do so on an idle machine alone, unless they are told otherwise."""

from __future__ import annotations

import os
from types import ModuleType

import pytest

from . import machine, planning, report, throughput


@pytest.mark.parametrize("program", [report, planning, throughput], ids=lambda program: program.__name__)
def test_a_busy_machine_is_refused_and_the_load_is_named(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["program"])
    monkeypatch.setattr(os, "getloadavg", lambda: (7.25, 0.0, 0.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    with pytest.raises(SystemExit) as refused:
        program.main()
    assert refused.value.code == 2
    assert "load: expected at most 0.5 a core, got 7.25 on 2 cores; --anyway measures anyway" in capsys.readouterr().err


def test_half_a_core_of_load_is_not_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1.0, 9.0, 9.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert machine.busy() == ""
