"""A run as an object: started, watched, asked for its policies, stopped; and what a finished run's policies do."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hunt import HUNT
from odd_spaces import Counting
from processes import await_group, start_python
from refused import check_refused
from whole_runs import LONG, MODES, Runs, checkpoint, past

import marlcore as mc

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

runs = Runs(mode="async", total_steps=10**9)
start = runs.start


def trained(folder: Path, env_fn: Any, total_steps: int = 300, **changes: Any) -> Path:
    return runs.train(folder, env_fn, mode="serial", total_steps=total_steps, **changes).run_dir


@MODES
def test_a_run_is_watched_asked_and_stopped(tmp_path: Path, mode: str) -> None:
    run = start(tmp_path, HUNT, mode=mode)
    with pytest.raises(TimeoutError, match="the run has not ended"):
        run.wait(0.01)
    past(run, 500)
    status = run.status()
    assert status.running and status.total_steps == 10**9 and status.seconds > 0
    assert status.returns.keys() == status.updates.keys() == {"agent_0", "agent_1"}
    env = HUNT()
    env.reset(0)
    assert run.policy("agent_1").act(env.last()[0]) in range(4)
    check_refused(lambda: run.policy("agent_7"), ValueError, "expected one of ['agent_0', 'agent_1'], got 'agent_7'")
    assert "running" in repr(run) and run._session is not None
    assert run._session.control.about["learners"] == {f"learner-{agent}": agent for agent in status.returns}
    run.stop()
    run.stop()
    while run.status().running:
        assert run.policy("agent_0") is not None, "while the run ends"
    result = run.wait()
    assert run.wait() is result and "ended" in repr(run)
    assert result.steps == run.status().steps > 500 and result.updates == run.status().updates
    assert result.returns == run.status().returns
    assert run.policy("agent_1").act(env.last()[0]) in range(4)


@MODES
def test_leaving_the_block_stops_the_run(tmp_path: Path, mode: str) -> None:
    with start(tmp_path, HUNT, mode=mode) as run:
        past(run, 100)
    assert not run.status().running
    with pytest.raises(KeyError, match="mine"), start(tmp_path / "other", HUNT, mode=mode) as other:
        raise KeyError("mine")
    assert not other.status().running
    assert other.wait().run_dir == tmp_path / "other" / "run"


@pytest.mark.parametrize("mode", ["async", "serial"])
def test_a_fork_server_imports_while_the_input_is_checked(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    begun: list[str] = []

    class Server:
        def __init__(self, *_: object, **__: object) -> None:
            self.begin, self.close = partial(begun.append, "server"), lambda: None

    def checked() -> None:
        begun.append("check")
        raise ValueError("env_fn: expected an environment")

    monkeypatch.setattr("marlcore.processes.children.ForkServer", Server)
    for entrance in (mc.train, mc.start):
        with pytest.raises(mc.errors.EnvironmentFailed, match="expected an environment"):
            entrance(checked, "dqn", mc.Config(mode=mode))
    assert begun == 2 * (["server", "check"] if mode == "async" else ["check"])


FIRST_OF_ALL = """
import sys
import marlcore as mc, marlcore.run
from marlcore.processes import ForkServer

def begin(server):
    print({"torch", "numba", "rich", "marlcore.run.run"} & sys.modules.keys())
    raise SystemExit

ForkServer.begin = begin
for door, more in (mc.train, ()), (mc.start, ()), (mc.train_seeds, [[1]]):
    try:
        door("treasure_hunt", "dqn", mc.Config(), *more)
    except SystemExit:
        pass
