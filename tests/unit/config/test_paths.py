"""The places of the files of one run and of several, also if an environment changes the working directory."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hunt import HUNT
from refused import Refused, check_refused, check_row
from whole_runs import SMALL, changed

import marlcore as mc
from marlcore.cli import eval
from marlcore.config import ReplayConfig, SelfPlayConfig
from marlcore.envs import factory
from marlcore.record import RunDirectory, read_metrics
from marlcore.run import Launch


def moving(folder):
    """Changes the working directory, and returns an environment."""
    os.chdir(folder)
    return factory(HUNT)()


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A function that changes the working directory from `here` to `elsewhere`, and makes an environment."""
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return partial(moving, tmp_path / "elsewhere")


def test_every_path_is_absolute_before_an_environment_is_made(elsewhere, tmp_path):
    here = tmp_path / "here"
    (here / "replays").mkdir()
    league = mc.Config(self_play=SelfPlayConfig(pool=1, anchors={"old.pt": 0.1, "bots:Bot": 0.1})).with_absolute_paths()
    assert list(league.self_play.anchors) == [str(here / "old.pt"), "bots:Bot"]
    config = mc.Config(run_dir="run", mode="serial", replay=ReplayConfig(path="replays"))
    checked = Launch.checked(elsewhere, "dqn", config, resume=here / "run").spec
    assert Path.cwd() == tmp_path / "elsewhere"
    assert (checked.config.run_dir, checked.config.replay.path) == (str(here / "run"), str(here / "replays"))
    os.chdir(here)
    resumed = Launch.checked(elsewhere, "dqn", replace(config, run_dir=None), resume="earlier")
    assert resumed.resume == here / "earlier"


@pytest.mark.parametrize(("run_dir", "resume"), [("other", "run"), ("memory://run", "run"), ("run", "memory://run")])
def test_another_directory_than_the_resumed_one_is_refused(run_dir, resume, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    says = f"run_dir: expected None or the directory of the resumed run, {resume!r}, got {run_dir!r}"
    check_refused(lambda: mc.train(HUNT, "dqn", mc.Config(run_dir=run_dir), resume=resume), ValueError, says)
    assert not any(tmp_path.iterdir())


def test_the_resumed_directory_may_have_another_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("runs")
    for run_dir in ("runs/a", "link/a", "runs/../runs/a", str(tmp_path / "runs" / "a")):
        config = mc.Config(mode="serial", run_dir=run_dir)
        assert Launch.checked(HUNT, "dqn", config, resume="runs/a").resume == tmp_path / "runs" / "a"


def test_a_default_directory_lies_where_the_run_started(elsewhere, tmp_path):
    here = tmp_path / "here"
    checked = Launch.checked(elsewhere, "dqn", mc.Config(mode="serial"))
    with RunDirectory.create(None, {}, checked.runs) as run:
        assert run.path.parent == here / "runs"


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("policy", "named"), [("other", "RUNS/other"), ("bots:Bot", "bots:Bot")])
def test_runs_among_the_policies_of_an_evaluation_are_absolute(tmp_path, monkeypatch, policy, named):
    monkeypatch.chdir(tmp_path)
    mc.train(HUNT, "dqn", mc.Config(total_steps=20, mode="serial", run_dir="run"), progress=False)
    (tmp_path / "other").mkdir()
    says = f"got {named.replace('RUNS', str(tmp_path))!r}"
    check_refused(lambda: eval.main(["run", "--policies", "agent_0", policy]), ValueError, says)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["serial", "async"])
@pytest.mark.usefixtures("undrawn", "shared_fork_server")
def test_a_run_stays_where_it_was_started(elsewhere, tmp_path, monkeypatch, mode):
    here = tmp_path / "here"
    (here / "replays").mkdir()
    replay = {"capacity": 600, "save": True, "path": "replays"}
    config = changed(SMALL, total_steps=400, mode=mode, run_dir="run", replay=replay)
    first = mc.train(elsewhere, "dqn", config, progress=False)
    assert first.run_dir == here / "run" and read_metrics(first.run_dir / "metrics.csv")
    monkeypatch.chdir(here)
    assert mc.evaluate("run", 2).episodes == 2
    monkeypatch.chdir(here)
    assert mc.train(elsewhere, "dqn", replace(config, total_steps=800), progress=False, resume="run").steps >= 800
    monkeypatch.chdir(here)
    many = mc.train_seeds(elsewhere, "dqn", replace(config, run_dir="seeds", total_steps=100), (0, 1), progress=False)
    assert [result.run_dir for result in many] == [here / "seeds" / "seed-0", here / "seeds" / "seed-1"]
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_seed_that_comes_twice_is_refused(tmp_path: Path) -> None:
    config = mc.Config(run_dir=str(tmp_path / "all"))
    serial, many = replace(config, mode="serial"), partial(mc.train_seeds, HUNT, "dqn")
    rows: list[Refused] = [
        (partial(many, config, [1, 1]), "seeds: expected at least one seed, each seed once, got [1, 1]"),
        (partial(many, config, [1], parallel=0), "parallel: expected an integer of at least 1, got 0"),
        (partial(many, serial, [1, 2], parallel=2), "parallel: expected 1 in serial mode, whose"),
    ]
    for row in rows:
        check_row(row)
    assert list(tmp_path.iterdir()) == []
