"""Policies whose learners are on other machines: they learn as on one, survive the loss of these, and leave nothing."""

import json
import os
import re
import signal

import pytest
from processes import until
from ray_nodes import RayNodes
from whole_clusters import Drive, leaves_nothing, left_on, result_of
from whole_runs import LONG, checkpoint, values_of

pytestmark = LONG

SETTINGS = """
POLICIES = {"agent_0": "apart", "agent_1": "here", "agent_2": "here"}

def of_hunt(learners={"apart": {"CPU": 1}}, total_steps=3000, nodes=1, cluster={}, **changes):
    learner = mc.LearnerConfig(device="cpu", warmup=100, batch_size=16, checkpoint_interval=5, publish_interval=2)
    usual = {"policies": POLICIES, "learner": learner, **changes}
    return configured(sys.argv[2], total_steps, nodes, cluster={"learners": learners, **cluster}, **usual)

def apart(run):  # the agent of the learner that is not here, once it has been checked
    cluster = run._session._machines._cluster
    return next((agent for agent in cluster.agents if agent.role is not cluster.acting and agent.found), None)

def place(agent):  # the number of its node
    return next(int(name[4:]) for name in agent.machine.resources if name[:4] == "node" and name[4:].isdigit())
"""
HUNT = """
from dataclasses import replace

def hunt(resume=None, **changes):
    config = of_hunt(learner=mc.LearnerConfig(device="cpu"), **changes)
    config = replace(config, learners={"apart": mc.LearnerConfig(device="cpu", warmup=100, batch_size=16)})
    algorithms = {"apart": "dqn", "here": "ppo"}
    told(mc.train("treasure_hunt", algorithms, config, resume=resume, progress=False))
"""
BOTH = """
hunt(sys.argv[2], total_steps=12_000, learners={"apart": "CPU=1", "here": {"CPU": 0.5}}, nodes=2,
     actor=mc.ActorConfig(processes=0))
"""


def test_learners_get_machines_with_room(drive: Drive) -> None:
    """First one of two, then both when the run goes on: were both on one of the machines of two cores, no room would
    be left there for its actor.
    """
    result = drive.result(SETTINGS, HUNT, "hunt(total_steps=6000)")
    assert 6000 <= result["steps"] < 6050 and not result["stopped"] and not any(result["restarts"].values())
    assert result["updates"]["apart"] == pytest.approx((2000 - 100) * 0.1, rel=0.05)
    assert not any(values_of(drive.run_dir, "gaps/node-0"))
    before = saved(drive)
    result = drive.result(SETTINGS, HUNT, BOTH)
    assert result["steps"] >= 12_000 and not any(result["restarts"].values())
    assert all(after > before > 0 for after, before in zip(saved(drive), before, strict=True))


def saved(drive: Drive) -> list[int]:
    """Both learners' updates, and the versions of their weights."""
    states = [checkpoint(drive.run_dir, policy) for policy in ("apart", "here")]
    return [state[count] for state in states for count in ("updates", "version")]


LOST = """
from marlcore.record import checkpoint_path, load_checkpoint
from pathlib import Path
import contextlib
from hunt import Calm
from marlcore.processes import READY, UPDATES

algorithm, losses = sys.argv[3], int(sys.argv[4])
cluster = {"lease_seconds": 3.0}

class CalmDQN(mc.DQN):  # leaves the machine's cores to the processes that start
    def make_trainer(self, model):
        trainer = super().make_trainer(model)
        update = trainer.update
        trainer.update = lambda batch: (time.sleep(0.03), update(batch))[1]
        return trainer

if algorithm == "ppo":
    env, total = CARTPOLE, 50_000
    learner = mc.LearnerConfig(device="cpu", checkpoint_interval=5)
    config = configured(sys.argv[2], total, 1, cluster={"learners": {"agent_0": "CPU=1"}, **cluster}, learner=learner,
                        actor=mc.ActorConfig(processes=0), evaluation=mc.EvaluationConfig(interval=30_000, episodes=2))
else:
    total = 10**9
    env, config, algorithm = Calm, of_hunt(total_steps=total, cluster=cluster, updates_per_step=None), CalmDQN()
policy = "agent_0" if algorithm == "ppo" else "apart"
name = f"learner-{policy}"
path = checkpoint_path(Path(sys.argv[2]), policy)
run = mc.start(env, algorithm, config)
living = lambda: run.status().running
saved = lambda: load_checkpoint(path).get("updates", 0)
lost = lambda: words(run, name)[1]
# Not of `status`, which may be a second old and then an earlier learner's.
learned = lambda: {each: tally.load(UPDATES) for each, tally in run._session.control.tallies.items()}
mirror, versions = run._session._machines._uplinks[policy].mirror, []

def watch():
    with contextlib.suppress(mc.ClosedError):  # the run ends
        while True:
            versions.append(mirror.version)
            time.sleep(0.05)

threading.Thread(target=watch, daemon=True).start()
until(lambda: saved() > 20, living)
for _ in range(losses):
    agent, before, since = until(lambda: apart(run), living), saved(), lost()
    print(json.dumps([agent.found["pid"], place(agent)]), flush=True)
    until(lambda: lost() > since and run._session.control.workers[name].load(READY), living)
    begun = learned()
    assert begun[policy] >= before > 20, (begun, before)
    until(lambda: all(count > begun[each] + 50 for each, count in learned().items()) or not living())
if total == 10**9:
    run.stop()
result = run.wait()
print(json.dumps({"steps": result.steps, "restarts": result.restarts[name], "begun": begun[policy],
                  "last": result.updates[policy], "falls": versions != sorted(versions),
                  "return": result.returns.get("agent_0")}))
"""


