"""An agent that was stopped until its seat was given to another, and continues: its rows are refused."""

import pytest
from whole_clusters import MARKED, Drive

pytestmark = pytest.mark.long

IMPORTS = """
import ray
from marlcore.cluster.nodes import agent, controller, ray_cluster, uplink
from processes import generations
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
cluster = run._session._machines._cluster
ingest = ray.get_actor(served["agent_0"].ingest, cluster.namespace)
pid, beginning = (cluster.agents[0].found[name] for name in ("pid", "began"))
actors = [each for generation in generations(pid) for each in generation]
before = [words(run, name)[0] for name in nodes]
os.kill(pid, signal.SIGSTOP)
until(lambda: zombies, running)
until(lambda: all(words(run, name)[0] > then + 50 for name, then in zip(nodes, before)), running)
known = rows(run)
os.kill(pid, signal.SIGCONT)  # its actors have worked on

def of_it(found):
    return int(np.isin(found[:, 4] * 2**24, actors).sum())

def late():
    return of_it(rows(run)) - of_it(known)

refused = lambda: ray.get(ingest.stats.remote())["agent_0"].refused
until(lambda: late() or refused() and agent.began(pid) != beginning, running)
counts = {"of it": of_it(known), "late": late(), "refused": refused(), "twice": twice(rows(run))}
cluster.agents += zombies
for each in zombies:
    discard(cluster, each)
run.stop()
run.wait()
print(json.dumps(counts))
"""


def check(drive: Drive, *fencing: str) -> None:
    counts = drive.result(MARKED, IMPORTS, *fencing, ZOMBIE)
    assert counts["of it"] > 0 and counts["twice"] == 0
    assert counts["late"] == 0 and counts["refused"] > 0, counts


def test_a_zombie_has_its_rows_refused(drive: Drive) -> None:
    check(drive)


def test_without_fencing_a_zombies_rows_are_written(drive: Drive) -> None:
    """The control: the same check must see them."""
    with pytest.raises(AssertionError, match=r"'late': [1-9]"):
        check(drive, FENCING_OFF)
