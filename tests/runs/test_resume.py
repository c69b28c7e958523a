"""A run that was ended, by itself, by Ctrl-C or by SIGKILL, goes on from its last checkpoints, or is refused."""

import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from crowd import Corridor, interrupt
from gymnasium.spaces import Box, Discrete
from hunt import HUNT
from processes import sweep, until
from refused import check_refused
from seams import undrawn
from whole_runs import (
    LONG,
    Runs,
    checkpoint,
    config_of,
    finished,
    learners_saved,
    marlcore,
    metrics_of,
    saved_replay,
    steps_of,
)

import marlcore as mc
from marlcore.__main__ import main
from marlcore.config import assign
from marlcore.envs import TreasureHunt
from marlcore.meta import train_seeds
from marlcore.record import RunDirectory, describe, described_run, save_checkpoint, write_json
from marlcore.spaces import Spaces

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

runs = Runs(total_steps=3000, exploration={"epsilon": "exponential(1, 0.02, rate=0.95, every=20, of=updates)"})
SAVED = mc.ReplayConfig(capacity=2000, save=True)
AGENTS = ("agent_0", "agent_1")
train = runs.train


def checkpoints(run: Path) -> list[dict[str, Any]]:
    return [checkpoint(run, agent) for agent in AGENTS]


# ---- what goes on ----


@LONG
@pytest.mark.parametrize("mode", ["serial", "async"])
def test_a_run_goes_on_where_it_ended(tmp_path: Path, mode: Any) -> None:
    """Also the versions of its weights: no row of a saved replay is of a future one."""
    first = train(tmp_path, HUNT, "iqn", mode=mode, replay=SAVED)
    before, rows = checkpoints(first.run_dir), metrics_of(first.run_dir)
    more = train(tmp_path, HUNT, "iqn", mode=mode, replay=SAVED, total_steps=9000, resume=True)
    assert more.run_dir == first.run_dir and 9000 <= more.steps < 9002
    after = checkpoints(more.run_dir)
    for agent, old, new in zip(AGENTS, before, after, strict=True):
        assert old["updates"] == first.updates[agent] < more.updates[agent] == new["updates"]
        assert new["trainer"]["updates"] == new["updates"] and new["version"] > old["version"]
        # Adam counts its steps: they go on with the moments
        assert {int(own["step"]) for own in new["trainer"]["optimizer"]["state"].values()} == {new["updates"]}
    later = metrics_of(more.run_dir)
    assert later[: len(rows)] == rows
    assert min(m.time_s for m in later[len(rows) :]) > max(m.time_s for m in rows) - 1.0
    assert min(m.step for m in later[len(rows) :]) >= 3000
    assert max(m.value for m in later if m.name.startswith("policy_lag")) < max(state["version"] for state in after)
    for agent in AGENTS:
        epsilons = [m.value for m in later if (m.agent, m.name) == (agent, "epsilon")]
        assert epsilons == sorted(epsilons, reverse=True) and epsilons[-1] < epsilons[0] < 1.0


def test_versions_go_on_after_those_of_a_newer_replay(tmp_path: Path) -> None:
    """A run that is killed while it saves has a new replay beside an old checkpoint."""
    train(tmp_path, HUNT, total_steps=400, replay=SAVED)
    paths = [tmp_path / "run" / "checkpoints" / f"{agent}.pt" for agent in AGENTS]
    old = [path.read_bytes() for path in paths]
    train(tmp_path, HUNT, total_steps=800, replay=SAVED, resume=True)
    versions = [state["version"] for state in checkpoints(tmp_path / "run")]
    for path, data in zip(paths, old, strict=True):
        path.write_bytes(data)
    train(tmp_path, HUNT, total_steps=1000, replay=SAVED, resume=True)
    for agent, state, newest in zip(AGENTS, checkpoints(tmp_path / "run"), versions, strict=True):
        with saved_replay(tmp_path / "run", agent) as replay:
            assert newest < replay.sampler(1000, min_size=1).sample().policy_version.max() <= state["version"]


