"""Whole runs of TD3, SAC and MATD3 with memory: they learn what needs it, and rows store the states that acted."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from seams import without_limits
from wander import Wander
from whole_runs import LONG, Runs

import marlcore as mc
from marlcore.algos.bases.windows import WindowRows
from marlcore.envs import Recall
from marlcore.loops.torch_network import RecurrentStates

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")


class Drift(Wander):
    action_spaces = dict.fromkeys(Wander.agents, Box(-1, 1, (2,), np.float32))


class Aim(gymnasium.Wrapper):  # type: ignore[misc] # here, gymnasium is Any
    """Recall whose answer is a number: it earns 1 minus its distance from the cue, -1 or 1.

    Without memory, every answer earns 0 on average.
    """

    def __init__(self, delay: int) -> None:
        super().__init__(Recall(2, delay))
        self.action_space = Box(-1, 1, (1,), np.float32)

    def step(self, action: Any) -> Any:
        obs, is_second, over, *rest = self.env.step(np.int64(1))
        return obs, over * (1.0 - abs(float(action[0]) - (2 * is_second - 1))), over, *rest


STILL = Runs(  # without updates, so that all rows are of the same weights, and without noise
    total_steps=1_000, updates_per_step=1e-6, actor={"envs": 5}, learner={"warmup": 20},
    exploration={"epsilon": 0.0}, replay={"save": True},
)  # fmt: skip


def check_stored_states(folder: Path) -> None:
    """Windows that begin an episode have a state of zeros; the state of any window leads to the actions in its rows."""
    algorithm = mc.TD3(cell="gru", hidden=(8,), units=6, length=9, burn_in=1, period=4, noise=0.0)
    run_dir = STILL.train(folder, Drift, algorithm).run_dir
    for agent in Drift.agents:
        model: Any = mc.load_policy(run_dir, agent)._model.model
        window = algorithm.source(mc.ReplaySource()).sequence
        with mc.ReplayBuffer.load(run_dir / "checkpoints" / f"{agent}.replay") as replay, without_limits():
            batch = replay.sampler(400, sequence=window, seed=0).sample().torch()
        begins = batch.mask[:, 0]
        assert begins.any() and not begins.all()
        assert all(not part[begins].any() and part[~begins].any() for part in batch.extras.values())
        rows = WindowRows(algorithm, batch)
        zeros = {name: torch.zeros_like(part) for name, part in batch.extras.items()}
        with torch.no_grad():
            action, forgetful = (model(obs) for obs in (rows.obs, replace(rows.obs, state=zeros)))
        torch.testing.assert_close(action, rows.action, rtol=0, atol=1e-5)
        assert (forgetful - rows.action).abs().max() > 1e-2


def test_a_stored_state_is_the_one_that_acted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a state that is not zeroed where an episode begins is found."""
    check_stored_states(tmp_path / "kept")
    read = RecurrentStates.read
    monkeypatch.setattr(RecurrentStates, "read", lambda self, index, begins: read(self, index, begins & False))
    with pytest.raises(AssertionError):
        check_stored_states(tmp_path / "never zeroed")


SETTINGS: dict[str, Any] = {"hidden": (32,), "learning_rate": 3e-3, "reward_scale": 1.0}
MEMORY = {"cell": "gru", "units": 16}
WHOLE = {**MEMORY, "length": 3, "burn_in": 0, "period": 3, "n_step": 1}  # windows are episodes
BURNT = {**MEMORY, "length": 16, "burn_in": 4, "period": 4, "n_step": 3}


@pytest.mark.parametrize(
    ("kind", "delay", "memory", "steps"),
    [
        (mc.TD3, 2, WHOLE, 1_200),
        pytest.param(mc.TD3, 10, BURNT, 5_000, marks=LONG),
        pytest.param(mc.SAC, 10, BURNT, 3_500, marks=LONG),
    ],
)
def test_memory_learns_what_no_other_policy_can(
    kind: Any, delay: int, memory: dict[str, Any], steps: int, tmp_path: Path
) -> None:
    """Control: the same algorithm without memory earns what a guess earns."""
    runs = Runs(
        total_steps=steps, actor={"envs": 4}, updates_per_step=0.25,
        learner={"batch_size": 32, "warmup": 200, "n_step": 1},
    )  # fmt: skip
    returns = []
    for options in (memory, {}):
        run_dir = runs.train(tmp_path / str(len(options)), partial(Aim, delay), kind(**SETTINGS, **options)).run_dir
        returns.append(mc.evaluate(run_dir, episodes=100).mean["agent_0"])
    assert returns[0] > 0.8 and abs(returns[1]) < 0.3
