"""Populations: members that copy each other, keep their settings, or are left behind; killed, stopped and resumed."""

import csv
import itertools
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import victims
from crowd import Corridor, interrupt
from processes import children, family, start_python, until
from refused import check_refused, refusals
from whole_runs import LONG, Runs, checkpoint, config_of, doomed, metrics_of, steps_of

import marlcore as mc
from marlcore.meta import Member
from marlcore.meta.lineage import Lineage
from marlcore.meta.population import _score, links_to_take, take_links
from marlcore.meta.settings import fit_together
from marlcore.meta.several import folder_of, working_in
from marlcore.processes import ForkServer
from marlcore.record import checkpoint_path, load_checkpoint, save_checkpoint, write_json

pytestmark = pytest.mark.usefixtures("undrawn")

DQN = mc.DQN(hidden=(8,))
RATE = {"algorithm.learning_rate": mc.LogUniform(1e-5, 1e-2)}
DURABLE = {"durable": True, "path": "."}
PPO = mc.PPO(hidden=(8,), batch_size=8, minibatch_size=8)
WINDOWS = mc.R2D2(hidden=(8,), length=8, burn_in=4, period=4)
STILL = {"warmup": 9_000}  # too short for any update: weights stay as they were
runs = Runs(total_steps=60, actor={"envs": 1})


@pytest.fixture(autouse=True)
def unplotted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlcore.meta.population.plot_lineage", lambda *_: None)


@pytest.fixture
def scored_by_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member's score is its learning rate."""
    rate_of = lambda run_dir, *_: float(config_of(run_dir)["hyperparameters"]["learning_rate"])  # noqa: E731
    monkeypatch.setattr("marlcore.meta.population._score", rate_of)


def population(**changes: Any) -> mc.PopulationConfig:
    return mc.PopulationConfig(**{"settings": RATE, "size": 4, "parallel": 1, "interval": 20, "share": 0.5, **changes})


def train(
    folder: Path, chosen: Any, algorithm: Any = DQN, env_fn: Any = Corridor, resume: bool = False, **changes: Any
) -> list[Member]:
    config, again = runs.configured(folder, **changes), folder / "run" if resume else None
    return mc.train_population(env_fn, algorithm, config, chosen, progress=False, resume=again)


def lineage(folder: Path) -> list[dict[str, str]]:
    with open(folder / "run" / "lineage.csv") as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("scored_by_rate")
