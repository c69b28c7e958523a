"""A learner compiles its model before the trainer looks at it, and nothing that the trainer copies from it."""

from typing import Any

import pytest
import torch

import marlcore as mc
from marlcore.algos.fast import passes
from marlcore.algos.fast.passes import AutogradPass

pytestmark = pytest.mark.usefixtures("undrawn")
seen: list[Any] = []


class Watched(mc.DQN):
    def make_trainer(self, model: torch.nn.Module) -> Any:
        trainer = super().make_trainer(model)
        seen.append((model._compiled_call_impl, type(passes(model)), trainer.target._compiled_call_impl))
        return trainer


def test_the_model_is_compiled_when_its_trainer_is_made(tmp_path, monkeypatch):
    modes = []

    def compiled(module: torch.nn.Module, mode: str) -> None:
        modes.append(mode)
        module._compiled_call_impl = module._call_impl

    monkeypatch.setattr(torch.nn.Module, "compile", compiled)
    learner = mc.LearnerConfig(compile="reduce-overhead", warmup=50, device="cpu")
    config = mc.Config(total_steps=300, mode="serial", run_dir=str(tmp_path / "run"), learner=learner)
    mc.train("gymnasium:CartPole-v1", Watched(hidden=(8, 8)), config, progress=False)
    ((implementation, kind, of_target),) = seen
    assert modes == ["reduce-overhead"]
    assert implementation is not None and kind is AutogradPass and of_target is None
