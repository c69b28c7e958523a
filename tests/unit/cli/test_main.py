"""The command line as a whole: wrong options, and ends of commands."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import pytest
from gymnasium.spaces import Box, Discrete

from marlcore import DQN, IQN, ActorConfig, Config, ExplorationConfig, LearnerConfig, ReplayConfig, Spaces
from marlcore.__main__ import COMMANDS, main
from marlcore.cli import gc
from marlcore.config import assign
from marlcore.errors import EnvironmentFailed
from marlcore.processes import Control, Interrupts, Telemetry
from marlcore.record import RunDirectory, describe

REFUSED = {
    "train --learner.gamma 2": "learner.gamma: expected a number from 0 to 1, got 2.0",
    "train --exploration.epsilon linear(1": "exploration.epsilon: expected linear(start, end, over, of=",
    "train --updates-per-step linear(0.1,1)": "updates_per_step: expected linear(start, end, over, of='steps')",
    "train --algo ppo --algorithm.cell gru": "--algorithm.cell is no option of ppo, but of maddpg, matd3, qmix, r2d2, "
    "recurrentppo, sac,",
    "train --algo td3 --algorithm.tau 0": "TD3 tau: expected a number in (0, 1], got 0.0",
    "train --algo ppo --algorithm.hiden 4": "--algorithm.hiden is no option of ppo; did you mean --algorithm.hidden?",
    "train --algo nothing": "algorithm: expected one of bc, coma, cql, dqn, happo, iqn, maddpg, mappo, matd3, ppo, ",
    "train --learner.gama 1": "unknown option --learner.gama; did you mean --learner.gamma? see marlcore train --help",
    "train --learner.learning-rate 1": "unknown option --learner.learning-rate; did you mean --algorithm.learning-rate",
    "train --nonsense": "unknown option --nonsense; see marlcore train --help",
    "train extra": "expected an option, got 'extra'; see marlcore train --help",
    "train --resume x --seeds 1": "--resume takes no --seeds; see marlcore train --help",
    "train --resume x --run-dir y": "--resume takes no --run-dir",
    "train --resume x --env y": "--resume takes no --env; see marlcore train --help",
    "train --parallel 2": "parallel: expected 1 without --seeds, got 2",
    "train --seeds": "seeds: expected at least one seed, each seed once, got []",
    "train --settings /no": "settings: expected a YAML file, got '/no' (",
    "eval": "run_dir: expected a value, got none; see marlcore eval --help",
    "top --interval 0": "interval: expected a finite number of at least 0.05, got 0.0",
    "gc --dryrun": "unknown option --dryrun; did you mean --dry-run? see marlcore gc --help",
    "gc --dry-run yes": "expected an option, got 'yes'; see marlcore gc --help",
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_wrong_option_is_refused_in_one_line(line, capfd, tmp_path, monkeypatch):
    """No run begins: its directory would be in the current one."""
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    assert not any(tmp_path.iterdir())
    out, err = capfd.readouterr()
    assert out == "" and err.startswith(f"marlcore: {REFUSED[line]}") and len(err.splitlines()) == 1


FILE = """
env: gymnasium:CartPole-v1
algo: dqn
algorithm: {hidden: [8, 8], tau: 1e-3}
learner: {n_step: 1, gamma: 0.5}
learners: {a: {gamma: 0.7}}
replay: {capacity: 60}
replays: {a: {beta: 0.5}}
"""
OWN = {"replay": ReplayConfig(capacity=60), "replays": {"a": ReplayConfig(capacity=60, beta=0.5)}}
ASKED = {
    "": ("treasure_hunt", IQN(), Config()),
    "--algo dqn --learner.n_step 2 --replay.save --env=x:y": (
        "x:y", DQN(), Config(learner=LearnerConfig(n_step=2), replay=ReplayConfig(save=True)),
    ),
    "--mode serial --actor.processes 3 --learner.publish-interval 5 --learner.warmup 9": (
        "treasure_hunt", IQN(),
        Config(mode="serial", actor=ActorConfig(processes=3), learner=LearnerConfig(publish_interval=5, warmup=9)),
    ),
    "--settings FILE --learner.gamma 0.9 --algorithm.no-double --replay.no-save": (
        "gymnasium:CartPole-v1", DQN(hidden=(8, 8), tau=1e-3, double=False),
        Config(learner=LearnerConfig(n_step=1, gamma=0.9), learners={"a": LearnerConfig(n_step=1, gamma=0.7)}, **OWN),
    ),
    "--settings FILE --algo iqn --algorithm.hidden 4 --updates-per-step None --policies a p b p": (
        "gymnasium:CartPole-v1", IQN(hidden=(4,)),
        Config(
            updates_per_step=None, policies={"a": "p", "b": "p"}, learner=LearnerConfig(n_step=1, gamma=0.5),
            learners={"a": LearnerConfig(n_step=1, gamma=0.7)}, **OWN,
        ),
    ),
    "--learners.a.n-step 7 --learner.gamma 0.8 --explorations.b.ladder 2 --ratios a 0.5 b None": (
        "treasure_hunt", IQN(),
        Config(
            learner=LearnerConfig(gamma=0.8), learners={"a": LearnerConfig(gamma=0.8, n_step=7)},
            explorations={"b": ExplorationConfig(ladder=2)}, ratios={"a": 0.5, "b": None},
        ),
    ),
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch):
    """The arguments of each run that `marlcore train` begins; the run fails at once."""
    run = Mock(side_effect=ValueError("that was all"))
    monkeypatch.setattr("marlcore.cli.train.run", run)
    return run.call_args_list


@pytest.mark.parametrize("line", ASKED)
def test_options_come_before_the_file_and_that_before_defaults(asked, line, tmp_path, monkeypatch):
    (tmp_path / "FILE").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    assert main(["train", *line.split()]) == 2
    assert asked == [(ASKED[line], {"resume": None})]


def test_a_resumed_run_takes_options(asked, tmp_path):
    """They change its settings and its algorithm; an unknown option is refused. The directory may have been moved."""
    kept = Config(run_dir="before/it/moved", actor=ActorConfig(envs=2), replay=ReplayConfig(save=True))
    policies = assign({"agent_0": Spaces(Box(-1, 1, (3,)), Discrete(2))}, None, DQN(hidden=(8, 8)), stack=1)
    described = {**describe("treasure_hunt", policies, kept), "env": "treasure_hunt"}
    RunDirectory.create(tmp_path / "run", described).close()
    changes = "--actor.processes 3 --replay.no-save --algorithm.learning-rate 0.1 --algorithm.no-double --trust"
    assert main(["train", "--resume", str(tmp_path / "run"), *changes.split()]) == 2
    changed = replace(kept, run_dir=None, actor=ActorConfig(processes=3, envs=2), replay=ReplayConfig(save=False))
    algorithm = DQN(hidden=(8, 8), learning_rate=0.1, double=False)
    assert asked == [(("treasure_hunt", algorithm, changed), {"resume": str(tmp_path / "run")})]
    assert main(["train", "--resume", str(tmp_path / "run"), "--algorithm.hiden", "4"]) == 2
    assert len(asked) == 1


@pytest.mark.parametrize(
    "command", ["train --algo ppo --help all", "train --help learner", "train --resume x", *COMMANDS]
)
def test_the_help_of_a_command_is_drawn(command, capfd):
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--help"] if "--help" not in command else command.split())
    out = capfd.readouterr().out
    usage = "[OPTIONS]" if command == "train" else "[-h]"
    assert not end.value.code and f"usage: marlcore {command.split()[0]} {usage}" in out
    assert command == "warmup" or "(default: " in out


def test_the_first_page_of_help_fits_a_screen_without_torch():
    program = """if True:
        import sys
        from marlcore.__main__ import main
        try:
            main(["train", "--help"])
        finally:
            print(*{"torch", "tyro"} & sys.modules.keys(), file=sys.stderr)"""
    page = [sys.executable, "-c", program]
    done = subprocess.run(page, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True, check=True)
    out = done.stdout
    assert done.stderr == "\n"
    assert len(out.splitlines()) <= 40 and max(map(len, out.splitlines())) <= 80
    assert "\n  --learner.gamma: Discount of one step (default: 0.99)\n" in out


def test_the_first_page_of_help_has_the_values_of_a_preset(capfd):
    with pytest.raises(SystemExit) as end:
        main(["train", "--preset", "lunarlander-ppo", "--help"])
    assert not end.value.code
    assert "(default: gymnasium:LunarLander-v3)" in " ".join(capfd.readouterr().out.split())


def test_the_help_of_an_unknown_part_names_the_parts(capfd):
    assert main(["train", "--help", "lerner"]) == 2
    assert capfd.readouterr().err.startswith("marlcore: help: expected all, actor, learner, ")


def unread(*arguments: str) -> tuple[int, str]:
    """The exit code and standard error of a command whose standard output has lost its reader."""
    reads, writes = os.pipe()
    os.close(reads)
    try:
        command = [sys.executable, "-m", "marlcore", *arguments]
        done = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writes)
    return done.returncode, done.stderr


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["gc", "--dry-run"], ["gc", "--help"], ["doctor"]])
def test_a_command_that_nobody_listens_to_any_more_ends_quietly(arguments):
    assert unread(*arguments) == (1, "")


@pytest.mark.long
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_look_at_a_run_ends_quietly_with_its_reader(form):
    with Telemetry.create(["actor-0"]) as telemetry:
        about = {"run_dir": "/a/run", "pid": os.getpid(), "total_steps": 1, "actors": ["actor-0"]}
        about |= {"learners": {}, "policies": {}, "telemetry": vars(telemetry.handle)}
        with Control.create(["actor-0"], **about):
            assert unread("top", "/a/run", "--interval", "0.05", *form) == (1, "")


@pytest.fixture
def working(monkeypatch):
    """working(does): the command `gc` does this instead of its work."""
    return partial(monkeypatch.setattr, gc, "main")


@pytest.mark.parametrize("command", ["--version", "gc"])
def test_a_full_standard_output_is_named(working, monkeypatch, capfd, command):
    """Otherwise the message would seem to be about the run's disk."""
    working(lambda arguments: print("nothing to remove", flush=True))
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main([command]) == 2
    assert capfd.readouterr().err == "marlcore: standard output: No space left on device\n"


