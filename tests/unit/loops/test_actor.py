"""Workers, and actors among them: they wait for their first weights, and for nothing else."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from mapped import Mapped
from processes import PATIENCE_S, until
from seams import without_limits
from whole_runs import Runs, config_of

import marlcore as mc
from marlcore.cli import CommandLine
from marlcore.config import AssignedPolicy
from marlcore.declared import changed, hints_of
from marlcore.envs import TreasureHunt, checked, vectorize
from marlcore.loops import FollowedWeights, act, build_model
from marlcore.processes import BEATS, BEGUN, STEPS, Control, Telemetry
from marlcore.run import roles

AGENT = "agent_0"
HUNT = partial(TreasureHunt, agents=1, size=6, horizon=25, gems=3, food=1, bones=3)
CONFIG = mc.Config(actor=mc.ActorConfig(envs=1), replay=mc.ReplayConfig(capacity=500))


@pytest.mark.parametrize("ends", ["the first are published", "others are published", "the run stops"])
def test_an_actor_waits_for_whole_weights(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows signs of life meanwhile. Their learner died in the middle of a publish; its successor publishes."""
    monkeypatch.setattr("marlcore.loops.acting_policy.FIRST_PULL_S", 0.01)
    monkeypatch.setattr("marlcore.run.roles.actor.WAIT_S", 0.01)
    env, beats, versions = HUNT(), count(), [0]
    spaces = mc.Spaces(env.observation_spaces[AGENT], env.action_spaces[AGENT])
    policy = AssignedPolicy(AGENT, (AGENT,), spaces, mc.DQN())
    network, control = build_model(policy, CONFIG).acting, SimpleNamespace(stopping=False)

    def publish() -> None:
        with store.publisher(network) as publisher:
            versions.append(publisher.publish(epsilon=1.0, updates=0))

    def beat() -> None:
        if next(beats) == 5:
            control.stopping = ends == "the run stops"
            publish() if not control.stopping else None

    with ExitStack() as stack:
        store = stack.enter_context(mc.ParameterStore.create(network, "snapshot", {"epsilon": (), "updates": ()}))
        publish() if ends == "others are published" else None
        counters = Mapped(store).counters()
        counters[1] = counters[0] + 1
        host: Any = SimpleNamespace(
            beat=beat, config=CONFIG, env=SimpleNamespace(copies=1), control=control, hold=stack.enter_context,
            _number=0, _steps=0, _seed=lambda *use: 0, _device=torch.device("cpu"),
            spec=SimpleNamespace(policies=[policy]), memory=SimpleNamespace(weights={AGENT: store.handle}),
        )  # fmt: skip
        assert roles.ActorRole._policy(host, policy)[1].version == versions[-1] and next(beats) > 5


