"""A node's agent, without Ray: it ends in order at any moment."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
from processes import until
from wander import Wander
from whole_runs import policy_of

import marlcore as mc
from marlcore.cluster.nodes import agent, program, ray_cluster, remains
from marlcore.cluster.nodes import uplink as uplinks
from marlcore.errors import Fenced, LaneBusy
from marlcore.run import RunSpec


class Work:
    """Makes a node's part once the test sets `may`."""

    def __init__(self) -> None:
        self.begun, self.may, self.closed = Event(), Event(), Event()
        self.failure: Exception | None = None
        self.node = SimpleNamespace(error=None, beat=lambda orders: "a status")
        self.ends: Callable[[], Any] = int

    def __call__(self, stack: ExitStack, orders: Any) -> Any:
        self.begun.set()
        self.may.wait()
        if self.failure is not None:
            raise self.failure
        stack.callback(lambda: self.ends())
        stack.callback(self.closed.set)
        return self.node


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    made = Work()
    monkeypatch.setattr(agent.pickle, "loads", lambda _: made)
    monkeypatch.setattr(agent, "sweep", lambda: None)
    yield made
    made.may.set()


def test_an_agent_that_ends_while_it_begins_leaves_nothing(work: Work) -> None:
    """The agent's process is killed once `end` has returned, so `end` must close the unfinished part."""
    made = agent.Agent()
    made.begin(b"", None, 2.0)
    work.begun.wait()
    ends = Thread(target=made.end)
    ends.start()
    ends.join(0.2)
    assert ends.is_alive()
    work.may.set()
    ends.join()
    assert work.closed.is_set() and made.beat(None) is None


def test_an_agent_that_has_ended_begins_nothing(work: Work) -> None:
    made = agent.Agent()
    made.end()
    work.may.set()
    made.begin(b"", None, 2.0)
    until(lambda: not any(thread.name == "marlcore-node" for thread in agent.threading.enumerate()))
    assert not work.begun.is_set()


def test_a_part_that_another_agent_may_make_counts_as_lost(work: Work) -> None:
    made, work.failure = agent.Agent(), Fenced("another learner has taken over this policy")
    work.may.set()
    made.begin(b"", None, 2.0)
    assert until(lambda: made.beat(None)).failed.worker == program.SUPERVISOR
    made.end()


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Is set where the agent's process would exit."""
    exited = Event()
    monkeypatch.setattr(agent, "os", SimpleNamespace(_exit=lambda code: exited.set(), getpid=os.getpid))
    return exited


@pytest.mark.parametrize("seen", ["by the thread", "by a call"])
def test_a_relays_failure_is_told_and_logged(
    seen: str, work: Work, exits: Event, caplog: pytest.LogCaptureFixture
) -> None:
    made, error = agent.Agent(), LaneBusy("reader: expected no living reader")

    def raises(orders: Any) -> None:
        raise error

    if seen == "by the thread":
        work.node.error = error
    else:
        work.node.beat = raises
    work.may.set()
    made.begin(b"", None, 2.0)
    failed = until(lambda: getattr(made.beat(None), "failed", None), lambda: not exits.is_set())
    assert failed.worker == "agent" and failed.traceback.endswith(f"LaneBusy: {error}\n")
    assert f"LaneBusy: {error}" in caplog.text and not exits.is_set()
    made.end()


@pytest.mark.parametrize("why", ["abandoned", "fenced", "its part cannot be closed"])
def test_an_agent_that_is_given_up_ends(why: str, work: Work, exits: Event, caplog: pytest.LogCaptureFixture) -> None:
    made = agent.Agent()
    made.begin(b"", None, 2.0)
    if why == "fenced":
        work.node.error = Fenced("seat 0: epoch 1 has ended")
    else:
        made._heard = float("-inf")
    if why == "its part cannot be closed":
        work.ends = partial(os.close, -1)
    work.may.set()
    assert exits.wait(10.0) and work.closed.is_set()
    assert ("epoch 1 has ended" in caplog.text) == (why == "fenced")


def test_an_uplink_moves_once_to_a_new_address() -> None:
    uplink, moves = uplinks.Uplink.__new__(uplinks.Uplink), list[str]()
    uplink.address, uplink.policy = None, SimpleNamespace(name="a")
    uplink.mirror = uplink.relay = SimpleNamespace(move=moves.append)
    address = SimpleNamespace(rows=lambda name: f"rows of {name}", weights=lambda name: f"weights of {name}")
    for _ in range(2):
        uplink.move(address)
    assert moves == ["weights of a", "rows of a"]