@LONG
@pytest.mark.parametrize("save", [True, False])
def test_a_saved_replay_and_its_priorities_come_back(tmp_path: Path, save: bool) -> None:
    """Without its rows, a replay begins anew, and so do they; rows that are saved no more do not come back."""
    go_on = partial(train, tmp_path, HUNT, "iqn", resume=True, learner={"warmup": 1000})
    kept, unsaved = (replace(SAVED, prioritized=True, save=each) for each in (save, False))
    first = go_on(resume=False, replay=kept)  # 1500 steps of each agent
    assert all(state["sampler"]["masses"].sum() > 0 for state in checkpoints(first.run_dir))
    saved = first.run_dir / "checkpoints" / "agent_0.replay"
    assert saved.exists() == save
    if save:
        says = "the priorities in the run's saved replays depend on it; to change it, remove checkpoints/*.replay and"
        check_refused(lambda: go_on(total_steps=3400, replay=replace(kept, alpha=0.5)), ValueError, says)
    more = go_on(total_steps=3400, replay=kept)
    assert all((more.updates[agent] > first.updates[agent]) == save for agent in AGENTS)
    later = go_on(total_steps=7000, replay=unsaved)
    assert not saved.exists() and all(later.updates[agent] > first.updates[agent] for agent in AGENTS)
    go_on(total_steps=8000, replay=kept)


def test_a_learner_that_draws_ahead_is_resumed(tmp_path: Path) -> None:
    """No thread draws while the sampler's state is loaded: it would end the learner."""
    changes = {"mode": "async", "replay": replace(SAVED, prioritized=True), "updates_per_step": None}
    changes["learner"] = {"warmup": 100, "batch_size": 2048, "prefetch": 64}
    train(tmp_path, HUNT, total_steps=500, **changes)
    assert not any(train(tmp_path, HUNT, total_steps=800, resume=True, **changes).restarts.values())


def test_a_run_goes_on_from_the_newest_checkpoints_step(tmp_path: Path) -> None:
    """As after a parent was killed that saved its progress before the learners' last checkpoints."""
    linear: Any = {"exploration": mc.ExplorationConfig("linear(1, 0, 1200)")}
    linear["evaluation"] = mc.EvaluationConfig(interval=300, episodes=1)
    run = train(tmp_path, HUNT, total_steps=600, **linear).run_dir
    write_json(run / "checkpoints" / "run.json", {"time_s": 1.0, "steps": {"actor-0": 20}, "skips": 7})
    before = len(metrics_of(run))
    more = train(tmp_path, HUNT, total_steps=1200, resume=True, **linear)
    later = [metric.value for metric in metrics_of(run)[before:] if metric.name == "epsilon"]
    assert later and max(later) <= 0.55
    assert config_of(run)["total_steps"] == 1200
    assert more.updates["agent_0"] < 0.1 * 600 + 5
    assert {metric.value for metric in metrics_of(run)[before:] if metric.name == "eval_skipped"} == {7}


def test_a_resumed_run_takes_other_settings(tmp_path: Path) -> None:
    """More actors with more copies share the steps; the optimizers keep their moments and take the new rate."""
    first = train(tmp_path, HUNT, mc.DQN(learning_rate=1e-3), total_steps=300)
    older = config_of(first.run_dir)
    del older["learner"]["reward_norm"]  # as a version wrote it that had no such setting
    write_json(first.run_dir / "config.json", older)
    changes = {
        "actor": {"processes": 3, "envs": 1}, "exploration": {"epsilon": 0.1}, "metrics": {"sinks": ("csv",)},
        "replay": {"capacity": 3000, "prioritized": True}, "learner": {"gamma": 0.9, "n_step": 1},
    }  # fmt: skip
    more = train(tmp_path, HUNT, mc.DQN(learning_rate=5e-4, tau=0.5), total_steps=900, resume=True, **changes)
    assert 900 <= more.steps < 906 and more.updates["agent_0"] > first.updates["agent_0"]
    for agent in AGENTS:
        optimizer = checkpoint(more.run_dir, agent)["trainer"]["optimizer"]
        assert [group["lr"] for group in optimizer["param_groups"]] == [5e-4]
        assert {int(moments["step"]) for moments in optimizer["state"].values()} == {more.updates[agent]}
    described = config_of(more.run_dir)
    assert described["run_dir"] == str(more.run_dir)
    assert described["hyperparameters"]["learning_rate"] == 5e-4 and described["actor"]["processes"] == 3
    assert {metric.value for metric in metrics_of(more.run_dir)[-40:] if metric.name == "epsilon"} <= {0.1}
    fewer = train(tmp_path, HUNT, total_steps=1000, resume=True)
    assert 1000 <= fewer.steps < 1004


