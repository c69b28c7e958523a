"""The machines of a cluster, before a run: those that fit are checked, and others are refused in one line."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from processes import until
from refused import check_refused

import marlcore as mc
from marlcore.training.nodes import Fleet, agent

CARTPOLE = mc.NamedEnvironment("gymnasium:CartPole-v1")
pytestmark = pytest.mark.long


def fleet(cluster: Any, env_fn: Callable[[], Any] = CARTPOLE, **settings: Any) -> Fleet:
    return Fleet(mc.ClusterConfig(**{"address": cluster.address, **settings}), env_fn, "the game")


def broken_env() -> None:
    raise OSError("no such\ngame")


REFUSED: dict[str, tuple[Callable[[Any], object], str]] = {
    "too few nodes": (lambda cluster: fleet(cluster, nodes=3), "expected 3 beside this machine with CPU 1, got 2"),
    "too few processors": (lambda cluster: fleet(cluster, actors_per_node=9), "has 4 of 9 CPU"),
    "no such resource": (lambda cluster: fleet(cluster, resources={"highmem": 2}), "has 0 of 2 highmem"),
    "no cluster": (lambda cluster: fleet(cluster, address="127.0.0.1:1"), "cluster.address: expected a Ray cluster at"),
    "environment": (lambda cluster: fleet(cluster, broken_env), "OSError: no such game"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_cluster_that_does_not_fit_is_refused_in_one_line(case: str, ray_nodes: Any) -> None:
    call, says = REFUSED[case]
    check_refused(lambda: call(ray_nodes), ValueError, says)


def test_another_version_on_a_node_is_refused(ray_nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlcore.training.nodes.fleet.__version__", "9.9")
    check_refused(lambda: fleet(ray_nodes), ValueError, "cluster: expected marlcore 9.9 on")


def test_an_environment_that_a_node_lacks_is_named(ray_nodes: Any, tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "only_here.py").write_text(
        "def make():\n    import gymnasium\n    return gymnasium.make('CartPole-v1')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import only_here

    hidden = [path for path in __import__("sys").path if path != str(tmp_path)]
    monkeypatch.setattr("marlcore.training.nodes.fleet.sys.path", hidden)
    check_refused(lambda: fleet(ray_nodes, only_here.make), ValueError, "No module named 'only_here'")


def test_a_connection_keeps_the_programs_handlers(ray_nodes: Any) -> None:
    handlers = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
    with fleet(ray_nodes, nodes=2) as made:
        assert handlers == [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
        assert len({hired.machine.id for hired in made.hired}) == 2 and not list(made.free())


def test_a_lost_agent_is_killed_and_its_machine_is_free_again(ray_nodes: Any) -> None:
    with fleet(ray_nodes, nodes=1) as made:
        (hired,) = made.hired
        os.kill(hired.found["pid"], signal.SIGSTOP)  # it does not even die when Ray asks it to
        made.dismiss(hired)
        assert hired.machine.id in {machine.id for machine in made.free()}
        until(lambda: agent.began(hired.found["pid"]) != hired.found["began"])
