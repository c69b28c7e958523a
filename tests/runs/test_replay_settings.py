"""Settings of the replay in whole runs: priorities, files instead of memory, batches drawn ahead."""

import os
import signal
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from crowd import Crowd
from processes import sweep, until
from refused import check_refused
from seams import patch, replace
from whole_runs import LONG, MODES, ON_POLICY, Runs, checkpoint, kill_once, past, updating, values_of

import marlcore as mc
from marlcore.memory import Segment
from marlcore.processes import ForkServer
from marlcore.record import described_run, steps_taken
from marlcore.replay.saving import arrays_in

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

runs = Runs(
    mode="async",
    total_steps=2_000,
    learner={"batch_size": 32, "warmup": 100, "n_step": 3, "log_interval": 20},
    replay={"prioritized": True, "alpha": 1.0, "beta": 0.2, "beta_steps": 200},
    exploration={"epsilon": 1.0},
    updates_per_step=0.2,
)
ALONE = partial(Crowd, 1)


def favour(update: Any, batch: Any) -> mc.Update:
    """Gives transitions with the action 1 five times the priority of the others, and reports what was drawn."""
    ones = (batch.action == 1).float()
    drawn = {"ones": ones.mean(), "least_weight": batch.weight.min()}
    return mc.Update({**update(batch).metrics, **drawn}, priority=0.2 + 0.8 * ones)


FAVOURING = updating(mc.DQN, favour)()


@pytest.mark.parametrize(
    ("mode", "prefetch"), [("serial", 0), pytest.param("async", 0, marks=LONG), pytest.param("async", 2, marks=LONG)]
)
def test_the_trainers_priorities_decide_what_is_drawn(tmp_path: Path, mode: str, prefetch: int) -> None:
    """Beta rises meanwhile: the weights of rare rows fall."""
    learner = {"prefetch": prefetch}
    result = runs.train(tmp_path, ALONE, FAVOURING, mode=mode, learner=learner)
    ones, weights = values_of(result.run_dir, "ones"), values_of(result.run_dir, "least_weight")
    due = 0.2 * (2_000 - 100)
    assert due * 0.98 <= result.updates["agent_0"] <= due + 1, "batches drawn ahead train as many times"
    assert sum(ones[-5:]) / 5 > 0.7, ones  # new rows come with the highest priority
    assert weights[0] > 0.5 and max(weights[-5:]) < 0.3, weights
    rows = values_of(result.run_dir, "rows")
    assert rows[0] >= 100 and rows == sorted(rows) and 1_500 < rows[-1] <= 2_000