def test_unreachable_addresses_never_reach_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=bool))
    with pytest.raises(ValueError, match="expected a Ray cluster at"):
        ray_cluster._connect("127.0.0.1:1")
    assert Idle().has_answered(), "by default it looks once"


class Idle(ray_cluster.AgentHandle):
    """An agent that answers nothing, as while its machine is still being checked."""

    has_begun = killed = False
    is_awaited, _awaited = True, None
    _ray = SimpleNamespace(wait=lambda _, timeout: [not timeout])

    def __init__(self) -> None: ...

    def call(self, method: str, *args: Any) -> None:
        raise AssertionError(f"{method} would wait for the check")

    def kill(self) -> None:
        self.killed = True


def test_a_process_is_told_from_a_later_one_by_its_beginning() -> None:
    assert int(remains.began(os.getpid())) > 0 and remains.began(2**22 + 1) == ""


WITHOUT_TORCH = """
import pickle, sys
from marlcore.cluster import ray_actors
from marlcore.cluster.nodes import __main__, agent, uplink
from marlcore.config import crews
spec = pickle.load(sys.stdin.buffer)
uplink.source_of_rows(spec.policies[0], spec.config, crews(spec.config)[1]).close()
print(spec.acts_compiled, "torch" in sys.modules)
"""


def test_no_process_but_a_learners_imports_torch_on_a_node_of_compiled_policies() -> None:
    """It took 1.6 of the 2.7 CPU-seconds of each agent, program, ingest and porter, and 200 MB of memory."""
    config = mc.Config(cluster=mc.ClusterConfig("auto"))
    policy = policy_of("agent_0", mc.DQN(), Wander, config)
    spec = cloudpickle.dumps(RunSpec(Wander, (policy,), config))
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], input=spec, capture_output=True, check=True)
    assert done.stdout.split() == [b"True", b"False"]


class Failing(mc.DQN):
    def transition(self, spaces: mc.Spaces) -> mc.TransitionSpec:
        raise AttributeError("of the user's own")


def test_what_receives_rows_and_what_cleans_up_imports_nothing_of_runs() -> None:
    for module in "ingests", "remains":
        code = f"import sys, marlcore.cluster.nodes.{module}; print('marlcore.run' in sys.modules)"
        assert subprocess.check_output([sys.executable, "-c", code]).split() == [b"False"]


def test_a_failing_transition_says_why() -> None:
    policy = policy_of("agent_0", mc.DQN(), Wander, mc.Config())
    with pytest.raises(AttributeError, match="of the user's own"):
        _ = replace(policy, algorithm=Failing()).transition


class Gone(Idle):
    """An agent whose machine has just been lost."""

    has_begun = True

    def call(self, method: str, *args: Any) -> None:
        raise ray_cluster.AgentLost("its raylet is dead")

    def has_answered(self, seconds: float = 0.0) -> bool:
        raise ray_cluster.AgentLost("its raylet is dead")


def test_an_agent_that_is_lost_at_the_end_keeps_no_other_from_ending() -> None:
    cluster, agents = ray_cluster.RayCluster.__new__(ray_cluster.RayCluster), [Gone(), Idle()]
    for each in agents:
        each.machine = SimpleNamespace(host="elsewhere", id="")
    cluster.agents, cluster._cleanups = [*agents], []
    cluster.discard = cluster.agents.remove
    cluster.end_agents()
    assert agents[1].killed and not cluster.agents


FAILS = """
import os, pickle, sys
from marlcore.errors import WorkerFailed
sys.stdin.buffer.read()
with os.fdopen(int(sys.argv[1]), "wb") as file:
    pickle.dump(WorkerFailed("actor-0", "environment", 300_000 * "x"), file)
"""


def test_a_failure_of_any_length_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of an actor which was started again has the traceback of each attempt."""

    def start_other(start: Any) -> Any:
        command, options = start.args[0], start.keywords
        return start.func([sys.executable, "-c", FAILS, command[-1]], **options)

    monkeypatch.setattr(program, "start_child", start_other)
    spec, memory = SimpleNamespace(acts_compiled=False), SimpleNamespace(crew=SimpleNamespace(count=0))
    with program.Program(spec, memory) as started:
        failed = until(started.failure)
    assert (failed.worker, failed.reason, len(failed.traceback)) == ("actor-0", "environment", 300_000)


def test_an_agent_that_has_not_begun_is_killed_at_once() -> None:
    cluster, idle = ray_cluster.RayCluster.__new__(ray_cluster.RayCluster), Idle()
    cluster.agents, cluster._cleanups = [idle], []
    cluster.end_agents()
    assert idle.killed and not cluster.agents