def test_changed_windows_draw_the_rows_of_a_saved_replay(tmp_path: Path) -> None:
    """Their priorities begin anew; where recurrent states are stored cannot change."""
    windows, kept = mc.R2D2(hidden=(8,), units=4, length=8, burn_in=4, period=4), replace(SAVED, prioritized=True)
    again = partial(train, tmp_path, Corridor, resume=True, learner={"batch_size": 4}, replay=kept)
    first = again(windows, resume=False, total_steps=100)
    more = again(replace(windows, burn_in=2), total_steps=150)
    assert more.updates["agent_0"] > first.updates["agent_0"]
    says = "; to begin without these rows, remove '"
    check_refused(lambda: again(replace(windows, burn_in=2, period=2), total_steps=200), ValueError, says)


def test_an_environment_with_the_same_spaces_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A curriculum is resumed in its next environment, and the log says so."""
    train(tmp_path, "treasure_hunt", total_steps=100)
    train(tmp_path, "treasure_hunt", total_steps=200, resume=True)
    assert "the environment" not in caplog.text
    train(tmp_path, TreasureHunt, total_steps=300, resume=True)
    assert "TreasureHunt instead of treasure_hunt, with the same spaces" in caplog.text


def test_a_resumed_run_says_that_its_replays_were_not_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tmp_path, HUNT, total_steps=300)
    train(tmp_path, HUNT, total_steps=420, resume=True)
    assert caplog.messages == ["resume: agent_0, agent_1: the replay begins empty, as it was not saved (replay.save)"]
    train(tmp_path, HUNT, total_steps=440, resume=True)
    assert "learner.warmup: agent_0 takes 10 of the 20 steps that are left, fewer than the 51 that" in caplog.text


def test_a_short_run_with_the_rows_of_an_earlier_part_is_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, Corridor, total_steps=300, replay=SAVED)
    train(tmp_path, Corridor, total_steps=320, resume=True, replay=replace(SAVED, save=False))
    assert "learner.warmup" not in caplog.text


def test_a_configuration_is_read_back_as_it_was(tmp_path: Path) -> None:
    changes = {"total_steps": 100, "supervision": mc.SupervisionConfig(max_restarts=7)}
    train(tmp_path, HUNT, **changes)
    decided = {"stack": 1}  # by the environment
    expected = runs.configured(tmp_path, replay=decided, **changes)
    assert mc.Config.from_dict(config_of(tmp_path / "run")) == expected
    assert mc.Config.from_dict({}) == mc.Config()


def test_learners_in_a_file_take_the_rest_from_learner() -> None:
    plain = {"learner": {"gamma": 0.9, "batch_size": 16}, "learners": {"guard": {"n_step": 1}}}
    guard = mc.Config.from_dict(plain).learner_of("guard")
    assert (guard.gamma, guard.batch_size, guard.n_step) == (0.9, 16, 1)


@LONG
def test_a_checkpoint_is_written_after_so_many_seconds(tmp_path: Path) -> None:
    learner = {"checkpoint_seconds": 1.0, "checkpoint_interval": 10**9}
    with runs.start(tmp_path, HUNT, mode="async", total_steps=10**9, learner=learner):
        until(lambda: learners_saved(tmp_path / "run"))


# ---- runs of the command ----


@LONG
def test_a_run_goes_on_after_its_parent_was_killed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--total-steps", "10000000", "--learner.checkpoint-interval", "50", "--learner.warmup", "100"]
    parent = marlcore("train", *options, "--run-dir", run, cwd=tmp_path)
    until(lambda: learners_saved(run) == 3 and steps_of(run), lambda: parent.poll() is None)
    with pytest.raises(ValueError, match=r"resume: expected a run that has ended, got .*, which is still running"):
        RunDirectory.resume(run)
    parent.kill()
    finished(parent)
    with (run / "metrics.csv").open("a") as metrics:
        metrics.write("12.5,100,agent_0,lo")  # half a line, as a kill may leave it
    before, updates = steps_of(run), min(torch.load(path)["updates"] for path in run.glob("checkpoints/*.pt"))
    assert main(["train", "--resume", str(run), "--total-steps", str(before + 5_000)]) == 0
    assert steps_of(run) >= before + 5_000
    assert all(torch.load(path)["updates"] > updates >= 50 for path in run.glob("checkpoints/*.pt"))
    while any(path.name in sweep() for path in Path("/dev/shm").glob("marlcore-*")):
        time.sleep(0.1)  # the killed run's workers let go of it within seconds


def test_ctrl_c_of_a_program_names_what_continues_the_run(tmp_path: Path) -> None:
    """For runs of seeds, it names each directory."""
    run, env_fn = tmp_path / "run", partial(Corridor, 100, interrupt)
    with pytest.raises(KeyboardInterrupt, match=f"^stopped; call it again with resume='{re.escape(str(run))}' to"):
        train(tmp_path, env_fn)
    config = runs.configured(tmp_path / "seeds")
    with pytest.raises(KeyboardInterrupt, match=r"/seeds/run/seed-N' to continue$") as stop:
        train_seeds(env_fn, "dqn", config, [1, 2], progress=False)
    assert stop.value.folder == config.run_dir and stop.type is KeyboardInterrupt, (
        "after which Python ends by the signal"
    )


MODULE = """
from dataclasses import dataclass
import marlcore as mc