def test_losers_take_weights_and_settings_of_winners(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without updates, weights are those of a member's seed, or of the one that was copied last; one line says so."""
    members = train(tmp_path, population(resample=0.0), learner=STILL)
    rows = lineage(tmp_path)
    assert [member.steps for member in members] == [60] * 4 and len(rows) == 12
    assert members == sorted(members, key=lambda member: -member.score) and "interval: " not in caplog.text
    assert caplog.text.count("that it needs to begin to learn") == 1
    origin, now = {number: number for number in range(4)}, dict[str, float]()
    for i, row in enumerate(rows):
        now[row["member"]] = float(row["algorithm.learning_rate"])
        if not row["copied"]:
            continue
        origin[int(row["member"])] = origin[int(row["copied"])]
        after = next(own for own in rows[i + 1 :] if own["member"] == row["member"])
        expected = [min(factor * now[row["copied"]], 1e-2) for factor in (0.8, 1.2)]
        assert float(after["algorithm.learning_rate"]) in map(pytest.approx, expected)
        run_dir = tmp_path / "run" / f"member-{row['member']}"
        steps = [metric.step for metric in metrics_of(run_dir)]
        assert config_of(run_dir)["init_from"]["agent_0"].startswith(str(run_dir)) and steps == sorted(steps)
        assert checkpoint(run_dir)["step"] == 60, "steps are a member's own"
    assert len({*origin.values()}) < 4
    weights = {member.number: checkpoint(member.run_dir)["network"] for member in members}
    for number, other in itertools.permutations(range(4), 2):
        same = all(map(torch.equal, weights[number].values(), weights[other].values()))
        assert same == (origin[number] == origin[other])


def test_populations_of_neighbouring_seeds_share_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log says that their members copy none before the end."""
    short = {"total_steps": 20, "learner": STILL}
    both = [train(tmp_path / str(seed), population(size=2), seed=seed, **short) for seed in (0, 1)]
    assert len({config_of(member.run_dir)["seed"] for members in both for member in members}) == 4
    assert caplog.text.count("interval: no member compares scores before its 20 steps") == 2


def test_random_members_keep_their_settings(tmp_path: Path) -> None:
    members = train(tmp_path, population(method="random", settings={"algorithm.hidden": mc.Choice((4,), (8, 8))}))
    assert {member.steps for member in members} == {60} and len(lineage(tmp_path)) == 4
    for member in members:
        described = config_of(member.run_dir)
        assert tuple(described["hyperparameters"]["hidden"]) == member.settings["algorithm.hidden"]
    assert {member.settings["algorithm.hidden"] for member in members} == {(4,), (8, 8)}
    assert {member.score for member in members} == {5.0}, "an episode returns 5"


@pytest.mark.usefixtures("scored_by_rate")
def test_the_best_half_goes_on_to_each_further_rung(tmp_path: Path) -> None:
    members = train(tmp_path, population(method="halving", interval=15, eta=2), learner=STILL)
    rates = sorted((member.settings["algorithm.learning_rate"] for member in members), reverse=True)
    assert [member.score for member in members] == rates
    steps = Counter(member.steps for member in members)
    assert members[0].steps == 60 and steps[15] >= 1 and len(lineage(tmp_path)) > 4


def test_settings_that_are_not_allowed_together_are_not_taken(tmp_path: Path) -> None:
    """A minibatch of 16 does not fit into a batch of 8; each of the two sizes fits what the other is without it."""
    settings = {"algorithm.batch_size": mc.Choice(8, 16), "algorithm.minibatch_size": mc.Choice(4, 16)}
    algorithm = mc.PPO(hidden=(8,), batch_size=16, minibatch_size=4)
    chosen = population(settings=settings, size=6, resample=1.0)
    members = train(tmp_path, chosen, algorithm, total_steps=80)
    rows = [(int(row["algorithm.batch_size"]), int(row["algorithm.minibatch_size"])) for row in lineage(tmp_path)]
    assert {*rows} == {(8, 4), (16, 4), (16, 16)} and all(member.steps == 80 for member in members)
    never = partial(Lineage.begun, tmp_path / "none", chosen, 80, 0, lambda settings: False)
    check_refused(never, ValueError, "settings: expected values that are allowed together, got none in 1000 draws")


def test_settings_are_judged_together_as_a_run_judges_them() -> None:
    """A replay of 1,000 rows never holds the 5,000 rows of a warm-up; each alone has room in the usual ones."""
    chosen = population(settings={"replay.capacity": mc.Choice(1000, 9000), "learner.warmup": mc.Choice(50, 5000)})
    fit = partial(fit_together, Corridor, DQN, mc.Config(replay=mc.ReplayConfig(capacity=9000)), chosen)
    alone = [fit({name: value}) for name, value in (("replay.capacity", 1000), ("learner.warmup", 5000))]
    assert alone == [True, True] and not fit({"replay.capacity": 1000, "learner.warmup": 5000})


def test_a_diverged_member_copies_another(tmp_path: Path) -> None:
    """With Adam's step size 1e30 no weights stay finite; the other option learns."""
    settings = {"algorithm.learning_rate": mc.Choice(1e-3, 1e30)}
    members = train(tmp_path, population(settings=settings, interval=100), total_steps=200)
    lost = [row for row in lineage(tmp_path) if row["score"] == "-inf"]
    assert {row["algorithm.learning_rate"] for row in lost} == {"1e+30"}
    assert any(row["copied"] for row in lost)
    places = [(row["member"], row["step"]) for row in lineage(tmp_path)]
    assert len(places) == len(set(places)), "a row for each segment, whenever the member copied another"
    assert all(member.steps == 200 for member in members if member.score > float("-inf"))


def test_a_score_is_of_the_last_tenth_of_episodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [SimpleNamespace(name="episode_return", step=i, agent="a", value=float(i)) for i in range(1, 19)]
    monkeypatch.setattr("marlcore.meta.population.each_metric", lambda path: rows)
    assert _score(tmp_path, 0, evaluates=False) == 18.0


class Cut(BaseException):
    """Stands for SIGKILL of the program."""


@pytest.mark.usefixtures("scored_by_rate")
def test_a_population_cut_at_any_write_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each member's segments are noted once, however often the program dies before or after a write."""
    write, left = Lineage.write, [0]

    def cut(self: Lineage) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Cut
        write(self)
        if left[0] == -1:
            raise Cut

    monkeypatch.setattr(Lineage, "write", cut)
    chosen, cuts = population(size=2), 0
    for left[0] in (2, 3, 1, 2, 0, 9):
        try:
            members = train(tmp_path, chosen, learner=STILL, total_steps=40, resume=cuts > 0)
        except Cut:
            cuts += 1
    rows = Counter((row["member"], row["step"]) for row in lineage(tmp_path))
    assert cuts == 5 and rows == {(member, step): 1 for member in "01" for step in ("20", "40")}
    assert [member.steps for member in members] == [40, 40]
    check_refused(
        lambda: train(tmp_path, chosen, total_steps=40, resume=True), ValueError,
        "total_steps: expected a larger number, since no member has steps left to take, got 40",
    )  # fmt: skip
    says = "/run', which holds the runs ['member-0', 'member-1']"
    check_refused(lambda: mc.load_policy(tmp_path / "run", "agent_0"), ValueError, says)


def asking(settings: Any = None, method: str = "pbt", **changes: Any) -> Callable[[], object]:
    """A population in a directory that cannot be made, of these settings and changes of its members' configuration."""
    chosen = {"settings": settings or {"algorithm.learning_rate": mc.Choice(1e-3, 1e-2)}, "method": method}
    return lambda: train(Path("/proc/nothing"), population(**chosen), **changes)


def several(algorithm: Any, config: Any, **options: Any) -> Callable[[], object]:
    return lambda: mc.train_population(Corridor, algorithm, config, population(), **options)


test_what_no_population_can_do_is_refused = refusals({
    "no setting": (asking({"learner.gama": mc.Uniform(0, 1)}), "got 'learner.gama'; did you mean learner."),
    "no hyperparameter": (
        asking({"algorithm.learning_rat": mc.Uniform(0, 1)}), "did you mean algorithm.learning_rate?",
    ),
    "a value out of its range": (asking({"learner.gamma": mc.Uniform(0.9, 1.5)}), "learner.gamma: expected a number"),
    "another network": (
        asking({"algorithm.hidden": mc.Choice((8,), (9,))}),
        "got 'algorithm.hidden', whose value (9,) changes the run's network or saved replays",
    ),
    "another limiter of a saved replay": (
        asking({"learner.batch_size": mc.Choice(16, 32)}, replay={"save": True}),
        "got 'learner.batch_size', whose value 32 changes the run's network or saved replays",
    ),
    "another limiter of a durable one": (
        asking({"learner.batch_size": mc.Choice(16, 32)}, replay=DURABLE),
        "got 'learner.batch_size', whose value 32 changes the run's network or saved replays",
    ),
    "other transitions": (
        asking({"algorithm.period": mc.Choice(4, 8)}, replay={"save": True}, algorithm=WINDOWS),
        "got 'algorithm.period', whose value 8 changes the run's network or saved replays",
    ),
    "other windows": (
        asking({"algorithm.burn_in": mc.Choice(4, 2)}, replay=DURABLE | {"prioritized": True}, algorithm=WINDOWS),
        "got 'algorithm.burn_in', whose value 2 changes the run's network or saved replays",
    ),
    "a larger queue": (
        asking({"algorithm.batch_size": mc.Choice(8, 16)}, replay=DURABLE, algorithm=PPO),
        "got 'algorithm.batch_size', whose value 16 changes the run's network or saved replays",
    ),
    "the capacity of a durable replay": (
        asking({"replay.capacity": mc.Choice(900, 1000)}, replay=DURABLE),
        "may vary, got 'replay.capacity': the run's saved replays depend on it",
    ),
    "what a resumed run keeps": (
        asking({"replay.stack": mc.Choice(1, 2)}), "may vary, got 'replay.stack': the run's networks depend on it",
    ),
    "what the population sets": (
        asking({"seed": mc.Choice(1, 2)}, "random"), "settings: expected settings that may vary, got 'seed': the",
    ),
    "what its members share": (
        asking({"stop.episodes": mc.Choice(1, 3)}), "may vary, got 'stop.episodes': all members share it",
    ),
    "numbers that no file holds": (
        asking({"algorithm.learning_rate": mc.Choice(np.float32(1e-3), 1e-2)}),
        "expected numbers, texts and tuples of Python for 'algorithm.learning_rate', got",
    ),
    "a run that stops": (asking(stop=mc.StopConfig(episodes=3)), "stop: expected the defaults in a population, got"),
    "a class": (asking(algorithm=mc.DQN), TypeError, "algorithm: expected an Algorithm, such as marl"),
    "less than a batch": (
        several(mc.PPO(batch_size=24, minibatch_size=8), mc.Config(mode="serial")),
        "interval: expected at least 24 steps, since agent_0 learns from whole batches",
    ),
    "a dict": (several(DQN, {"seed": 1}), TypeError, "config: expected a Config or None, got {'seed': 1}"),
    "an address": (
        several(DQN, None, resume="s3://bucket/b"),
        "resume: expected a directory of this machine, got 's3://bucket/b'",
    ),
})  # fmt: skip


def test_directories_without_a_name_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also within a second; one whose first run could not begin is removed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda *_: "now")
    for name in ("now-population", "now-population-1", "now-population-2"):
        with working_in(folder_of("population", None), "population"):
            write_json(tmp_path / "runs" / name / "lineage.csv", {})
    with pytest.raises(ValueError, match="unfit"), working_in(folder_of("population", None), "population"):
        write_json(tmp_path / "runs" / "now-population-3" / "lineage.csv", {})
        raise ValueError("unfit")
    assert not (tmp_path / "runs" / "now-population-3").exists()