@pytest.mark.parametrize(
    ("interval", "turns", "pulled"),
    [(1, [0, 3, 4], [0, 3, 4]), (10, [0, 3, 6, 9, 12, 15, 18, 21], [0, 12, 21]), (10, [7, 25, 29, 30], [7, 25, 30])],
)
def test_a_policy_pulls_at_its_first_turn_in_an_interval(
    interval: int, turns: list[int], pulled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the rounds between its turns, in which others act."""
    at: list[int] = []
    subscriber: Any = None
    weights = FollowedWeights(subscriber, exponents=np.ones(1), sync_interval=interval)
    monkeypatch.setattr(weights, "pull", lambda: at.append(rounds))
    for rounds in turns:
        weights.pull_if_due(rounds)
    assert at == pulled
    assert weights.exponents is None, "without a ladder all copies have one epsilon"


def test_only_policies_that_act_look_for_weights() -> None:
    """With 1,000 agents that act in turn, looks of all would take longer than the turn."""
    looked: list[tuple[str, int]] = []

    def collector(agent: str) -> Any:
        def look(rounds: int) -> None:
            looked.append((agent, rounds))

        return SimpleNamespace(followed=[SimpleNamespace(pull_if_due=look)], act=lambda turn: np.zeros(2, np.int64))

    turn = mc.Turn("b", np.arange(2), np.zeros((2, 4)), np.zeros(2, bool))
    env: Any = SimpleNamespace(act=lambda *_: None)
    host: Any = SimpleNamespace(rounds=7, count_steps=lambda steps: None)
    act(env, {agent: collector(agent) for agent in "abc"}, [turn], host)
    assert looked == [("b", 7)]


class Foreign:
    """A caller's own VectorEnvironment, of which one number is infinite."""

    def __init__(self, what: str) -> None:
        self.env = vectorize(partial(mc.NamedEnvironment("gymnasium:CartPole-v1")), 3)
        self.spaces, self.what = self.env.spaces, what
        self.env.reset(0)

    def observe(self) -> Any:
        outcomes, [turn] = self.env.observe()
        if self.what == "obs":
            turn.obs[1, 0] = np.inf
        if self.what == "reward" and outcomes:
            outcomes[0].reward[1] = np.inf
        if self.what == "final_obs" and outcomes:
            last = np.where(np.arange(3)[:, None] == 1, np.inf, turn.obs)
            outcomes = [outcomes[0]._replace(final_obs=last, terminated=np.ones(3, bool))]
        self.env.act(turn, np.zeros(3, np.int64))
        return outcomes, [turn]


@pytest.mark.parametrize("what", ["obs", "reward", "final_obs"])
def test_values_of_a_callers_own_vector_environment_are_checked(what: str) -> None:
    env = checked(Foreign(what))  # type: ignore[arg-type]
    name = "reward" if what == "reward" else "obs"
    line = f"^environment copy 1, {AGENT}: {name}: expected (a )?finite numbers?.*, got inf"
    with pytest.raises(mc.EnvironmentFailed, match=line):
        for _ in range(2):
            env.observe()


class Counting(gymnasium.Env[Any, Any]):
    """Its observations are the number of the step, in arrays of some kind."""

    observation_space, action_space, at = Box(0, 99, (2,)), Discrete(2), 0

    def __init__(self, kind: str) -> None:
        self.kind, self.array = kind, np.zeros(2, np.float32)

    def reset(self, **_: Any) -> Any:
        return self.step(0, at=0)[::4]

    def step(self, action: Any, at: int | None = None) -> Any:
        self.at = self.at + 1 if at is None else at
        self.array[:] = self.at
        fresh = np.full(4, self.at, np.float32)
        of_kind = {"reused": self.array, "read-only": np.broadcast_to(fresh[:1], 2), "strided": fresh[::-2]}
        return of_kind[self.kind], 1.0, False, self.at == 7, {}


@pytest.mark.parametrize("kind", ["reused", "read-only", "strided"])
def test_an_environment_may_return_arrays_of_any_kind(kind: str, tmp_path: Path) -> None:
    """A single copy's observation is not copied before its row, so the next step must not change that."""
    runs = Runs(total_steps=30, actor={"envs": 1}, replay={"save": True})
    run = runs.train(tmp_path, partial(Counting, kind), mc.DQN(hidden=(4,)))
    with mc.ReplayBuffer.load(run.run_dir / "checkpoints" / f"{AGENT}.replay") as replay, without_limits():
        batch = replay.sampler(200, seed=0, min_size=1).sample()
        assert len(replay) == 30 and (batch.next_obs == batch.obs + 1).all() and set(batch.obs[:, 0]) == {*range(7)}


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    with closing(Telemetry.create(["actor-0"])) as made:
        yield made


@pytest.fixture
def worker(telemetry: Telemetry) -> Iterator[roles.Role]:
    with closing(Control.create(["actor-0", "evaluator"])) as control:
        memory: Any = SimpleNamespace(control=control.handle, telemetry=telemetry.handle, began=0.0)
        spec: Any = SimpleNamespace(config=None)
        with closing(roles.Role("actor-0", spec, memory)) as made:
            yield made


@pytest.mark.parametrize(
    "next_call", [lambda worker: worker.beat(), roles.Role.close, lambda worker: worker.hold(worker)]
)
def test_a_workers_fork_leaves_at_its_next_call(worker: roles.Role, next_call: Callable[[roles.Role], Any]) -> None:
    """A fork that the worker's environment made does nothing in its name."""
    ended, end = os.pipe()
    worker.hold(SimpleNamespace(close=lambda: os.write(end, b"closed")))
    child = os.fork()
    if child == 0:
        try:
            next_call(worker)
        finally:
            os._exit(9)
    assert os.waitpid(child, 0)[1] == 0
    os.set_blocking(ended, False)
    with pytest.raises(BlockingIOError):
        os.read(ended, 1)
    worker.close()
    for fd in (ended, end):
        os.close(fd)


@pytest.mark.parametrize("ends", [lambda control: control.workers["evaluator"].store(BEGUN, 23), Control.stop])
def test_a_worker_waits_until_a_due_evaluation_has_begun(worker: roles.Role, ends: Callable[[Control], None]) -> None:
    worker.config = mc.Config(total_steps=29, evaluation=mc.EvaluationConfig(interval=10, wait=True))
    counters = worker.control.workers["actor-0"]
    worker.control.workers["evaluator"].store(BEGUN, 10)
    counters.store(STEPS, 19)
    worker.await_evaluation()
    counters.store(STEPS, 30)  # an actor took one too many, so that 20 alone is due
    waits = threading.Thread(target=worker.await_evaluation, daemon=True)
    waits.start()
    until(lambda: counters.load(BEATS) > 3, waits.is_alive)
    ends(worker.control)
    waits.join(PATIENCE_S)
    assert not waits.is_alive()


def test_a_metrics_name_is_cut_by_its_bytes(worker: roles.Role, telemetry: Telemetry) -> None:
    worker.report("agent_0", "win_rate/" + "\xfc" * 60, 0.5)
    assert [metric.name for metric in telemetry.tail()] == ["win_rate/" + "\xfc" * 27]


def test_devices_are_dealt_out_to_the_actors_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluator acts on the first; the run's settings are read back as they were."""
    chosen: dict[str, list[str]] = {"actor": [], "evaluator": []}
    for module, names in chosen.items():

        def choose(name: str, names: list[str] = names) -> torch.device:
            names.append(name)
            return torch.device("cpu")

        monkeypatch.setattr(f"marlcore.run.roles.{module}.choose_device", choose)
    monkeypatch.setattr("marlcore.run.spec.choose_device", lambda name: torch.device("cpu"))
    actor = {"processes": 3, "envs": 1, "device": ("cuda:0", "cuda:1")}
    run = Runs(total_steps=30, actor=actor, evaluation={"interval": 30, "episodes": 1}).train(tmp_path, HUNT)
    assert chosen == {"actor": ["cuda:0", "cuda:1", "cuda:0"], "evaluator": ["cuda:0"]}
    assert config_of(run.run_dir)["actor"]["device"] == ["cuda:0", "cuda:1"]
    words = ["--actor.processes", "2", "--actor.device", "cuda:0", "cuda:1"]
    for line, device in ((words, ("cuda:0", "cuda:1")), (words[:-1], "cuda:0")):
        read = changed(mc.Config(), CommandLine("train", line).read(hints_of(mc.Config)))
        assert read.actor == mc.ActorConfig(processes=2, device=device)