"""


def test_the_fork_server_starts_before_this_process_imports() -> None:
    """Both processes import at the same time, since each import takes seconds."""
    assert subprocess.check_output([sys.executable, "-c", FIRST_OF_ALL], text=True) == 3 * "set()\n"


@LONG
def test_two_runs_go_on_at_once(tmp_path: Path) -> None:
    """Two of each mode, all at once."""
    modes = ("async", "async", "serial", "serial")
    runs = [start(tmp_path / str(i), HUNT, total_steps=2_000, mode=mode, seed=i) for i, mode in enumerate(modes)]
    results = [run.wait() for run in runs]
    assert all(2_000 <= result.steps < 2_002 for result in results)
    assert all(min(result.updates.values()) > 50 for result in results)


PROGRAM = """
import sys
from pathlib import Path
from processes import until
from test_run_object import HUNT, start
run = start(Path(sys.argv[1]), HUNT, mode=sys.argv[2])
until(lambda: min(run.status().updates.values(), default=0))
print("going", flush=True)
"""


@LONG
@pytest.mark.parametrize(
    ("mode", "end"),
    [("serial", ""), ("async", "raise RuntimeError('mine')"), ("async", "raise SystemExit(3)")],
)
def test_the_interpreters_exit_ends_a_run(tmp_path: Path, mode: str, end: str) -> None:
    """It writes its checkpoints; no process and no segment is left."""
    before = set(os.listdir("/dev/shm"))
    process = start_python(PROGRAM + end, tmp_path, mode, beside=__file__)
    output, errors = process.communicate(timeout=1800)
    assert output == "going\n", errors
    assert process.returncode == (3 if "Exit" in end else 1 if end else 0), errors
    assert ("mine" in errors) == ("mine" in end) and (end != "" or errors == ""), errors
    await_group(process.pid)  # the kernel ends them when it has ended their parent
    assert set(os.listdir("/dev/shm")) == before
    assert checkpoint(tmp_path / "run")["updates"] > 0


# ---- loaded policies ----


@pytest.mark.parametrize("pad", ["repeat", pytest.param("zero", marks=LONG)])
def test_a_loaded_policy_acts_on_stacks_as_in_training(tmp_path: Path, pad: Any) -> None:
    """The policy acts like the saved network on the last three observations, padded at an episode's start."""
    run_dir = trained(tmp_path, HUNT, replay=mc.ReplayConfig(stack=3, pad=pad))
    policy = mc.load_policy(run_dir, "agent_0")
    player, space = policy.player(2), policy.spaces.observation
    network = mc.DQN().make_model(policy.spaces)
    network.load_state_dict(checkpoint(run_dir)["network"])
    rng = np.random.default_rng(0)
    different = set()
    for step in range(60):
        obs = rng.integers(0, 6, space.shape).astype(space.dtype)
        if begins := step % 10 == 0:
            policy.reset()
            stack = [obs if pad == "repeat" else np.zeros_like(obs)] * 3
        stack = [*stack[1:], obs]
        expected = int(network(torch.from_numpy(np.stack(stack)[None])).argmax())
        chosen = player.choose(np.stack([obs, obs]), slice(None), np.full(2, begins)).action
        assert policy.act(obs) == expected == chosen[0] == chosen[1]
        different.add(expected)
    assert len(different) > 1


@pytest.mark.parametrize("mask_in", ["observation", pytest.param("info", marks=LONG)])
def test_a_loaded_policy_respects_masks(tmp_path: Path, mask_in: str) -> None:
    policy = mc.load_policy(trained(tmp_path, partial(Counting, mask_in=mask_in)), "agent_0")
    env = Counting(mask_in=mask_in)  # refuses masked actions
    obs, info = env.reset(seed=0)
    for _ in range(200):
        action = policy.act(obs) if mask_in == "observation" else policy.act(obs, info["action_mask"])
        obs, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            obs, info = env.reset()
            policy.reset()
    env.reset()
    check_refused(lambda: policy.act(env.seen), ValueError, "action_mask: expected 5 booleans, got None")


def test_unknown_policies_and_checkpoints_are_named(tmp_path: Path) -> None:
    load = partial(mc.load_policy, trained(tmp_path, HUNT))
    for call, says in (
        (partial(load, "nobody"), "policy: expected one of ['agent_0', 'agent_1'], got 'nobody'"),
        (partial(load, "agent_0", which="worst"), "which: expected"),
        (partial(load, "agent_0", which="best"), "which: expected"),
        (partial(mc.load_policy, tmp_path / "nothing", "agent_0"), "run_dir: expected a run's directory"),
    ):
        check_refused(call, ValueError, says)