def test_a_segment_that_ctrl_c_cut_is_not_scored(tmp_path: Path) -> None:
    chosen = population(size=2, method="random")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, chosen, env_fn=partial(Corridor, 1, interrupt))
    assert lineage(tmp_path) == []
    assert [member.steps for member in train(tmp_path, chosen, resume=True)] == [60] * 2


def test_one_program_at_a_time_works_in_a_population(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with working_in(tmp_path / "run", "population"):
        says = "run_dir: expected a directory in which no other population works, got "
        check_refused(lambda: train(tmp_path, population()), ValueError, says)
        assert (tmp_path / "run").is_dir(), "it belongs to the one that works"


@pytest.mark.usefixtures("scored_by_rate")
def test_what_a_killed_program_began_to_make_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory of a member's run, which has no config.json yet."""

    def cut(*_: object, **options: object) -> None:
        raise Cut

    with monkeypatch.context() as patched, pytest.raises(Cut):
        patched.setattr("marlcore.meta.population.make_runs", cut)
        train(tmp_path, population(size=2))
    (tmp_path / "run" / "member-0").mkdir()
    (tmp_path / "run" / "member-0" / "metrics.csv").write_text("time_s,step,agent,name,value\n")
    assert [member.steps for member in train(tmp_path, population(size=2), learner=STILL, resume=True)] == [60] * 2


def test_a_copy_is_taken_once(tmp_path: Path) -> None:
    """A run that is killed after it took a checkpoint keeps what it has learned since."""
    for name in ("own", "other"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
    checkpoint_path(tmp_path / "other", "agent_0").touch()
    own, link = tmp_path / "own", checkpoint_path(tmp_path / "own", "agent_0", "parent-20")
    take_links(tmp_path / "other", own, ["agent_0"], 20)
    for taken, left in ((str(link), {}), ("elsewhere", {"agent_0": link})):
        write_json(own / "config.json", {"init_from": {"agent_0": taken}})
        assert links_to_take(own, ["agent_0"], 20) == left
    assert links_to_take(own, ["agent_0"], 40) == links_to_take(own, ["agent_0"], None) == {}


def save_on(run_dir: Path, whole: bool) -> None:
    """Saves a run's checkpoint without a pause; `whole` as runs do it."""
    path = checkpoint_path(run_dir, "agent_0")
    for number in itertools.count():
        state = {"step": number, "network": {str(i): torch.full((50_000,), float(number)) for i in range(4)}}
        if whole:
            save_checkpoint(path, state)
        else:
            save_checkpoint(path.with_suffix(".new"), state)
            path.write_bytes(path.with_suffix(".new").read_bytes())


@contextmanager
def saving(run_dir: Path, whole: bool) -> Iterator[Path]:
    """A process does so; the directory of the run, once there is a checkpoint."""
    (run_dir / "checkpoints").mkdir(parents=True)
    pid = victims.fork(save_on, run_dir, whole)
    try:
        until(checkpoint_path(run_dir, "agent_0").exists)
        yield run_dir
    finally:
        victims.kill(pid)


def copies(source: Path, own: Path, enough: Callable[[set[int], int], bool]) -> tuple[set[int], int]:
    """The numbers of whole copies of a checkpoint that is being saved, and how many copies were torn."""
    (own / "checkpoints").mkdir(parents=True)
    numbers, torn = set[int](), 0
    while not enough(numbers, torn):
        take_links(source, own, ["agent_0"], 7)
        try:
            state = load_checkpoint(own / "checkpoints" / "agent_0.parent-7.pt", own_name=False)
        except ValueError:
            torn += 1
            continue
        (number,) = {float(value) for tensor in state["network"].values() for value in tensor.unique()}
        assert number == state["step"]
        numbers.add(state["step"])
    return numbers, torn


@LONG
def test_a_copy_is_whole_while_its_source_saves(tmp_path: Path) -> None:
    """Control: of a source that writes in place, copies are torn."""
    with saving(tmp_path / "whole", True) as source:
        numbers, torn = copies(source, tmp_path / "a", lambda numbers, torn: len(numbers) == 40 or torn > 0)
    assert len(numbers) == 40 and torn == 0
    with saving(tmp_path / "in place", False) as source:
        assert copies(source, tmp_path / "b", lambda numbers, torn: torn > 0)[1] == 1


def grow(folder: Path) -> list[int]:
    """Three members begin, or go on if they lie there; returns how many steps each has taken."""
    config = mc.Config(
        total_steps=600, run_dir=None if folder.exists() else str(folder), actor=mc.ActorConfig(envs=2),
        learner=mc.LearnerConfig(device="cpu", warmup=50, batch_size=16), metrics=mc.MetricsConfig(sinks=("csv",)),
    )  # fmt: skip
    chosen, resume = mc.PopulationConfig(settings=RATE, size=3, interval=200), folder if folder.exists() else None
    members = mc.train_population("gymnasium:CartPole-v1", DQN, config, chosen, progress=False, resume=resume)
    return sorted(member.steps for member in members)


PROGRAM = """
import sys
from pathlib import Path
from test_population import grow
grow(Path(sys.argv[1]))
"""


@LONG
@pytest.mark.usefixtures("shared_fork_server")
def test_a_population_outlives_kills_and_ctrl_c(tmp_path: Path, fork_server: ForkServer) -> None:
    """Its workers are killed, then all its processes; then it is stopped, and at last resumed to its end."""
    folder = tmp_path / "run"
    members = [folder / f"member-{number}" for number in range(3)]

    def steps() -> int:
        return sum(map(steps_of, members))

    with doomed(fork_server, grow, folder) as child:
        until(lambda: steps() > 0, child.lives)
        # none live between two intervals
        for worker in until(lambda: {*family(child.pid)} - {*children(child.pid)}, child.lives):
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        reached = steps()
        until(lambda: steps() > max(reached, 300), child.lives)
    killed_at, program = steps(), start_python(PROGRAM, folder, beside=__file__)
    until(lambda: steps() > killed_at, lambda: program.poll() is None)
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate()
    assert program.returncode == -signal.SIGINT or "KeyboardInterrupt" in errors, errors
    assert steps() >= killed_at
    taken = grow(folder)
    assert len(taken) == 3 and 600 <= taken[0] <= taken[-1] < 604
    rows = Counter(row["member"] for row in lineage(tmp_path))
    assert rows == {"0": 3, "1": 3, "2": 3}
