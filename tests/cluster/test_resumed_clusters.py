"""Runs on a cluster whose driver was killed, or ended: they go on, on a cluster or on one machine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from processes import sweep, until
from ray_nodes import RayNodes
from refused import check_refused
from whole_clusters import Drive, called, kill, leaves_nothing, left_on, result_of
from whole_runs import LONG, Runs, checkpoint, finished, marlcore, saved_replay, steps_of

import marlcore as mc
from marlcore.config import assign
from marlcore.errors import Fenced
from marlcore.record import Hold, RunDirectory, check_resumed, describe
from marlcore.spaces import Spaces

CARTPOLE = mc.NamedEnvironment("gymnasium:CartPole-v1")
POLICIES = assign({"agent_0": Spaces(Box(-1, 1, (3,)), Discrete(2))}, None, mc.DQN(), stack=1)

BEGINS = """
learner = mc.LearnerConfig(device="cpu", warmup=100, publish_interval=5, checkpoint_interval=20)
replay = mc.ReplayConfig(capacity=12_000, save=sys.argv[3] == "saved")
nodes = 1 if replay.save else 2
mc.train(CARTPOLE, "dqn", configured(sys.argv[2], 10**9, nodes, learner=learner, replay=replay), progress=False)
"""
RESUMES = """
more = int(sys.argv[3])
learner = mc.LearnerConfig(device="cpu", warmup=100, publish_interval=5)
actor = mc.ActorConfig(processes=int(sys.argv[4]))
cluster, nodes = {"actors_per_node": 2, "lease_seconds": 25.0}, int(sys.argv[5])
config = configured(sys.argv[2], more, nodes, cluster, learner=learner, actor=actor)
told(mc.train(CARTPOLE, "dqn", config, progress=False, resume=sys.argv[2]))
"""


def killed_run(drive: Drive, saves: str = "") -> dict[str, Any]:
    """Kills a run's driver once nodes have stepped and the learner has saved that; returns the checkpoint."""
    run_dir, driver = drive.run_dir, drive(BEGINS, args=[saves])
    until(
        lambda: steps_of(run_dir) > 1000 and (run_dir / "checkpoints" / "agent_0.pt").exists(), lambda: driver.running
    )
    until(lambda: checkpoint(run_dir)["updates"] > 50, lambda: driver.running)
    kill(driver)
    return checkpoint(run_dir)


# ---- what can change ----

NODES = mc.ClusterConfig("auto", nodes=2)
ALONE = mc.ActorConfig(processes=1)
NONE_HERE = mc.ActorConfig(processes=0)
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another cluster": ({"cluster": NODES}, {"cluster": replace(NODES, address="head:6379", lease_seconds=9.0)}),
    "other machines": ({"cluster": NODES}, {"cluster": mc.ClusterConfig("auto", nodes=9, actors_per_node=3)}),
    "one machine": ({"cluster": NODES, "actor": NONE_HERE}, {"actor": ALONE}),
    "a cluster": ({"actor": ALONE}, {"cluster": NODES, "actor": NONE_HERE}),
}  # fmt: skip
OF_ROWS = "the run's saved replays depend on it; to change it, remove checkpoints"


def resumed(run_dir: Path, before: dict[str, Any], now: dict[str, Any], saved: bool = False) -> None:
    """Checks whether a run of these settings, perhaps with a saved replay, may go on with others."""
    with RunDirectory.create(run_dir, describe(CARTPOLE, POLICIES, mc.Config(**before))) as run:
        run.keep()
        if saved:
            run.replay_path("agent_0").touch()
    check_resumed(run_dir, describe(CARTPOLE, POLICIES, mc.Config(**now)), POLICIES)


@pytest.mark.parametrize("case", CHANGES)
def test_a_run_may_change_its_machines(case: str, tmp_path: Path) -> None:
    resumed(tmp_path / "run", *CHANGES[case])


