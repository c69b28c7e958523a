"""The learner: it normalizes observations, compiles its model, and lets out nothing that is not finite."""

import io
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from batches import made_windows
from gymnasium.spaces import Box, Dict, Discrete
from hunt import HUNT
from refused import check_refused
from rounding import rounding
from whole_runs import MODES, Runs, updating

import marlcore as mc
from marlcore.algos.compiled import with_engine
from marlcore.algos.dqn import DQNTrainer
from marlcore.devices import choose_device
from marlcore.loops import FiniteCheck, Learner, Normalizer, PolicyModel, learn, learn_while
from marlcore.loops import learner as loop
from marlcore.run.roles import learner as role
from marlcore.spaces import MASK

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

NAN, INF = float("nan"), float("inf")


def learner_of(batches: Any, trainer: Any, finite: Any, norm: Any = None, **options: Any) -> Learner:
    """A learner whose surroundings do nothing, other than those given."""
    nothing: dict[str, Any] = {
        "publisher": SimpleNamespace(publish=lambda **_: 1), "schedules": {}, "steps": lambda: 0,
        "config": mc.LearnerConfig(), "device": torch.device("cpu"), "report": lambda *_: None,
        "save_state": lambda _: None,
    }  # fmt: skip
    return Learner(batches, trainer, norm=norm, finite=finite, **{**nothing, **options})


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.acting = torch.nn.Linear(2, 2)
        self.acting.register_buffer("mask", torch.tensor([0.0, -INF]))
        self.critic = torch.nn.Linear(2, 1)


class Scene:
    """A learner of made-up updates, with the counts of updates at which it published and saved."""

    def __init__(self, prioritized: bool = False) -> None:
        self.net, self.loss = Net(), 0.5
        self.state: dict[str, Any] = {
            "adam": {0: {"average": torch.zeros(3)}}, "beta": [torch.ones(2)], "rate": 0.1
        }  # fmt: skip
        self.published: list[int] = []
        self.saved: list[int] = []
        batch = SimpleNamespace(index=None, policy_version=torch.zeros(1))
        self.learner = learner_of(
            SimpleNamespace(
                sample=lambda timeout: batch,
                update_priorities=self.refuse,
                prioritized=prioritized,
                on_policy=False,
                save_due=False,
                stats=dict,
            ),
            SimpleNamespace(update=self.update, state_dict=lambda: self.state),
            FiniteCheck("left", PolicyModel(self.net, None), self.state, Path("left.pt"), None),
            config=mc.LearnerConfig(publish_interval=2, log_interval=1000, checkpoint_interval=3),
            publisher=SimpleNamespace(publish=lambda updates, step: self.published.append(updates) or 1),
            save_state=lambda state: self.saved.append(state["updates"]),
        )

    def update(self, batch: Any) -> mc.Update:
        return mc.Update({"loss": torch.tensor(self.loss)}, torch.zeros(1))

    def refuse(self, index: Any, priority: Any) -> None:
        if self.loss != self.loss:
            raise ValueError("priority: expected finite numbers of at least 0, got nan")

    def learn(self, updates: int) -> None:
        for _ in range(updates):
            learn(self.learner)

    def diverges(self, updates: int, *says: str) -> None:
        for text in says:
            check_refused(lambda: self.learn(updates), mc.Diverged, text)


def test_weights_are_published_and_saved_at_their_intervals() -> None:
    scene = Scene()
    scene.learn(7)
    assert (scene.published, scene.saved) == ([0, 2, 4, 6], [3, 6])


def test_a_loss_that_is_not_finite_is_not_published() -> None:
    scene = Scene()
    scene.learn(4)
    scene.loss = INF
    scene.diverges(
        4,
        "left: expected finite numbers, but the loss is inf at update 6; nothing more is published; "
        "the checkpoint of update 3 is kept, 'left.pt'",
    )
    check_refused(scene.learner.save, mc.Diverged, "the loss is inf")
    assert (scene.published, scene.saved) == ([0, 2, 4], [3])


def test_a_priority_that_is_not_finite_comes_of_the_loss() -> None:
    scene = Scene(prioritized=True)
    scene.learn(2)
    scene.loss = NAN
    scene.diverges(1, "the loss is nan at update 3; nothing more is published; there is no checkpoint yet")