def lose(what: str, nodes: RayNodes, pid: int, node: int) -> None:
    """Stops or kills the learner's agent, or kills its whole machine, which another one replaces."""
    if what == "machine":
        os.kill(nodes.raylets[node], signal.SIGKILL)
    os.kill(pid, signal.SIGSTOP if what == "stopped" else signal.SIGKILL)  # Ray would end it some 15 s later
    if what == "machine":
        nodes.restart(node)


@pytest.mark.parametrize("algorithm, losses", [("dqn", ["agent", "stopped"]), ("ppo", ["machine"])])
def test_another_machine_continues_from_the_last_checkpoint(algorithm: str, losses: list[str], drive: Drive) -> None:
    """Each time, if learners are lost one after another.

    PPO, which holds its actors back, takes all steps of its run, without an actor on the driver's machine; it learns,
    and is evaluated.
    """
    nodes, driver = drive.nodes, drive(SETTINGS, LOST, args=[algorithm, len(losses)])

    def told() -> str:
        """The next line if it names an agent; Ray prints others, of lost processes."""
        line = driver.line()
        return line if re.fullmatch(r"\[\d+, \d+\]", line) else ""

    for what in losses:
        lose(what, nodes, *json.loads(until(told, lambda: driver.running)))
    result = result_of(driver)
    assert len(losses) <= result["restarts"] <= 2 * len(losses)  # a learner that stands still for 3 s is lost too
    assert not result["falls"]
    assert result["last"] > result["begun"]
    if algorithm == "ppo":
        assert result["steps"] >= 50_000 and any(values_of(drive.run_dir, "eval_return"))
        assert result["return"] > 120  # of a random policy: 22
    if "machine" in losses:
        until(lambda: not left_on(nodes)["processes"])
        nodes.settle()  # nothing else removes a lost machine's segments
    leaves_nothing(nodes)


REFUSED = """
from dataclasses import replace

def say(what):
    print("said", what)

def gpu():  # on the learner's machine
    learners = {"apart": mc.LearnerConfig(device="cuda:7")}
    mc.train("treasure_hunt", "dqn", replace(of_hunt(), learners=learners), progress=False)

def train(**changes):
    return lambda: mc.train("treasure_hunt", "dqn", of_hunt(**changes), progress=False)

say(refusal(train(learners={"apart": "GPU=1"})))
say(refusal(train(learners={"apart": "CPU=2,node1=1", "here": "CPU=1,node1=1"})))
say(refusal(train(learners={"absent": "CPU=1"})))
say(refusal(train(learners={"apart": "CPU"})))
say(refusal(train(learner=mc.LearnerConfig(processes=1))))
say(refusal(gpu))
say(os.path.exists(sys.argv[2]))
os.chdir(os.path.dirname(sys.argv[2]))
sys.argv[2] = "/proc/self/cwd/run"  # another place in each process
say(refusal(train(learners={"apart": "CPU=1"})))
say(os.path.exists(sys.argv[2]))
"""
SAYS = (
    "cluster.learners: apart: expected a machine with CPU 1, GPU 1, got none (",
    "cluster.learners: here: expected a machine with CPU 1, node1 1, got none (",
    "cluster.learners: expected the policies ['apart', 'here'], got 'absent'",
    "learners: expected resources such as GPU=1,CPU=4, got {'apart': 'CPU'}",
    "learner.processes: expected None when cluster.learners is set",
    "'cuda:7' (there are 0 CUDA devices) (cluster.learners: apart, ", "False",
    "run_dir: expected a directory that learners' machines reach, got '/proc/self/cwd/run'", "False",
)  # fmt: skip


def test_what_no_machine_can_do_is_refused_in_one_line(drive: Drive) -> None:
    said = drive(SETTINGS, REFUSED).finish()
    lines = [line for line in said.splitlines() if line.startswith("said")]  # Ray prints others, of lost processes
    assert len(lines) == len(SAYS) and all(says in line for says, line in zip(SAYS, lines, strict=True)), said
    leaves_nothing(drive.nodes)
