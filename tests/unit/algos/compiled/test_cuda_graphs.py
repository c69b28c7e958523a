"""Updates by CUDA graphs equal those without, on a double of CUDA. Then rules are broken, and the check must fail."""

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from batches import SMALL, batch_of, box_spaces, continuous_spaces, made_trainer
from broken import break_rule
from cuda_double import CudaDouble
from graph_double import GraphDouble, tensors_in
from gymnasium.spaces import Box, Discrete
from tiers import long_but
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from whole_runs import Runs, checkpoint

import marlcore as mc
from marlcore.algos.bases.adam import ClippedAdam
from marlcore.algos.bases.q_learning import QTrainer
from marlcore.algos.compiled.cuda_graphs import (
    WARM_UPS,
    Block,
    Fields,
    Graphs,
    MinibatchStep,
    ReplayStep,
    can_capture,
    capture,
)
from marlcore.replay.prefetch_work import Mover
from marlcore.run.roles import learner as learner_role

UPDATES, BATCH = 30, 128
OBS = Box(-9, 9, (100,))  # so that the memory of a batch is large enough to be registered
SCHEDULED: dict[str, Any] = {"hidden": (8, 8), "learning_rate": "linear(1, 0, 100)"}
HYPER: dict[str, Any] = {
    "dqn": mc.DQN(**SCHEDULED),
    "sac": mc.SAC(**SCHEDULED),
    "td3": mc.TD3(**SCHEDULED, policy_delay=3),
    "ppo": mc.PPO(**SCHEDULED, batch_size=24, minibatch_size=12, epochs=2, target_kl=1e-3),
}


def spaces_of(name: str) -> mc.Spaces:
    return mc.Spaces(OBS, Discrete(3) if name in ("dqn", "ppo") else Box(-1, 1, (2,)))


