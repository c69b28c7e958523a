"""Numbers that are not finite end a run in one line; nothing of them is published or saved."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hunt import HUNT

import marlcore as mc
from marlcore.algos import DQN
from marlcore.algos.dqn import DQNTrainer
from marlcore.training.loops.finite import FiniteCheck
from marlcore.training.loops.learner import Learner, learn
from marlcore.training.loops.policy import PolicyModel

NAN, INF = float("nan"), float("inf")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.acting = torch.nn.Linear(2, 2)
        self.acting.register_buffer("mask", torch.tensor([0.0, -INF]))
        self.critic = torch.nn.Linear(2, 1)


@dataclass
class Scene:
    """A learner of made-up updates, with what it published and saved."""

    prioritized: bool = False

    def __post_init__(self) -> None:
        self.net = Net()
        self.published: list[int] = []
        self.saved: list[int] = []
        self.loss, self.state = 0.5, {"adam": {0: {"average": torch.zeros(3)}}, "beta": [torch.ones(2)], "rate": 0.1}
        trainer: Any = SimpleNamespace(update=self.update, state_dict=lambda: self.state)
        publications: Any = SimpleNamespace(publish=self.published.append, numbers={}, version=1, steps=lambda: 0)
        batch = SimpleNamespace(index=None, policy_version=torch.zeros(1))
        feed: Any = SimpleNamespace(
            sample=lambda timeout: batch, update_priorities=self.refuse, prioritized=self.prioritized, on_policy=False
        )
        finite = FiniteCheck("left", PolicyModel(self.net, None), self.state, Path("left.pt"), None)
        config = mc.LearnerConfig(publish_interval=2, log_interval=1000, checkpoint_interval=3)
        self.learner = Learner(
            feed, trainer, publications, config, torch.device("cpu"), None,
            lambda *_: None, lambda state: self.saved.append(state["updates"]), finite,
        )  # fmt: skip

    def update(self, batch: Any) -> mc.Update:
        return mc.Update({"loss": torch.tensor(self.loss)}, torch.zeros(1))

    def refuse(self, index: Any, priority: Any) -> None:
        if self.loss != self.loss:
            raise ValueError("priority: expected finite numbers of at least 0, got nan")

    def steps(self, count: int) -> None:
        for _ in range(count):
            learn(self.learner)


def test_a_loss_that_is_not_finite_is_not_published() -> None:
    scene = Scene()
    scene.steps(4)
    scene.loss = INF
    line = (
        r"^left: expected finite numbers, but the loss is inf at update 6; nothing more is published; "
        r"the checkpoint of update 3 is kept, 'left\.pt'$"
    )
    with pytest.raises(mc.Diverged, match=line):
        scene.steps(4)
    with pytest.raises(mc.Diverged, match="the loss is inf"):
        scene.learner.save()
    assert (scene.published, scene.saved) == ([0, 2, 4], [3])


def test_a_priority_that_is_not_finite_comes_of_the_loss() -> None:
    scene = Scene(prioritized=True)
    scene.steps(2)
    scene.loss = NAN
    with pytest.raises(mc.Diverged, match=r"the loss is nan at update 3; .*there is no checkpoint yet$"):
        scene.steps(1)


def test_weights_that_are_not_finite_are_not_published() -> None:
    scene = Scene()
    scene.net.acting.weight.data[1, 0] = -INF
    with pytest.raises(mc.Diverged, match=r"model\.weight holds -inf at update 2"):
        scene.steps(2)
    assert scene.published == [0]


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (lambda scene: scene.net.critic.bias.data.fill_(NAN), r"critic\.bias holds nan"),
        (lambda scene: scene.state["beta"][0].fill_(INF), r"trainer\.beta\.0 holds inf"),
        (lambda scene: scene.state["adam"][0]["average"].fill_(NAN), r"trainer\.adam\.0\.average holds nan"),
        (lambda scene: scene.state.update(rate=NAN), r"trainer\.rate holds nan"),
    ],
)
def test_what_only_a_checkpoint_holds_is_checked_before_it(spoil: Any, name: str) -> None:
    scene = Scene()
    spoil(scene)
    with pytest.raises(mc.Diverged, match=f"{name} at update 3"):
        scene.steps(3)
    assert scene.saved == []


def test_large_finite_weights_are_no_fault() -> None:
    """Their sum is beyond float32; a mask of -inf, which was there at first, is none either."""
    scene = Scene()
    scene.net.acting.weight.data.fill_(3e38)
    scene.steps(3)
    assert (scene.published, scene.saved) == ([0, 2], [3])


class OnGPU(torch.Tensor):
    """A tensor that pretends to be on a GPU."""

    device = torch.device("cuda")


def test_a_trainers_state_may_be_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of torch's Adam, whose count of steps is on the CPU."""
    stack = torch.stack

    def stack_of_one_device(tensors: list[torch.Tensor]) -> torch.Tensor:
        assert len({tensor.device for tensor in tensors}) == 1
        return stack(tensors)

    monkeypatch.setattr(torch, "stack", stack_of_one_device)
    scene = Scene()
    scene.state["adam"][0]["steps"] = torch.ones(()).as_subclass(OnGPU)
    scene.learner.save()
    scene.state["adam"][0]["steps"].fill_(INF)
    with pytest.raises(mc.Diverged, match=r"trainer\.adam\.0\.steps holds inf"):
        scene.learner.save()


class Spoiling(DQNTrainer):
    """Its 30th update makes a weight NaN."""

    def update(self, batch: Any) -> mc.Update:
        self.made = getattr(self, "made", 0) + 1
        done = super().update(batch)
        if self.made == 30:
            with torch.no_grad():
                next(self.model.parameters()).view(-1)[0] = NAN
        return done


class SpoiltDQN(DQN):
    def make_trainer(self, model: Any) -> Any:
        trainer = super().make_trainer(model)
        trainer.__class__, trainer.model = Spoiling, model
        return trainer


@pytest.mark.usefixtures("undrawn", "shared_fork_server")
@pytest.mark.parametrize("mode", ["serial", pytest.param("async", marks=pytest.mark.long)])
def test_a_run_that_diverges_ends_in_one_line(tmp_path: Path, mode: Any) -> None:
    """The learner is not restarted, and the last finite checkpoint is kept."""
    config = mc.Config(
        total_steps=2000, run_dir=str(tmp_path / "run"), mode=mode, actor=mc.ActorConfig(envs=1),
        learner=mc.LearnerConfig(batch_size=8, warmup=20, publish_interval=4, checkpoint_interval=10, device="cpu"),
    )  # fmt: skip
    line = (
        r"^learner-agent_0 failed: agent_0: expected finite numbers, but .* at update 3\d; nothing more is published; "
        r"the checkpoint of update \d+ is kept, '.*agent_0\.pt'$"
    )
    with pytest.raises(mc.WorkerFailed, match=line) as caught:
        mc.train(partial(HUNT, agents=1), SpoiltDQN(hidden=(8,)), config, progress=False)
    assert caught.value.reason == "diverged" and "\n" not in str(caught.value)
    saved = torch.load(io.BytesIO((tmp_path / "run" / "checkpoints" / "agent_0.pt").read_bytes()), weights_only=True)
    assert f"update {saved['updates']} is kept" in str(caught.value)
    assert all(tensor.isfinite().all() for tensor in saved["network"].values())