@pytest.mark.parametrize("name, now", [("nodes 2", 9), ("actors_per_node 1", 3)])
def test_saved_replays_keep_the_machines_of_their_lanes(name: str, now: int, tmp_path: Path) -> None:
    label = name.partition(" ")[0]
    changed = {"cluster": replace(NODES, **{label: now})}
    says = f"resume: expected cluster.{name}, as in the run so far, got {now}: {OF_ROWS}"
    check_refused(lambda: resumed(tmp_path / "run", {"cluster": NODES}, changed, saved=True), ValueError, says)


@pytest.mark.usefixtures("undrawn")
def test_a_learner_elsewhere_stops_saving_after_a_resume(tmp_path: Path) -> None:
    runs = Runs(total_steps=100)
    runs.train(tmp_path, CARTPOLE)
    hold = Hold(tmp_path / "run" / "checkpoints" / "agent_0.pt", "run", 1)
    hold.take()
    runs.train(tmp_path, CARTPOLE, resume=True, total_steps=200)
    with pytest.raises(Fenced):
        hold.check()


# ---- whole runs ----


def ended(nodes: RayNodes) -> None:
    """Waits until what Ray ends after a driver's death has ended, and removes what this left beside the driver."""
    until(lambda: not any(called(nodes, title) for title in ("ray::IngestActor", "ray::PorterActor")))
    sweep()


@LONG
def test_a_killed_drivers_run_goes_on_from_its_checkpoints(drive: Drive) -> None:
    """At once, while agents of the killed driver may still work: their rows are nowhere, and their segments go."""
    ray_nodes, run_dir, before = drive.nodes, drive.run_dir, killed_run(drive, "saved")
    taken = max(steps_of(run_dir), before["step"])
    code, said = finished(marlcore("train", "--resume", run_dir, "--total-steps", taken + 3000, cwd=drive.folder))
    assert code == 0, said
    after = checkpoint(run_dir)
    assert taken + 3000 <= steps_of(run_dir) < taken + 3050
    assert after["version"] > before["version"] and after["updates"] > before["updates"]
    made = after["updates"] - before["updates"]  # also those, at most 32, by which the killed learner was late
    assert made == pytest.approx((steps_of(run_dir) - taken) * 0.1 + 16, abs=20)
    with saved_replay(run_dir) as replay:
        batch = replay.sampler(4096, min_size=1, seed=0).sample()
        tickets, lanes = np.divmod(batch.index, replay.lanes)
        order = np.lexsort((tickets, lanes))
        later = np.diff(lanes[order]) == 0
        assert len({*lanes.tolist()}) == replay.lanes
        assert (np.diff(batch.policy_version[order].astype(np.int64))[later] >= 0).all(), (
            "versions never fall in a lane"
        )
        assert {*batch.policy_version.tolist()} & {*range(1, before["version"] + 1)}, "rows from before came back"
        assert batch.policy_version.max() > before["version"]
    leaves_nothing(ray_nodes)
    ended(ray_nodes)


@LONG
def test_a_run_goes_on_on_fewer_machines_and_then_on_one(drive: Drive) -> None:
    """The machine that it leaves out is swept too. Each time it is another cluster to it, since its driver is new."""
    ray_nodes, run_dir, before = drive.nodes, drive.run_dir, killed_run(drive)
    until(lambda: not left_on(ray_nodes)["processes"])
    assert left_on(ray_nodes)["segments"], "the control: what a killed driver's agents leave"
    taken = max(steps_of(run_dir), before["step"])
    result = result_of(drive(RESUMES, args=[taken + 3000, 0, 1]))
    assert taken + 3000 <= result["steps"] < taken + 3050 and not any(result["restarts"].values())
    leaves_nothing(ray_nodes)
    ended(ray_nodes)
    between = checkpoint(run_dir)
    assert between["version"] > before["version"]
    alone = "--cluster.address", "None", "--cluster.nodes", "1", "--cluster.actors-per-node", "1"
    rest = "--cluster.lease-seconds", "2", "--actor.processes", "2", "--total-steps", taken + 5000
    code, said = finished(marlcore("train", "--resume", run_dir, *alone, *rest, cwd=drive.folder))
    assert code == 0, said
    assert taken + 5000 <= steps_of(run_dir) < taken + 5050 and checkpoint(run_dir)["version"] > between["version"]
