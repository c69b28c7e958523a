"""The programs that compare whole tasks run in their smallest form, and a busy machine is refused."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from marlcore.testing import check_env

from . import machine, processes
from .__main__ import main
from .cluster import cluster_weights
from .costs import planning
from .embed import hosts
from .embed.edits import Edit, changed, embed
from .peers.setting import Setting
from .rivals import peers, side
from .runs import psro, results, tasks

BENCH = Path(__file__).parent
ROOMS = ["pages", "peers", "core", "runs", "rivals", "costs", "zoo", "cluster", "embed"]  # from the lowest on


def test_a_room_is_small_and_imports_only_lower_ones() -> None:
    assert {path.parent.name for path in BENCH.glob("*/__init__.py")} == {*ROOMS}
    for room in ("", *ROOMS):
        files = [path for path in (BENCH / room).iterdir() if path.suffix in (".py", ".c")]
        imported = {name for path in files for name in re.findall(r"^ *from \.\.(\w+)", path.read_text(), re.M)}
        assert len(files) <= 12, room
        assert imported.isdisjoint(ROOMS[ROOMS.index(room) :] if room else []), room


@pytest.mark.parametrize("program", ["report", "planning", "peers --sources ."])
def test_a_busy_machine_is_refused_and_the_load_is_named(program: str, monkeypatch: Any, capsys: Any) -> None:
    """Half a core of load is not busy."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(os, "getloadavg", lambda: (1.0, 9.0, 9.0))
    assert machine.busy() == ""
    monkeypatch.setattr(os, "getloadavg", lambda: (7.25, 0.0, 0.0))
    with pytest.raises(SystemExit) as refused:
        main(program.split())
    assert refused.value.code == 2
    assert "load: expected at most 0.5 a core, got 7.25 on 2 cores; --anyway measures anyway" in capsys.readouterr().err


def test_a_program_whose_package_is_missing_names_it(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.delitem(sys.modules, "bench.processes")
    monkeypatch.delitem(sys.modules, "bench.rivals.peers")
    with pytest.raises(SystemExit):
        main(["peers"])
    assert "peers needs psutil: python -m pip install -c constraints.txt -e '.[test]'" in capsys.readouterr().err


def test_all_sides_plan_alike() -> None:
    plain, *others = planning.measure(400, 0.0, [1, 2], rounds=1)
    assert [side["workers"] for side in (plain, *others)] == ["plain", "1", "2"] and plain["build_s_times"] == 1
    assert plain["graph_bytes"] > 400 * 16 and plain["policy_bytes"] > 400 * 2 * 8 * 5


@pytest.mark.long
def test_memory_is_that_of_a_process_of_its_own() -> None:
    small = processes.run_fresh(planning.plan_alone, 1_000, 2)
    assert small["peak_bytes"] > small["graph_bytes"] + small["policy_bytes"] > 0


def test_catch_keeps_the_interface() -> None:
    check_env(tasks.Catch, steps=300)


@pytest.mark.long
def test_both_sides_of_the_ablation_make_the_same_updates() -> None:
    catch = [tasks.TASKS[name] for name in ("Catch, plain DQN", "Catch, DQN with all parts")]
    short = [replace(task, config=replace(task.config, total_steps=1500)) for task in catch]
    updates = [results.train(task, 0, "async", False)[0]["updates"] for task in short]
    assert updates[0] == updates[1] > 50


SIDES = {  # of each module that needs no environment of its own
    "PPO on 2 cores": ["marlcore"],
    "DQN, 0.25 steps on 64 rows, 1 copy": ["marlcore on torch"],
    "treasure_hunt, 3 agents learn by DQN, 0.1 steps, 1 copy": [*peers.QUEUES, *peers.LOCKS],
    "treasure_hunt, 3 agents act alone, 16 copies": ["beside a sink that hangs", *peers.TWICE],
}


@pytest.mark.long
@pytest.mark.parametrize(("row", "name"), [(row, name) for row, names in SIDES.items() for name in names])
def test_a_side_makes_the_updates_that_its_steps_call_for(row: str, name: str) -> None:
    setting, cores, sides = peers.ROWS[row]
    two = replace(setting, agents=min(setting.agents, 2))  # which start sooner
    found = processes.run_fresh(peers.measure, sides[name], two, cores, BENCH, 0.5, 0.0)
    assert found["steps_per_s"] > 0 and found["steps_per_cpu_s"] > 0 and found["processes"]


def test_a_rate_is_that_between_two_marks() -> None:
    """A side with too few updates has no rate."""
    busy, idle = psutil.Process(), psutil.Process(os.getppid())
    first = [1.0, 10, 0], {busy: ("a", 2.0)}, 7.0
    last = [3.0, 4010, 1000], {busy: ("a", 3.0), idle: ("b", 0.03)}, 11.0
    found = peers.between(first, last, Setting(updates_per_step=0.25))
    assert (found["steps_per_s"], found["steps_per_cpu_s"]) == (2000.0, 1000.0)
    assert (found["processes"], found["busy"]) == (2, ["a 0.50"])
    with pytest.raises(AssertionError):
        peers.between(first, last, Setting(updates_per_step=0.5))


def test_time_begins_after_the_first_update(monkeypatch: Any, capsys: Any) -> None:
    now = iter([0.0, 5.0, 6.0, 7.5, 9.0, 20.0])
    monkeypatch.setattr(side.time, "monotonic", lambda: next(now))
    monkeypatch.setattr(side.sys, "__stdout__", side.sys.stdout)
    tell = side.Marks(True, 2.0, 10.0)
    assert [tell(step, step >= 2) for step in range(6)] == [True] * 5 + [False]
    marks = [line for line in capsys.readouterr().out.splitlines() if line]
    assert marks == ["marked: [9.0, 4, true]", "marked: [20.0, 5, true]"]


BUSY = "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
DAEMON = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {BUSY!r}]).pid)"