@dataclass(frozen=True)
class Mine(mc.DQN):
    shape: tuple[int, ...] = (3, 4)

def hunt():
    return mc.TreasureHunt(agents=2, size=6, horizon=25, gems=3, food=1, bones=3)
"""
NAMED = "--env mine:hunt --algo mine:Mine --algorithm.shape 5 6 --mode serial --run-dir run --learner.warmup 50"


@LONG
def test_own_algorithms_and_environments_are_resumed_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(MODULE)

    options = *NAMED.split(), "--learner.device", "cpu", "--total-steps", "200"
    code, output = finished(marlcore("train", *options, cwd=tmp_path))
    assert code == 0, output
    plain = config_of(tmp_path / "run")
    assert (plain["env"], plain["algorithm"], plain["hyperparameters"]["shape"]) == ("mine:hunt", "mine:Mine", [5, 6])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as the commands do
    assert main(["train", "--resume", "run", "--total-steps", "300"]) == 0 and steps_of(tmp_path / "run") >= 300
    (tmp_path / "mine.py").unlink()
    del sys.modules["mine"]
    capsys.readouterr()
    assert main(["train", "--resume", "run", "--total-steps", "400"]) == main(["eval", "run"]) == 2
    resumed, evaluated = capsys.readouterr().err.splitlines()
    assert "got 'mine:Mine' (ModuleNotFoundError: No module named 'mine')" in resumed
    assert "/run' needs code not found here (No module named 'mine'): load the run where" in evaluated


# ---- what is refused, and leaves the run as it was ----


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with undrawn():
        return train(tmp_path_factory.mktemp("ended"), HUNT, total_steps=300, replay=SAVED).run_dir.parent


@pytest.fixture
def folder(ended: Path, tmp_path: Path) -> Path:
    """Holds a run of 300 steps that has ended, with its replays."""
    return shutil.copytree(ended, tmp_path, dirs_exist_ok=True)


def other_model(run: Path) -> None:
    other = train(run.parent / "other", HUNT, mc.DQN(hidden=(16, 8)), total_steps=100).run_dir
    shutil.copy(other / "checkpoints" / "agent_1.pt", run / "checkpoints")


def a_lost_file(run: Path) -> None:
    (run / "checkpoints" / "agent_0.pt").unlink()
    (run / "checkpoints" / "agent_0.pt").symlink_to("/nowhere")


CHANGED: dict[str, Callable[[Path], object]] = {
    "a checkpoint of another model": other_model,
    "a replay of another policy": lambda run: shutil.copy(
        run / "checkpoints" / "agent_1.replay", run / "checkpoints" / "agent_0.replay"
    ),
    "half a checkpoint": lambda run: (run / "checkpoints" / "agent_0.pt").write_bytes(b"half a file"),
    "a dangling link": a_lost_file,
}
LEFT = "total_steps: the run is complete; to continue it, expected more than the 300 steps that the run has taken, got "
HAD = ", as in the run so far, got "
RESUMED: dict[str, tuple[dict[str, Any], str]] = {
    "another algorithm": ({"algorithm": "iqn"}, f"resume: expected algorithm 'DQN'{HAD}'IQN'"),
    "other policies": ({"policies": {"agent_0": "a", "agent_1": "a"}}, f"resume: expected policies None{HAD}"),
    "priorities": ({"replay": replace(SAVED, prioritized=True)}, "expected replay.prioritized False"),
    "normalization": ({"learner": {"obs_norm": "running"}}, "expected learner.obs_norm 'off'"),
    "normalization of rewards": ({"learner": {"reward_norm": "running"}}, "expected learner.reward_norm 'off'"),
    "more copies than the replay's lanes": (
        {"actor": mc.ActorConfig(envs=3)}, f"resume: expected actor.envs 2{HAD}3",
    ),
    "normalization of a policy": (
        {"learners": {"agent_1": mc.LearnerConfig(obs_norm="running")}},
        f"resume: expected learners.agent_1.obs_norm 'off'{HAD}'running': the run's networks depend on it",
    ),
    "stacks": ({"replay": replace(SAVED, stack=2)}, f"expected replay.stack 1{HAD}2: the run's networks depend on it"),
    "rows for a saved replay": (
        {"replay": replace(SAVED, capacity=4000)},
        f"replay.capacity 2000{HAD}4000: the run's saved replays depend on it; to change it, remove "
        "checkpoints/*.replay and *.durable",
    ),
    "a hyperparameter of the network": (
        {"algorithm": mc.DQN(hidden=(16, 8), tau=0.5)},  # tau may change
        "resume: expected hyperparameters that fit agent_0's network, got hidden [16, 8] instead of [",
    ),
    "an environment of other agents": (
        {"env_fn": "gymnasium:CartPole-v1"},
        "resume: expected an environment for the policies ['agent_0', 'agent_1'], got one for ['agent_0']",
    ),
    "an environment of other observations": (
        {"env_fn": partial(HUNT, view=1)},
        "resume: expected an environment in which observation of agent_0 is {'kind': 'Box', ",
    ),
    "no step left": ({"total_steps": 300}, f"{LEFT}300"),
    "fewer steps": ({"total_steps": 100}, f"{LEFT}100"),
    "a checkpoint of another model": ({}, "resume: expected a checkpoint of agent_1's DQN, got "),
    "a replay of another policy": ({}, "resume: expected a replay of agent_0, got "),
    "another limiter": (
        {"updates_per_step": 0.5},
        "resume: expected a configuration that gives agent_0 the limiter of its saved replay (learner.batch_size, "
        "learner.warmup, updates_per_step and updates_tolerance as before), got RateLimiter(",
    ),
    "what begins without the old limiter": ({"learner": {"batch_size": 8}}, "to begin without these rows, remove '/"),
    "half a checkpoint": ({}, "resume: expected a checkpoint, got "),
    "a dangling link": ({}, "agent_0.pt' ([Errno 2] No such file or directory"),
}  # fmt: skip


@pytest.mark.parametrize("case", RESUMED)
def test_a_run_is_resumed_only_as_it_was(folder: Path, case: str) -> None:
    asked, says = RESUMED[case]
    CHANGED.get(case, Path)(folder / "run")
    before = {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}
    options = {"env_fn": HUNT, "total_steps": 400, "replay": SAVED, "resume": True, **asked}
    with pytest.raises(ValueError) as refused:
        train(folder, **options)
    assert says in (said := str(refused.value)) and "\n" not in said and "tau" not in said
    assert before == {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}


def test_a_checkpoint_with_wrong_or_missing_parts_is_named(folder: Path) -> None:
    path = folder / "run" / "checkpoints" / "agent_0.pt"
    sound, gone = checkpoint(folder / "run", "agent_0"), object()
    for part, value, of in (
        ("trainer", {}, "'s trainer"), ("torch", gone, "'s trainer"), ("torch", torch.zeros(()), "'s trainer"),
        ("updates", gone, "'s trainer"), ("updates", 2**63, ""), ("sampler", None, ""),
    ):  # fmt: skip
        changed = {name: each for name, each in (sound | {part: value}).items() if each is not gone}
        save_checkpoint(path, changed)
        expected = f"resume: expected a checkpoint{of and ' of agent_0'}{of}, got '"
        with pytest.raises(ValueError, match=rf"^{expected}.*agent_0\.pt' \(.*\)$"):
            train(folder, HUNT, total_steps=400, replay=SAVED, resume=True)


POLICIES = assign({"agent_0": Spaces(Box(-1, 1, (3,)), Discrete(2))}, None, mc.DQN(), stack=1)
DESCRIBED = {
    "algorithm: expected a name that can be imported, got __main__:Mine": {"algorithm": "__main__:Mine"},
    "environment: expected a name that can be imported, got __main__:make": {"env": "__main__:make"},
    "environment: expected a name that can be imported": {"env": "mine:ways.<locals>.<lambda>"},
    "hyperparameter tau: <function decay> cannot be": {"hyperparameters": {"tau": {"repr": "<function decay>"}}},
    "colour": {"hyperparameters": {"colour": 1}},
    "option cells: {1, 2} cannot be recreated": describe(
        mc.NamedEnvironment("treasure_hunt", {"cells": {1, 2}}), POLICIES, mc.Config()
    ),
}


@pytest.mark.parametrize("says", DESCRIBED)
def test_a_run_that_cannot_be_made_again_is_refused(tmp_path: Path, says: str) -> None:
    described = {**describe("treasure_hunt", POLICIES, mc.Config()), "env": "treasure_hunt", **DESCRIBED[says]}
    RunDirectory.create(tmp_path / "run", described).close()
    with pytest.raises(ValueError, match=r"^resume: expected a run that its config\.json describes") as caught:
        described_run(tmp_path / "run")
    assert says in str(caught.value) and "marlcore.train(env_fn, algorithm, config, resume=" in str(caught.value)


def test_a_named_environment_is_made_again_with_its_options(tmp_path: Path) -> None:
    env = mc.NamedEnvironment("gymnasium:CartPole-v1", {"max_episode_steps": 7}, ("mine:wrapped",))
    RunDirectory.create(tmp_path / "run", describe(env, POLICIES, mc.Config())).close()
    again, _, _ = described_run(tmp_path / "run")
    assert (again.name, again.options, [*again.wrappers]) == (env.name, env.options, ["mine:wrapped"])
    assert "env_options" not in describe(mc.NamedEnvironment("treasure_hunt"), POLICIES, mc.Config())