def test_each_priority_reaches_the_sampler(tmp_path: Path) -> None:
    """Rows of the n-th batch get the priority n."""
    given: dict[int, int] = {}  # by index of a row, the newest
    numbers: list[int] = []

    def numbered(update: Any, batch: Any) -> mc.Update:
        numbers.append(number := len(numbers) + 1)
        given.update(dict.fromkeys(batch.index.tolist(), number))
        return mc.Update(update(batch).metrics, priority=torch.full((len(batch.index),), float(number)))

    algorithm = updating(mc.DQN, numbered)()
    run_dir = runs.train(tmp_path, ALONE, algorithm, mode="serial", total_steps=600).run_dir
    masses = np.asarray(checkpoint(run_dir)["sampler"]["masses"]).reshape(2, -1)  # of each lane's rows
    index = np.array([*given])
    np.testing.assert_allclose(masses[index % 2, index // 2], [*given.values()], rtol=1e-4)
    assert len(index) > 200


@LONG
def test_uniform_draws_are_half_and_half(tmp_path: Path) -> None:
    """The control: without `prioritized` the trainer's priorities are left."""
    run_dir = runs.train(tmp_path, ALONE, FAVOURING, mode="serial", replay=mc.ReplayConfig()).run_dir
    assert 0.4 < sum(values_of(run_dir, "ones")[-5:]) / 5 < 0.6
    assert set(values_of(run_dir, "least_weight")) == {1.0}


@pytest.fixture
def large(tmp_path: Path) -> Path:
    (tmp_path / "large").mkdir()
    return tmp_path / "large"


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def in_files(folder: Path) -> mc.ReplayConfig:
    return mc.ReplayConfig(path=str(folder), save=True)


@MODES
def test_replays_in_files_are_gone_after_the_run(tmp_path: Path, large: Path, mode: str) -> None:
    with runs.start(tmp_path, ALONE, mode=mode, total_steps=10**9, replay=in_files(large)) as run:
        past(run, 500)
        (name,) = files(large)
        assert name.endswith("agent_0.replay")
    assert files(large) == []
    steps = run.status().steps + 500
    result = runs.train(tmp_path, ALONE, mode=mode, total_steps=steps, replay=in_files(large), resume=True)
    assert files(large) == [] and result.steps >= steps


@pytest.fixture
def durable(large: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch(monkeypatch, "transitions", check_keeps=lambda target: None)  # the tests' folder may be in memory
    return {"path": str(large), "durable": True}


@MODES
def test_a_durable_replay_outlives_its_run(
    tmp_path: Path, large: Path, durable: dict[str, Any], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its rows and priorities; a resumed run says how many there are, and adds to them at once."""
    said: list[str] = []
    patch(monkeypatch, "run", say=said.append)
    runs.train(tmp_path, ALONE, FAVOURING, mode=mode, total_steps=600, replay=durable)
    file, state = files(large)
    assert file.startswith("agent_0-")
    assert state == f"{file}@learner.sampler"
    with mc.ReplayBuffer.attach(large / file) as replay:
        assert (rows := len(replay)) >= 600
        versions = replay.newest_version()
    more = runs.train(tmp_path, ALONE, FAVOURING, mode=mode, total_steps=900, replay=durable, resume=True)
    assert files(large) == [file, state]
    with mc.ReplayBuffer.attach(large / file) as replay:
        assert len(replay) >= 900
        assert replay.newest_version() >= versions
    assert f"resume: continues at step 600 of 900 with {rows} rows" in said
    assert min(values_of(more.run_dir, "rows")[-3:]) > 600
    assert max(values_of(more.run_dir, "policy_lag")) < checkpoint(more.run_dir)["version"]


class Tagged(gymnasium.Wrapper):
    """Tags episodes for the parts of a mixture in turn."""

    episodes = 0

    def reset(self, **options: Any) -> Any:
        self.episodes += 1
        obs, info = super().reset(**options)
        return obs, info | {"tag": ("main", "other")[self.episodes % 2]}


@MODES
def test_a_durable_mixture_draws_on_in_a_resumed_run(
    tmp_path: Path, large: Path, durable: dict[str, Any], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From both parts, with their rows and priorities; its state is in the checkpoint alone."""
    patch(monkeypatch, "run", Durable=partial(mc.Durable, every_s=0.01))  # a state has the rows below a watermark
    replay = durable | {"mixture": {"main": 0.7, "other": 0.3}}
    train = partial(runs.train, tmp_path, lambda: Tagged(gymnasium.make("CartPole-v1")), FAVOURING, mode=mode)
    first = checkpoint(train(total_steps=600, replay=replay).run_dir)
    (file,) = files(large)
    more = checkpoint(train(total_steps=900, replay=replay, resume=True).run_dir)
    assert files(large) == [file]
    with mc.ReplayBuffer.attach(large / file) as rows:
        assert len(rows) >= 900
    for part in "01":
        before, after = (np.asarray(state["sampler"][f"{part}.masses"]) for state in (first, more))
        given = abs(before - 0.2) < 0.01  # new rows have 1.0
        assert given.sum() > 20 and (after[given] == before[given]).mean() > 0.9
        assert (after > 0).sum() > (before > 0).sum()
        assert more["sampler"][f"{part}.batches"] == more["updates"] > first["updates"] > 0


def test_a_run_whose_files_were_moved_is_described_with_their_new_place(tmp_path: Path, large: Path) -> None:
    replay = {"path": str(large), "durable": True}
    result = runs.train(tmp_path, "gymnasium:CartPole-v1", mode="serial", total_steps=300, replay=replay)
    moved = large.rename(large.with_name("moved"))
    check_refused(partial(described_run, result.run_dir), ValueError, "replay.path: expected an existing directory")
    assert described_run(result.run_dir, replay_path=str(moved))[2].replay.path == str(moved)


def test_a_run_that_draws_windows_resumes_on_a_durable_replay(tmp_path: Path, durable: dict[str, Any]) -> None:
    again = partial(runs.train, tmp_path, ALONE, mc.R2D2(hidden=(8,)), replay=durable | {"prioritized": False})
    again(total_steps=600)
    assert again(total_steps=700, resume=True).steps == 700


def test_a_run_keeps_to_its_kind_of_replay(tmp_path: Path, durable: dict[str, Any]) -> None:
    kinds = [{"path": durable["path"], "save": True}, durable]
    for name, first, other in (("a", *kinds), ("b", *reversed(kinds))):
        runs.train(tmp_path / name, ALONE, mode="serial", total_steps=300, replay=first)
        again = partial(runs.train, tmp_path / name, ALONE, mode="serial", total_steps=600, resume=True)
        check_refused(partial(again, replay=other), ValueError, "resume: expected replay.durable")
        again(replay=first)


def has_priorities(state: Path) -> bool:
    """Whether a kept state knows rows: those below the watermark, of which there may be none at first."""
    with closing(Segment.attach(state, writable=False)) as segment:
        return bool(arrays_in(segment, 0)["masses"].any())


@LONG
def test_a_killed_run_resumes_with_its_rows(
    tmp_path: Path, large: Path, durable: dict[str, Any], fork_server: ForkServer
) -> None:
    kill_once(
        lambda: any(map(has_priorities, large.glob("*.sampler"))), fork_server, favour_endlessly, tmp_path, durable
    )
    (file,) = large.glob("*.marlcore")
    with mc.ReplayBuffer.attach(file) as replay:
        before, masses = len(replay), replay.sampler(8, prioritized=PRIORITIES, n_step=3, name="learner").state_dict()
    assert before > 100
    assert masses["masses"].any()
    steps = max(before, steps_taken(tmp_path / "run")) + 500  # its lanes may have lapped
    more = runs.train(tmp_path, ALONE, FAVOURING, total_steps=steps, replay=durable, resume=True)
    assert more.steps >= steps
    with mc.ReplayBuffer.attach(file) as replay:
        assert len(replay) > before
    sweep()


PRIORITIES = mc.Prioritized(alpha=1.0, beta=0.2, beta_steps=200)
ENDLESS = {"learner": {"checkpoint_interval": 20}, "total_steps": 10**9}


def favour_endlessly(folder: Path, replay: dict[str, Any]) -> None:
    replace("transitions", check_keeps=lambda target: None)
    runs.train(folder, ALONE, FAVOURING, replay=replay, **ENDLESS)


class Once:
    """Runs of PPO with a durable queue, whose trainer writes down which transitions it learned from."""

    runs = Runs(mode="async", **ON_POLICY)

    def __init__(self, folder: Path, large: Path) -> None:
        self.folder, self.large, self.log = folder, large, folder / "learned.txt"
        kind = updating(mc.PPO, self.learn)
        algorithm = kind(hidden=(8,), batch_size=32, minibatch_size=32, epochs=1)
        replay = {"path": str(self.large), "durable": True}
        self.train = partial(self.runs.train, folder, ALONE, algorithm, replay=replay)
        self.start = partial(self.runs.start, folder, ALONE, algorithm, replay=replay)

    def learn(self, update: Any, batch: Any) -> mc.Update:
        with self.log.open("a") as log:
            print(*batch.index.tolist(), file=log)
        if (trap := self.folder / "trap").exists() and len(self.learned()) > 1_000:
            trap.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        made: mc.Update = update(batch)
        return made

    def learned(self) -> list[int]:
        return [int(number) for number in self.log.read_text().split()]

    def counted(self) -> int:
        """The transitions that the last checkpoint has learned from."""
        _, passed, dropped, skipped = checkpoint(self.folder / "run")["reader"]["cursor"].sum(1).tolist()
        assert dropped == 0
        return int(passed - skipped)

    def check(self) -> None:
        """Every transition was learned from once, by what the last checkpoint knows."""
        learned, lanes = np.array(self.learned()), ON_POLICY["actor"].envs
        assert len(learned) == len(np.unique(learned)) == self.counted()
        assert self.counted() == 32 * checkpoint(self.folder / "run")["updates"]
        (file,) = self.large.glob("*.marlcore")
        with mc.TrajectoryQueue.attach(file) as queue:
            assert len(queue) + len(learned) + queue.skipped.sum() == queue.inserted
            for lane in range(lanes):
                assert (np.diff(learned[learned % lanes == lane]) > 0).all()


@MODES
def test_an_on_policy_run_learns_from_each_transition_once(
    tmp_path: Path, large: Path, durable: dict[str, Any], mode: str
) -> None:
    """What the first part left in its queue comes first in the second."""
    once = Once(tmp_path, large)
    once.train(mode=mode, total_steps=300)
    once.check()
    first = once.learned()
    once.train(mode=mode, total_steps=700, resume=True)
    once.check()
    assert once.learned()[: len(first)] == first
    assert len(once.learned()) >= 640


@LONG
def test_a_killed_on_policy_run_learns_from_each_transition_once(
    tmp_path: Path, large: Path, durable: dict[str, Any], fork_server: ForkServer
) -> None:
    """It begins at its checkpoint: later batches are learned from again."""
    once = Once(tmp_path, large)
    kill_once(lambda: once.log.exists() and len(once.learned()) > 3_000, fork_server, learn_once, tmp_path, large)
    known = once.learned()[: once.counted()]
    once.log.write_text(" ".join(map(str, known)) + "\n")
    once.train(total_steps=steps_taken(tmp_path / "run") + 2_000, resume=True)
    once.check()
    assert len(once.learned()) > len(known)
    sweep()


@LONG
def test_a_killed_learner_begins_again_at_its_checkpoint(tmp_path: Path, large: Path, durable: dict[str, Any]) -> None:
    """Its published weights, which are newer, know rows that its successor reads again: at least its last batch."""
    once = Once(tmp_path, large)
    (tmp_path / "trap").touch()
    with once.start(learner={"checkpoint_interval": 1000}, total_steps=10**9) as run:
        until(lambda: run.status().restarts["learner-agent_0"])
        past(run, run.status().steps + 1_000)
    assert once.counted() == 32 * checkpoint(tmp_path / "run")["updates"] < len(once.learned())
    assert len(np.unique(once.learned())) == once.counted()


def train_endlessly(folder: Path, large: Path) -> None:
    runs.train(folder, ALONE, replay=in_files(large), **ENDLESS)


def learn_once(folder: Path, large: Path) -> None:
    replace("transitions", check_keeps=lambda target: None)
    Once(folder, large).train(learner={"checkpoint_interval": 1000}, total_steps=10**9)


@LONG
def test_files_of_a_killed_run_block_no_later_one(tmp_path: Path, large: Path, fork_server: ForkServer) -> None:
    (large / "marlcore-notes.txt").write_text("kept")
    saves = partial(tmp_path.glob, "run/checkpoints/*.replay")
    kill_once(lambda: any(saves()), fork_server, train_endlessly, tmp_path, large)
    assert len(files(large)) == 2, "the killed run left its file"
    other = runs.train(tmp_path / "other", ALONE, replay=in_files(large))
    assert other.steps >= 2_000 and files(large) == ["marlcore-notes.txt"]
    config = runs.configured(tmp_path, replay=in_files(large), **{**ENDLESS, "total_steps": 2 * 10**9})
    with mc.start(ALONE, "dqn", config, resume=tmp_path / "run") as resumed:
        assert len(files(large)) == 2
        past(resumed, resumed.status().steps + 500)
    assert files(large) == ["marlcore-notes.txt"]
    sweep()