def numbers_at(t: int) -> dict[str, float]:
    """Scheduled numbers; rates that are exact as float32."""
    return {"learning_rate": 2.0 ** -(7 + t // 10), "entropy_coefficient": 2.0 ** -(3 + t // 5)}


class Learning:
    """A trainer, and its batches: the same for each object of the same arguments."""

    def __init__(
        self, name: str, replay: Any, prioritized: bool = False, rows: int = BATCH, other: int | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        """`other`: the rows of every seventh batch."""
        hyper = type(HYPER[name])(**{**vars(HYPER[name]), **options})
        batches = [] if replay else copy.deepcopy(queue_batches(hyper, rows))
        torch.manual_seed(0)
        self.model = hyper.make_model(spaces_of(name))
        self.trainer: Any = hyper.make_trainer(self.model)
        self.prioritized, self.rows, self.other = prioritized, rows, other or rows
        self.saved: Any = None
        self.sample: Callable[[int], Any] = lambda _: batches.pop(0)
        if replay:
            draws = mc.Prioritized() if prioritized else None
            self.sampler = replay.sampler(rows, seed=3, prioritized=draws)
            self.sample = self.sampler.sample

    def update(self, t: int, as_tensors: bool) -> mc.Update:
        """Makes update `t`; goes back to the state before update 10 before update 20, as a league's rollback does."""
        if t == 10:
            self.saved = copy.deepcopy((self.model.state_dict(), self.trainer.state_dict()))
        if t == 20:
            self.model.load_state_dict(self.saved[0])
            self.trainer.load_state_dict(self.saved[1])
        drawn = self.sample(self.other if t % 7 == 3 else self.rows)
        batch = drawn.torch() if as_tensors and isinstance(drawn, mc.Batch) else drawn
        batch.numbers = numbers_at(t)
        update: mc.Update = self.trainer.update(batch)
        if self.prioritized:
            self.sampler.update_priorities(drawn.index, update.priority)
        return update

    def state(self) -> list[Any]:
        leaves = tree_leaves([self.model.state_dict(), self.trainer.state_dict()])
        return [leaf.clone() if torch.is_tensor(leaf) else leaf for leaf in leaves]


def equal(found: list[Any], expected: list[Any]) -> bool:
    return all(torch.equal(a, b) if torch.is_tensor(b) else a == b for a, b in zip(found, expected, strict=True))


@cache
def queue_batches(hyper: Any, rows: int) -> list[Any]:
    return [batch_of(hyper, spaces_of("ppo"), seed=t, rows=rows) for t in range(UPDATES)]


@contextmanager
def replay_of(name: str) -> Iterator[Any]:
    """A filled replay; None for an algorithm that learns from a queue."""
    if name == "ppo":
        yield None
        return
    spec, rng = HYPER[name].transition(spaces_of(name)), np.random.default_rng(0)
    with mc.ReplayBuffer.create(spec, 400) as replay:
        with replay.writer() as writer:
            for t in range(300):
                obs = rng.normal(size=OBS.shape).astype(np.float32)
                action = rng.uniform(-1, 1, 2).astype(np.float32) if name != "dqn" else t % 3
                writer.add(obs, action, rng.normal(), t % 7 == 6)
        yield replay


@cache
def expected_of(case: str) -> dict[int, tuple[dict[str, Any], list[Any]]]:
    """Metrics, and the state after them, of every tenth update without graphs."""
    options = {name: value for name, value in CASES[case].items() if name != "moved"}
    with replay_of(options["name"]) as replay:
        plain = Learning(replay=replay, **options)
        told = [(dict(plain.update(t, True).metrics), t % 10 == 9 and plain.state()) for t in range(UPDATES)]
    return {t: (metrics, state) for t, (metrics, state) in enumerate(told) if state}


def follows(case: str, cuda: CudaDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured updates equal the others; each byte of a batch is copied once, and nothing is allocated.

    Results are read at every tenth update alone, since replays work as late as they may.
    """
    expected, options = expected_of(case), dict(CASES[case])
    name, moved = options["name"], options.pop("moved", False)
    with ExitStack() as stack:
        replay = stack.enter_context(replay_of(name))
        ours = Learning(replay=replay, **options)
        if moved:
            prefetch = stack.enter_context(mc.Prefetch(ours.sampler, depth=1, device="cuda"))
            ours.sample = lambda _: prefetch.sample()
        double = stack.enter_context(GraphDouble(cuda, monkeypatch))
        capture(ours.trainer, ours.model, ours.prioritized)
        step, allocated = ours.trainer.step, [0]

        def counted(*args: Any) -> Any:
            before = double.allocated
            result = step(*args)
            allocated.append(double.allocated - before)
            return result

        ours.trainer.step = counted
        for t in range(UPDATES):
            update = ours.update(t, False)
            if t in expected:
                metrics, state = expected[t]
                assert update.metrics.keys() == metrics.keys()
                assert equal([*update.metrics.values()], [*metrics.values()]) and equal(ours.state(), state)
        assert min(allocated[-3:]) == (28 if name == "ppo" else 0), "but for what a step of PPO returns"
        assert double.replays >= UPDATES / 2
        assert not ours.prioritized or double.is_host(step._priority), "it must be pinned"
        if replay is not None and not moved and ours.other == ours.rows:
            size = len(ours.sampler._rows._plan._sized.pool[0].root)
            assert double.copied + double.copied_by_graphs == UPDATES * size
            assert double.copied_by_graphs == (double.replays * size if cuda.registered else 0)
    assert not cuda.wrong


CASES: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in HYPER},
    "a constant rate": {"name": "td3", "learning_rate": 2.0**-8},  # so that nothing waits for a replay
    "copies of the network at times": {"name": "dqn", "target_update_freq": 4},
    "priorities": {"name": "sac", "prioritized": True},
    "a thread draws ahead": {"name": "td3", "moved": True},
    "small memory, which is not registered": {"name": "dqn", "rows": 16},
    "batches of other sizes": {"name": "sac", "other": 40},
    "a smaller last minibatch": {"name": "ppo", "rows": 30, "minibatch_size": 12},
}
CASES["ppo"] |= {"rows": 24}


@pytest.mark.parametrize("case", long_but(["dqn", "td3", "priorities"], CASES))
def test_captured_updates_equal_the_others(case: str, cuda_double: CudaDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    follows(case, cuda_double, monkeypatch)


BROKEN: list[tuple[str, Any, str, str, str]] = [
    ("dqn", ReplayStep, "__call__", "if not inside:\n        load()", "load()\n    inside = False"),  # a copy outside
    ("dqn", ReplayStep, "__call__", "trainer.updates = updates", "pass"),
    ("dqn", ReplayStep, "__call__", ", memory if inside else None", ", None"),  # one graph for two memories
    ("td3", ReplayStep, "__call__", "updates % trainer.period == 0", "True"),
    ("copies of the network at times", ReplayStep, "__call__", "updates % trainer.period == 0", "True"),
    ("a constant rate", ReplayStep, "_finished", "(event, batch)", "(event, None)"),  # a draw into what it reads
    ("a constant rate", ReplayStep, "_finished", "last[0].synchronize()", "pass"),
    ("priorities", ReplayStep, "_finished", "event.synchronize()", "pass"),
    ("sac", Graphs, "_capture", "graph.register_generator_state(self._generator)", "pass"),
    ("a constant rate", Graphs, "call_aside", "self._stream.wait_stream(current)", "pass"),
    ("dqn", Graphs, "call_aside", "current.wait_stream(self._stream)", "pass"),
    ("dqn", Graphs, "call_aside", "torch.cuda.stream(self._stream)", "torch.cuda.stream(current)"),
    ("dqn", Graphs, "_capture", "torch.cuda.device(self.device)", "torch.no_grad()"),
    ("dqn", Graphs, "_capture", '"stream": self._stream', '"stream": torch.cuda.Stream()'),
    ("dqn", Block, "load", ", non_blocking=True", ""),
    ("priorities", ReplayStep, "_run", "update.priority, non_blocking=True", "update.priority"),
    ("priorities", ReplayStep, "__call__", "pin_memory=self._prioritized", "pin_memory=False"),
    ("a thread draws ahead", Mover, "arrive", "stream.wait_event(event)", "pass"),  # a replay before the batch is there
    ("a thread draws ahead", Fields, "load", "torch._foreach_copy_(", "self.__init__(fields) or zip("),  # other places
    ("ppo", Fields, "load", "torch._foreach_copy_(", "self.__init__(fields) or zip("),
    ("ppo", MinibatchStep, "__call__", "self._bonus.fill_(bonus)", "self._bonus = bonus"),
    ("ppo", MinibatchStep, "__call__", "metrics.clone()", "metrics"),
    ("a smaller last minibatch", MinibatchStep, "__call__", "len(rows.value) != len(form.batch.value)", "False"),
    *((name, ClippedAdam, "clip_and_step", 'group["lr"] if self._rate is None else self._rate', 'group["lr"]')
      for name in HYPER),
    *((name, ClippedAdam, "clip_and_step", "torch._fused_adam_(",
       "(lambda *args, **kwargs: self._rate is not None and torch.cuda.is_current_stream_capturing()"
       " or torch._fused_adam_(*args, **kwargs))(") for name in ("dqn", "ppo")),
]  # fmt: skip


@pytest.mark.parametrize("case, owner, name, rule, broken", long_but(BROKEN[:4], BROKEN))
def test_each_broken_rule_is_found(
    case: str, owner: Any, name: str, rule: str, broken: str,
    cuda_double: CudaDouble, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    expected_of(case)  # by the sound rules
    break_rule(monkeypatch, owner, name, rule, broken)
    with pytest.raises(
        (AssertionError, RuntimeError), match=r"assert|CUDA generator|size of tensor|permitted|device|libraries|awaited"
    ):
        follows(case, cuda_double, monkeypatch)


class OnMetaAlone(TorchDispatchMode):
    """Refuses operations with a tensor of the host. Tensors on `meta` have no numbers, and waiting for them raises."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_adam = function is torch.ops.aten._fused_adam_.tensor_lr  # which meta has not, and which returns nothing
        results = None if is_adam else function(*args, **(kwargs or {}))
        assert all(tensor.is_meta for tensor in tensors_in([args, kwargs, results])), function
        return results


@pytest.mark.parametrize("name", ["dqn", "sac", "td3", "ppo", "mappo"])
def test_a_step_neither_waits_nor_reads_the_host(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controls: a step that reads a gradient, and one that takes numbers from the host."""
    monkeypatch.setattr("marlcore.algos.bases.actor_critic.seeded_generator", lambda device: None)
    hyper, spaces = SMALL[name]
    batch, on_cpu, bonus = batch_of(hyper, spaces), made_trainer(hyper, spaces)[1], []
    if name in ("ppo", "mappo"):
        with torch.no_grad():
            batch, bonus = on_cpu.prepare(batch, on_cpu.evaluate(batch))[0], [torch.zeros((), device="meta")]
    trainer: Any = hyper.make_trainer(hyper.make_model(spaces).to("meta"))
    for optimizer in trainer.optimizers:
        optimizer.make_capturable()
    fields = batch._asdict() if bonus else vars(batch)
    batch = SimpleNamespace(**tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), dict(fields)))
    with OnMetaAlone():
        trainer.step(batch, *bonus)
        monkeypatch.setattr(ClippedAdam, "clip_and_step", lambda self, _: self._gradient[0].item())
        with pytest.raises(RuntimeError, match=r"item\(\)"):
            trainer.step(batch, *bonus)
        monkeypatch.setattr(ClippedAdam, "clip_and_step", lambda self, _: torch.ones(3).to(self._gradient))
        with pytest.raises(AssertionError):
            trainer.step(batch, *bonus)


@pytest.mark.parametrize("kind, expected", [("cuda", ["dqn", "td3", "sac", "ppo", "mappo"]), ("cpu", [])])
def test_four_algorithms_are_captured_on_cuda(kind: str, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlcore.algos.compiled.cuda_graphs.kind_of", lambda _: kind)
    trainers = {name: made_trainer(*of_one)[1] for name, of_one in SMALL.items()}
    assert [name for name, trainer in trainers.items() if can_capture(trainer)] == expected
    for hyper, spaces in (
        (mc.PPO(hidden=(8,), batch_size=24, minibatch_size=24, epochs=1), box_spaces()),
        (mc.SAC(hidden=(8,), cell="gru"), continuous_spaces()),
    ):
        assert not can_capture(made_trainer(hyper, spaces)[1])


def test_an_update_that_waits_is_refused_in_one_line(cuda_double: CudaDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cause stands in it, not what the end of the capture raises beside."""

    def waits(trainer: Any, batch: Any) -> Any:
        return batch.action.long() + int(batch.action[0].item() > 9)

    expected_of("dqn")
    monkeypatch.setattr(QTrainer, "action_index", waits)
    line = "learner.compile: expected off or default, since CUDA graphs cannot capture the update of DQN"
    with pytest.raises(RuntimeError) as caught:
        follows("dqn", cuda_double, monkeypatch)
    assert str(caught.value).startswith(line) and "not permitted when stream is capturing" in str(caught.value)


class Counting(torch.nn.Module):
    """Counts its calls in another tensor each time, which a graph would not see."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self) -> Any:
        self.calls = self.calls + 1
        return self.calls


def test_a_network_that_replaces_a_buffer_is_refused(cuda_double: CudaDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    network, trainer = Counting(), Learning("dqn", None).trainer
    with GraphDouble(cuda_double, monkeypatch):
        graphs = Graphs(trainer, network)
        for _ in range(WARM_UPS):
            graphs.call(None, network)
        with pytest.raises(RuntimeError, match=r"of DQN \(its network replaces calls: write into tensors in place\)"):
            graphs.call(None, network)


def test_a_run_learns_the_same_by_graphs(
    tmp_path: Path, cuda_double: CudaDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without torch's compiler, whose place in a run is tested with the learner."""
    monkeypatch.setattr(learner_role, "compile_model", lambda module, mode: modes.append(mode))
    modes: list[str] = []
    networks = []
    for mode in ("default", "reduce-overhead"):
        runs = Runs(total_steps=300, learner={"compile": mode, "batch_size": 8}, replay={"prioritized": True})
        with GraphDouble(cuda_double, monkeypatch) as double:
            result = runs.train(tmp_path / mode, "gymnasium:CartPole-v1", mc.DQN(hidden=(8,), learning_rate=2.0**-8))
        networks.append([*checkpoint(result.run_dir)["network"].values()])
        assert (double.replays > 0) == (mode == "reduce-overhead")
    assert modes == ["default", "default"] and equal(*networks)