SPOILT: dict[str, tuple[Any, int, str]] = {
    "acting": (lambda scene: scene.net.acting.weight.data[1].fill_(-INF), 2, "model.weight holds -inf"),
    "replaced": (
        lambda scene: setattr(scene.net.acting, "weight", torch.nn.Parameter(torch.full((2, 2), NAN))),
        2,
        "model.weight holds nan",
    ),
    "critic": (lambda scene: scene.net.critic.bias.data.fill_(NAN), 3, "critic.bias holds nan"),
    "list": (lambda scene: scene.state["beta"][0].fill_(INF), 3, "trainer.beta.0 holds inf"),
    "dict": (lambda scene: scene.state["adam"][0]["average"].fill_(NAN), 3, "trainer.adam.0.average holds nan"),
    "number": (lambda scene: scene.state.update(rate=NAN), 3, "trainer.rate holds nan"),
}


@pytest.mark.parametrize("part", SPOILT)
def test_what_is_not_finite_is_neither_published_nor_saved(part: str) -> None:
    """The acting part is checked before it is published, after 2 updates, and the rest before a checkpoint."""
    spoil, update, says = SPOILT[part]
    scene = Scene()
    spoil(scene)
    scene.diverges(3, f"{says} at update {update}")
    assert scene.saved == [] and scene.published == ([0] if update == 2 else [0, 2])


def test_large_finite_weights_are_no_fault() -> None:
    """Their sum is beyond float32; a mask of -inf, which was there at first, is none either."""
    scene = Scene()
    scene.net.acting.weight.data.fill_(3e38)
    scene.learn(3)
    assert (scene.published, scene.saved) == ([0, 2], [3])


def test_a_reported_metric_is_the_mean_of_the_updates_that_have_it() -> None:
    reported: list[tuple[str, float]] = []
    scene = Scene()
    scene.learner.config = mc.LearnerConfig(log_interval=4)
    scene.learner.report = lambda name, value: reported.append((name, value))
    scene.learner.pace = mc.Linear(0.5, 0.0, 10)
    scene.learner.batches.sample = lambda timeout: SimpleNamespace(index=None, policy_version=1 - torch.arange(101))
    for metrics in ({"loss": 1.0}, {"loss": 3.0, "actor_loss": 5.0}, {"loss": 2.0}, {"loss": 4.0, "actor_loss": 8.0}):
        scene.learner.trainer.update = lambda _, now=metrics: mc.Update({n: torch.tensor(v) for n, v in now.items()})
        scene.learn(1)
    assert reported[0] == ("loss", 1.0), "a run of few updates shows its first loss"
    assert reported[1:3] == [("loss", 2.5), ("actor_loss", 6.5)] and dict(reported)["updates_per_step"] == 0.5
    assert [value for name, value in reported if "policy_lag" in name] == [50.0, 50.0, 99.0]