def seconds_of_a_daemon() -> float:
    peers.adopt()
    subprocess.run([sys.executable, "-S", "-c", DAEMON], check=True, stdout=subprocess.DEVNULL)
    os.wait()
    return peers.spent()[1]


def test_a_daemon_is_counted() -> None:
    """The daemon outlives the process that started it."""
    assert processes.run_fresh(seconds_of_a_daemon) > 0.5


def test_returns_are_kept_for_the_pages(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(results, "train", lambda task, seed, *_: ({"return": 0.5 + seed, "seconds": 2.0}, []))
    monkeypatch.setattr(results, "play_randomly", lambda env: 0.25)
    monkeypatch.setattr(results, "run_fresh", lambda function, *args: function(*args))
    monkeypatch.setattr(results, "STORED", tmp_path / "results.json")
    main(["results", "--task", "CartPole-v1", "--seeds", "0,1,2", "--mode", "serial", "--store"])
    assert "| CartPole-v1, serial | dqn | 300,000 | 0.25 | 0.5; 1.5; 2.5 | 1.5 | 2 |" in capsys.readouterr().out
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["CartPole-v1, serial"]["returns"] == [0.5, 1.5, 2.5] and "recall, ppo" in stored


@pytest.mark.long
def test_psro_beside_another_is_kept_for_its_page(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("pyspiel", reason="needs open_spiel")
    for name, value in {"ITERATIONS": 1, "STEPS": 1_200, "GAMES": 4, "FOLDER": tmp_path}.items():
        monkeypatch.setattr(psro, name, value)
    monkeypatch.setattr(psro, "run_fresh", lambda function, *args: function(*args))
    monkeypatch.setattr(psro, "theirs", lambda oracle, seed: [0.5 + seed, 1.0, 2.0, 7, 9])
    main(["psro", "--seeds", "0", "1", "--store"])
    ours, theirs, _ = json.loads((tmp_path / "psro.json").read_text())["rows"]
    assert theirs == ["OpenSpiel, DQN", [0.5, 1.5], [1.0, 1.0], [2.0, 2.0], [7, 7], [9, 9]]
    assert ours[4] == [1_200, 1_200] and min(ours[1] + ours[2] + ours[3]) > 0.3  # no equilibrium so soon


@pytest.mark.long
def test_every_node_gets_the_last_weights() -> None:
    figures = cluster_weights.measure(1, nbytes=100_000, rounds=20, pause_s=0.0)
    assert 1 <= figures["fetched"] <= figures["copied"] + 1 <= 22 and figures["p99_s"] > 0


def test_an_edit_replaces_its_place_and_takes_its_indentation() -> None:
    theirs = "import a\n\nclass A:\n    def f(self):\n        b = a.B(\n            1,\n        )\n        return b\n"
    edits = [Edit("import a", "import c\n", until="import a"), Edit(r"b = a.B", "\n    b = c.D()\n", until="return")]
    ours = embed(theirs, edits)
    assert ours == "import c\nimport a\n\nclass A:\n    def f(self):\n        b = c.D()\n        return b\n"
    assert changed(theirs, ours) == (2, 3) and changed(theirs, theirs) == (0, 0)
    for place, found in (("import x", 0), (r"(import|class) ", 2)):
        with pytest.raises(ValueError, match=f"expected one place in the source, got {found}"):
            embed(theirs, [Edit(place, "")])


@pytest.mark.parametrize("broken", ["", "reward", "next_obs", "discount"])
def test_a_wrong_value_of_a_buffer_is_counted(broken: str) -> None:
    """A buffer that computes by the definition has none; one that sees no truncation, or misses a reward, has some."""
    rows, kept = hosts.stream(200), []
    right = hosts.expected(rows, 3)

    def columns(drawn: list[int]) -> tuple[Any, ...]:
        found = []
        for t in drawn:
            action, reward, next_obs, discount = right[kept[t].obs.tobytes()]
            cut = any(row.truncated for row in kept[t : t + 3])
            next_obs = next_obs + (broken == "next_obs" and cut)
            discount = discount * (2 if broken == "discount" and cut else 1)
            found.append((kept[t].obs, action, reward + (broken == "reward" and cut), next_obs, discount))
        return tuple(map(np.array, zip(*found, strict=True)))

    side = hosts.Side(lambda row: partial(kept.append, row), lambda: list(range(len(right))), columns)
    for row in rows:
        side.add(row)()
    judged = hosts.judge(side, right)
    assert judged["of"] == judged["drawn"] == len(right) and (judged["wrong"] > 5) == bool(broken)
