"""An agent that was stopped until its seat was given to another, and continues: its rows are refused."""

import pytest
from whole_clusters import Drive

pytestmark = pytest.mark.long

MARKED = """
import numpy as np
import ray
from marlcore.cluster.nodes import agent, controller, ray_cluster, uplink
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
made = uplink.make_ingests

def make_unfenced(*args):
    from marlcore.cluster.ingest import Ingest
    Ingest._check_epoch = lambda *_: None
    return made(*args)

uplink.make_ingests = make_unfenced  # Ray has it run in the ingest's process
"""
ZOMBIE = """
served, zombies, discard = {}, [], ray_cluster.RayCluster.discard

def lose(self, agent):  # and leave it alone, as on a machine that cannot be reached
    self.agents.remove(agent)
    zombies.append(agent)

controller.serve = lambda *args: served.update(uplink.serve(*args)) or served
ray_cluster.RayCluster.discard = lose
nodes, running = ("node-0", "node-1"), lambda: run.status().running
learner, actor = mc.LearnerConfig(device="cpu", warmup=90_000), mc.ActorConfig(processes=0, envs=1)
run = mc.start(marked, "dqn", configured(sys.argv[2], 10**9, updates_per_step=None, learner=learner, actor=actor,
                                         cluster={"lease_seconds": 3.0}))
until(lambda: all(words(run, name)[0] > 50 for name in nodes), running)
cluster = run._session._cluster
ingest = ray.get_actor(served["agent_0"].ingest, cluster.namespace)
pid, beginning = (cluster.agents[0].found[name] for name in ("pid", "began"))
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
cluster.agents += zombies
for each in zombies:
    discard(cluster, each)
run.stop()
run.wait()
print(json.dumps(counts))
"""


def check(drive: Drive, *fencing: str) -> None:
    counts = drive.result(MARKED, *fencing, ZOMBIE)
    assert counts["of it"] > 0 and counts["twice"] == 0
    assert counts["late"] == 0 and counts["refused"] > 0, counts


def test_a_zombie_has_its_rows_refused(drive: Drive) -> None:
    check(drive)


def test_without_fencing_a_zombies_rows_are_written(drive: Drive) -> None:
    """The control: the same check must see them."""
    with pytest.raises(AssertionError, match=r"'late': [1-9]"):
        check(drive, FENCING_OFF)
