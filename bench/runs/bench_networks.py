"""Acts and updates of small networks, called as modules and in their faster forms; see marlcore/algos/fast."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym

import marlcore as mc
from marlcore.algos.fast.stand_in import Plan

ROWS = 64
OBSERVATION = gym.Box(-1, 1, (8,), np.float32)
MADE: dict[str, tuple[Any, gym.Space]] = {
    "dqn": (mc.DQN(), gym.Discrete(4)),
    "iqn": (mc.IQN(), gym.Discrete(4)),
    "sac": (mc.SAC(), gym.Box(-1, 1, (2,), np.float32)),
    "ppo": (mc.PPO(batch_size=ROWS, minibatch_size=ROWS, epochs=1), gym.Discrete(4)),
}


@pytest.mark.parametrize("form", ["plain", "fast"])
@pytest.mark.parametrize("work", ["act", "update"])
@pytest.mark.parametrize("algorithm", MADE)
def test_networks(benchmark: Any, monkeypatch: pytest.MonkeyPatch, algorithm: str, work: str, form: str) -> None:
    if form == "plain":
        monkeypatch.setattr(Plan, "is_hooked", lambda plan: True)
    hyper, action = MADE[algorithm]
    model = hyper.make_model(mc.Spaces(OBSERVATION, action))
    batch = SimpleNamespace(
        obs=torch.randn(ROWS, 8),
        next_obs=torch.randn(ROWS, 8),
        action=torch.from_numpy(np.stack([action.sample() for _ in range(ROWS)])),
        reward=torch.randn(ROWS),
        discount=torch.full((ROWS,), 0.99),
        weight=torch.ones(ROWS),
        continues=torch.arange(ROWS) % 16 < 15,
        extras={"log_prob": torch.full((ROWS,), -1.4)},
        numbers={"learning_rate": 1e-5, "entropy_coefficient": 0.0},
    )
    if work == "update":
        trainer = hyper.make_trainer(model)
        assert torch.isfinite(benchmark(trainer.update, batch).metrics["loss"])
        return
    request = {"explore": {"epsilon": 0.05}, "state": None, "mask": None, "generator": np.random.default_rng(0)}
    acting = getattr(model, "acting", model)
    assert len(benchmark(lambda: hyper.act(acting, batch.obs[:4], **request)).action) == 4