@pytest.mark.parametrize(("policies", "waited"), [(1, 0.1), (3, 0.005), (30, 0.03), (250, 0.1)])
def test_idle_learners_wait_longer_the_more_they_are(
    policies: int, waited: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look for data takes 0.1 ms here: without the wait, those of hundreds of policies would keep a core busy."""
    now, waits = 0.0, []

    def sample(timeout: float | None) -> None:
        nonlocal now
        now += 1e-4
        if timeout:
            waits.append(timeout)
        raise mc.NotEnoughData

    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now))
    idle: Any = [SimpleNamespace(batches=SimpleNamespace(sample=sample))] * policies
    goes_on = iter([True, False])
    learn_while(goes_on.__next__, idle, lambda: None)
    assert waits == [pytest.approx(waited)]


@pytest.mark.parametrize(("steps", "cleared"), [((0, 10, 20, 25, 40), [2.0]), ((0, 40), [3.0])])
def test_only_the_stages_that_are_named_clear(steps: tuple[int, ...], cleared: list[float]) -> None:
    """Also a stage that began and ended between two publications, here of these steps."""
    replay = mc.ReplayConfig(clear_at_stage=("ramp",))
    config = mc.Config(stages=(10, 20, 30), stage_names=("early", "ramp", "full"), replay=replay)
    seen: list[float] = []
    learner = learner_of(
        SimpleNamespace(clear=lambda: seen.append(learner.published["stage"])),
        None,
        SimpleNamespace(check_published=lambda _: None),
        schedules=config.schedules,
        clearing=config.clearing_stages,
        steps=iter(steps).__next__,
    )
    for _ in steps[1:]:
        learner.publish()
    assert seen == cleared


def test_learners_are_dealt_out_to_the_best_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    for gpus, mps, spread, devices in (
        (2, True, True, "cuda:0 cuda:1 cuda:0"), (2, True, False, "cuda:0 cuda:0 cuda:0"),
        (0, True, True, "mps mps mps"), (0, False, True, "cpu cpu cpu"),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)  # noqa: B023
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)  # noqa: B023
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)  # noqa: B023
        assert " ".join(str(choose_device("auto", policy, spread)) for policy in range(3)) == devices
        assert str(choose_device("auto", 1)) == devices.split()[0], "they are dealt out only on request"


class OnGPU(torch.Tensor):
    """A tensor that pretends to be on a GPU."""

    device = torch.device("cuda")


def test_a_trainers_state_may_be_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of torch's Adam has its count of steps on the CPU."""
    stack = torch.stack

    def stack_of_one_device(tensors: list[torch.Tensor]) -> torch.Tensor:
        assert len({tensor.device for tensor in tensors}) == 1
        return stack(tensors)

    monkeypatch.setattr(torch, "stack", stack_of_one_device)
    scene = Scene()
    scene.state["adam"][0]["steps"] = torch.ones(()).as_subclass(OnGPU)
    scene.learner.save()
    scene.state["adam"][0]["steps"].fill_(INF)
    check_refused(scene.learner.save, mc.Diverged, "trainer.adam.0.steps holds inf")


def spoil(update: Any, batch: Any) -> mc.Update:
    """A weight becomes NaN in each update between the publications of 28 and 32 updates."""
    outcome: mc.Update = update(batch)
    if batch.numbers["updates"] == 28:
        with torch.no_grad():
            next(update.__self__.network.parameters()).view(-1)[0] = NAN
    return outcome


@MODES
def test_a_run_that_diverges_ends_in_one_line(tmp_path: Path, mode: Any) -> None:
    """The learner is not restarted, and the last finite checkpoint is kept."""
    learner = {"batch_size": 8, "warmup": 20, "publish_interval": 4, "checkpoint_interval": 10}
    line = (
        r"^learner-agent_0 failed: agent_0: expected finite numbers, but .* at update 3\d; nothing more is published; "
        r"the checkpoint of update \d+ is kept, '.*agent_0\.pt'$"
    )
    with pytest.raises(mc.WorkerFailed, match=line) as caught:
        Runs(learner=learner).train(tmp_path, partial(HUNT, agents=1), updating(mc.DQN, spoil)(hidden=(8,)), mode=mode)
    assert caught.value.reason == "diverged" and "\n" not in str(caught.value)
    saved = torch.load(io.BytesIO((tmp_path / "run" / "checkpoints" / "agent_0.pt").read_bytes()), weights_only=True)
    assert f"update {saved['updates']} is kept" in str(caught.value)
    assert all(tensor.isfinite().all() for tensor in saved["network"].values())


seen: list[Any] = []


class Watched(mc.DQN):
    def make_trainer(self, model: torch.nn.Module) -> Any:
        seen.append((model, super().make_trainer(model)))
        return seen[-1][1]


def test_the_model_is_compiled_and_its_target_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []

    def compiled(module: torch.nn.Module, mode: str) -> None:
        modes.append(mode)
        module._compiled_call_impl = module._call_impl

    monkeypatch.setattr(torch.nn.Module, "compile", compiled)
    runs = Runs(total_steps=150, learner={"compile": "reduce-overhead"})
    runs.train(tmp_path, "gymnasium:CartPole-v1", Watched(hidden=(8, 8)))
    ((model, trainer),) = seen
    assert modes == ["reduce-overhead"]
    assert model._compiled_call_impl is not None and trainer.target._compiled_call_impl is None
    assert type(with_engine(mc.DQN().make_trainer(model), "auto")[0]) is DQNTrainer


@pytest.mark.parametrize(
    "mode, of_torch",
    [("default", "default"), ("reduce-overhead", "default"), ("max-autotune", "max-autotune-no-cudagraphs")],
)
def test_torch_makes_no_graphs_inside_of_graphs(monkeypatch: pytest.MonkeyPatch, mode: str, of_torch: str) -> None:
    modes: list[str] = []
    captured: list[Any] = []
    monkeypatch.setattr(role, "compile_model", lambda module, mode: modes.append(mode))
    monkeypatch.setattr(role, "can_capture", lambda trainer: True)
    monkeypatch.setattr(role, "capture", lambda *args: captured.append(args))
    trainer, module, by_graphs = object(), torch.nn.Identity(), mode != "default"
    reason = role.compile_updates(trainer, module, mode, True)
    assert modes == [of_torch] and captured == [(trainer, module, True)] * by_graphs
    assert reason == "learner.compile" + ", by CUDA graphs" * by_graphs


@pytest.mark.parametrize("mode, kept", [("reduce-overhead", True), ("max-autotune", True), ("default", False)])
def test_what_a_cuda_graph_returned_outlives_its_next_call(
    monkeypatch: pytest.MonkeyPatch, mode: str, kept: bool
) -> None:
    buffer = torch.zeros(())

    def compiled(module: torch.nn.Module, mode: str) -> None:
        module._compiled_call_impl = lambda rows: {"values": buffer.copy_(rows)}  # as graphs do, into the same memory

    monkeypatch.setattr(torch.nn.Module, "compile", compiled)
    module = torch.nn.Identity()
    role.compile_model(module, mode)
    first = module(torch.tensor(1.0))
    module(torch.tensor(2.0))
    assert (first["values"] == 1.0) == kept


def normalized(rows: Any) -> tuple[torch.Tensor, dict[str, float]]:
    """What a normalizer of all rows makes of them, and how closely."""
    flat = rows.reshape(-1, rows.shape[-1]).astype(np.float64)
    far = float(np.abs(flat / flat.std(0)).max())  # the largest value, in standard deviations
    return torch.from_numpy((rows - flat.mean(0)) / np.sqrt(flat.var(0) + 1e-8)).float(), rounding(4, far)


def test_batches_of_any_size_give_the_statistics_of_all_rows() -> None:
    rows = np.random.default_rng(0).normal([3.0, -200.0], [0.01, 50.0], (1000, 2))
    norm = Normalizer(mc.Spaces(Box(-1, 1, (2,), np.float64), Discrete(2)))
    for part in np.split(rows, [1, 7, 300]):
        norm.update(torch.from_numpy(part))
    expected, close = normalized(rows)
    torch.testing.assert_close(norm(torch.from_numpy(rows)), expected, **close)


def test_only_float_parts_are_normalized_and_stacks_count_as_rows() -> None:
    observation = Dict({"speed": Box(-1, 1, (2,)), "cell": Discrete(5), "frame": Box(0, 255, (40, 40), np.uint8)})
    norm = Normalizer(mc.Spaces(observation, Discrete(3), masked=True, stack=2))
    speed = np.random.default_rng(1).normal(5.0, 2.0, (64, 2, 2)).astype(np.float32)
    obs = {
        "speed": torch.from_numpy(speed),
        "cell": torch.ones(64, 2, dtype=torch.int64),
        "frame": torch.ones(64, 2, 40, 40, dtype=torch.uint8),
        MASK: torch.ones(64, 2, 3, dtype=torch.bool),
    }
    norm.update(obs)
    made = norm(obs)
    expected, close = normalized(speed)
    torch.testing.assert_close(made["speed"], expected, **close)
    assert all(made[name] is obs[name] for name in ("cell", "frame", MASK))


def test_observations_are_unchanged_before_an_update() -> None:
    norm = Normalizer(mc.Spaces(Box(-1, 1, (1,)), Discrete(2)))
    some = torch.tensor([[4.0]])
    assert norm(some) is some
    norm.update(torch.tensor([[0.0], [1.0]]))
    assert norm(torch.tensor([[1e6], [-1e6]])).tolist() == [[10.0], [-10.0]]


def learnt_from(batches: list[Any], spaces: mc.Spaces, mode: str, updates: int = 1) -> Normalizer:
    """The normalizer of a learner that makes `updates` updates on each of these batches."""
    sampled, norm = iter(batches), Normalizer(spaces)
    learner = learner_of(
        SimpleNamespace(sample=lambda **_: next(sampled), prioritized=False, on_policy=False, save_due=False),
        SimpleNamespace(update=lambda _: mc.Update({"loss": torch.zeros(())}, updates=updates)),
        SimpleNamespace(check_published=lambda _: None, check_loss=lambda *_: None),
        norm,
        config=mc.LearnerConfig(obs_norm=mode, checkpoint_interval=10**9, log_interval=10**9),
    )
    assert all(learn(learner) for _ in batches) and learner.updates == updates * len(batches)
    return norm


def test_frozen_statistics_count_batches_not_gradient_steps() -> None:
    batch = SimpleNamespace(obs=torch.zeros(4, 1), next_obs=torch.zeros(4, 1), mask=None, policy_version=torch.zeros(1))
    norm = learnt_from([batch] * 150, mc.Spaces(Box(-1, 1, (1,)), Discrete(2)), "frozen", updates=40)
    assert int(norm.count) == 400


def test_statistics_leave_out_what_follows_an_episodes_end() -> None:
    """Zeros fill a window after its episode's end."""
    spaces = mc.Spaces(Box(-10, 10, (3,), np.float32), Discrete(4))
    small = mc.R2D2(hidden=(8, 8), units=6, length=12, burn_in=4, period=8)
    windows = [made_windows(small, spaces, seed=seed) for seed in range(3)]
    norm = learnt_from(windows, spaces, "running")
    rows = np.concatenate([batch.obs[batch.valid[..., -1]] for batch in windows])
    assert int(norm.count) == len(rows) < sum(batch.valid[..., -1].size for batch in windows)
    close = rounding(len(rows), 10.0, "float64")
    np.testing.assert_allclose(norm.mean_observation, rows.mean(0, dtype=np.float64), **close)