def test_the_help_fits_80_columns(capfd):
    assert main(["--help"]) == 0
    assert max(map(len, capfd.readouterr().out.splitlines())) <= 80


STOPPED = {  # the directory that was asked for, the steps that its runs of 60 have taken, and what is said
    "before its run": ("", {}, ""),
    "early": ("runs/a b", {"runs/a b": 59}, "; resume with marlcore train --resume 'runs/a b'"),
    "late": ("runs/a b", {"runs/a b": 60},
        "; the run had taken all its steps; its metrics, curves and last checkpoints are in 'runs/a b'"),
    "seeds": ("all", {"all/seed-0": 60, "all/seed-1": 20, "all/seed-2": 30},
        "; resume with marlcore train --resume all/seed-1, and likewise all/seed-2"),
}  # fmt: skip


@pytest.mark.parametrize("case", STOPPED)
def test_a_stopped_run_says_how_it_is_resumed(tmp_path, capfd, monkeypatch, working, case):
    """A run that has taken all its steps cannot be resumed with them."""
    monkeypatch.chdir(tmp_path)
    asked, runs, says = STOPPED[case]
    for folder, taken in runs.items():
        with RunDirectory.create(folder, {"total_steps": 60}) as run:
            run.save_progress({"steps": {"actor-0": taken - 9, "actor-1": 9}})
    working(lambda arguments: Interrupts(signal.SIGINT).deliver(asked))
    assert main(["gc"]) == 130
    assert capfd.readouterr().err == f"marlcore: stopped{says}\n"


FAILURES = {
    "[Errno 32] the server is gone": BrokenPipeError(32, "the server is gone"),
    "[Errno 24] Too many open files: 'a.py'; raise `ulimit -n`": OSError(24, "Too many open files", "a.py"),
    "--env: expected one": EnvironmentFailed("env_fn: ValueError: environment: expected one"),
    "--env: ValueError: none": EnvironmentFailed("env_fn: ValueError: none"),
}


@pytest.mark.parametrize("line", FAILURES)
def test_a_failure_is_one_line(capfd, working, line):
    working(Mock(side_effect=FAILURES[line]))
    assert main(["gc"]) == 2
    assert capfd.readouterr().err == f"marlcore: {line}\n"
