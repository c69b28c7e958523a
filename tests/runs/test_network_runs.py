"""Runs whose policies have networks of the user's own: published, resumed, evaluated and loaded like others."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refused import check_refused
from torch import nn
from whole_runs import LONG, MODES, ON_POLICY, Runs, checkpoint, config_of, finished, marlcore

import marlcore as mc

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

EXAMPLES = Path(__file__).parents[2] / "examples"
runs = Runs(total_steps=400)


class Own(nn.Module):
    def __init__(self, spaces: mc.Spaces) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(obs))


PPO = mc.PPO(network=Own, batch_size=64, minibatch_size=32, epochs=2)
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {"dqn": (mc.DQN(network=Own), {}), "ppo": (PPO, ON_POLICY)}


@MODES
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_a_custom_network_resumes_and_loads(tmp_path: Path, kind: str, mode: Any) -> None:
    algorithm, changes = KINDS[kind]
    result = runs.train(tmp_path, "gymnasium:CartPole-v1", algorithm, mode=mode, **changes)
    assert config_of(result.run_dir)["hyperparameters"]["network"] == f"{__name__}:Own"
    before = checkpoint(result.run_dir)
    longer = {**changes, "mode": mode, "total_steps": 600, "resume": True}
    more = runs.train(tmp_path, "gymnasium:CartPole-v1", algorithm, **longer)
    after = checkpoint(result.run_dir)
    assert after["updates"] == more.updates["agent_0"] > before["updates"]
    name = next(name for name in after["network"] if name.endswith("network.layer.weight"))
    assert not torch.equal(after["network"][name], before["network"][name])
    assert mc.evaluate(result.run_dir, episodes=2).mean["agent_0"] > 0
    assert mc.load_policy(result.run_dir, "agent_0").act(np.zeros(4, np.float32)) in (0, 1)
    load = partial(mc.load_policy, result.run_dir, "agent_0", weights_only=True)
    check_refused(load, ValueError, "has the hyperparameter network=")


@LONG
def test_the_command_line_takes_a_network_by_its_name(tmp_path: Path) -> None:
    """A whole model of the examples, and again when the run is resumed."""
    run = tmp_path / "run"
    settings = ["--mode", "serial", "--algorithm.batch-size", 64, "--algorithm.minibatch-size", 64]
    settings += ["--algorithm.network", "own_networks:SharedTorso", "--run-dir", run, "--total-steps", 600]
    settings += ["--metrics.sinks", "csv"]
    begin = ["--env", "gymnasium:CartPole-v1", "--algo", "ppo", *settings]
    for words in (begin, ["--resume", run, "--total-steps", 900]):
        status, printed = finished(marlcore("train", *words, cwd=EXAMPLES))
        assert status == 0, printed
    assert any(name.endswith("network.to_value.weight") for name in checkpoint(run)["network"])
