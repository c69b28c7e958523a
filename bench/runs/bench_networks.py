"""Acts and updates of small networks, called as modules and in their faster forms; see marlcore/algos/fast."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from batches import batch_of
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
    spaces = mc.Spaces(OBSERVATION, action)
    model = hyper.make_model(spaces)
    batch = batch_of(hyper, spaces, rows=ROWS)
    if work == "update":
        trainer = hyper.make_trainer(model)
        assert torch.isfinite(benchmark(trainer.update, batch).metrics["loss"])
        return
    request = {"explore": {"epsilon": 0.05}, "state": None, "mask": None, "generator": np.random.default_rng(0)}
    act = partial(hyper.act, getattr(model, "acting", model), batch.obs[:4], **request)
    assert len(benchmark(act).action) == 4
