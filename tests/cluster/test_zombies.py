"""An agent that was stopped until its seat was given to another, and continues: its rows are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import RayNodes
from whole_clusters import BEGINNING, left_on

pytestmark = pytest.mark.long

MARKED = """
import numpy as np
import ray
from marlcore.training.nodes import agent, controller, fleet, home
from processes import generations
from relayed import raw

def marked():
    # An observation names the process and its moment, so that a row tells its origin
    import gymnasium, numpy, os, time

    class Marked(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 2**24, (2,), numpy.float32)
        action_space = gymnasium.spaces.Discrete(2)
        moment = 0

        def look(self):
            self.moment += 1
            return numpy.array([os.getpid(), self.moment], numpy.float32)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.look(), {}

        def step(self, action):
            time.sleep(0.01)
            return self.look(), 0.0, False, self.moment % 50 == 0, {}

    return Marked()

def rows(run):
    # int [n, 2]: of all lanes of the learner's replay, a process and its moment
    with mc.ReplayBuffer.attach(run._session.blueprint.policies[0].transitions) as replay:
        (place,) = replay._mapped.layout.of_role("obs")
        return np.concatenate([place.views(raw(replay, lane)) for lane in range(replay.lanes)]).astype(int)
"""
FENCING_OFF = """
made = home.make_ingests

def make_unfenced(*args):
    from marlcore.cluster.ingest import Ingest
    Ingest._check_epoch = lambda *_: None
    return made(*args)

home.make_ingests = make_unfenced  # Ray has it run in the ingest's process
"""
ZOMBIE = """
homes, zombies, dismiss = [], [], fleet.Fleet.dismiss

class Kept(home.Home):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        homes.append(self)

def lose(self, agent):  # and leave it alone, as on a machine that cannot be reached
    self.hired.remove(agent)
    zombies.append(agent)

controller.Home, fleet.Fleet.dismiss = Kept, lose
nodes, running = ("node-0", "node-1"), lambda: run.status().running
learner, actor = mc.LearnerConfig(device="cpu", warmup=90_000), mc.ActorConfig(processes=0, envs=1)
run = mc.start(marked, "dqn", configured(sys.argv[2], 10**9, updates_per_step=None, learner=learner, actor=actor,
                                         cluster={"lease_seconds": 3.0}))
until(lambda: all(words(run, name)[0] > 50 for name in nodes), running)
(kept,), hired = homes, run._session._fleet
ingest = ray.get_actor(kept.addresses["agent_0"].ingest, hired.namespace)
pid, beginning = (hired.hired[0].found[name] for name in ("pid", "began"))
actors = [each for generation in generations(pid) for each in generation]
before = [words(run, name)[0] for name in nodes]
os.kill(pid, signal.SIGSTOP)
until(lambda: zombies, running)
until(lambda: all(words(run, name)[0] > then + 50 for name, then in zip(nodes, before)), running)
known = rows(run)
os.kill(pid, signal.SIGCONT)  # its actors have worked on

def late():
    found = rows(run)
    return len(found[np.isin(found[:, 0], actors)]) - len(known[np.isin(known[:, 0], actors)])

refused = lambda: ray.get(ingest.stats.remote())["agent_0"].refused
until(lambda: late() or refused() and agent.began(pid) != beginning, running)
found = rows(run)
counts = {"of it": int(np.isin(known[:, 0], actors).sum()), "late": late(), "refused": refused(),
          "twice": len(found) - len(np.unique(found, axis=0))}
hired.hired += zombies
for each in zombies:
    dismiss(hired, each)
run.stop()
run.wait()
print(json.dumps(counts))
"""


def check(nodes: RayNodes, program: Callable[..., Any], run_dir: Path, *fencing: str) -> None:
    driver = program(BEGINNING, MARKED, *fencing, ZOMBIE, args=[nodes.address, run_dir])
    counts = json.loads(driver.finish().splitlines()[-1])  # after what Ray may print of lost processes
    assert left_on(nodes)["processes"] == []
    assert counts["of it"] > 0 and counts["twice"] == 0
    assert counts["late"] == 0 and counts["refused"] > 0, counts


def test_a_zombie_has_its_rows_refused(ray_nodes: RayNodes, program: Callable[..., Any], tmp_path: Path) -> None:
    check(ray_nodes, program, tmp_path / "run")
    assert left_on(ray_nodes)["segments"] == []


def test_without_fencing_a_zombie_has_them_written(
    ray_nodes: RayNodes, program: Callable[..., Any], tmp_path: Path
) -> None:
    """The control: the same check must see them."""
    with pytest.raises(AssertionError, match=r"'late': [1-9]"):
        check(ray_nodes, program, tmp_path / "run", FENCING_OFF)
    assert left_on(ray_nodes)["segments"] == []
