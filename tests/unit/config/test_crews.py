"""The crews of a run: each has lanes of its own, and the run's steps are divided among them."""

import json
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import Refused, refusals

import marlcore as mc
from marlcore.cli import CommandLine
from marlcore.config import crews, read_settings
from marlcore.declared import hints_of
from marlcore.processes import SHARE, STEPS, Control
from marlcore.run import deal_steps, dealt

CLUSTER = mc.ClusterConfig("auto", nodes=2, actors_per_node=3)
CONFIG = mc.Config(total_steps=700, actor=mc.ActorConfig(processes=1, envs=2), cluster=CLUSTER)


@pytest.mark.parametrize("parts, agents", [(1, 1), (2, 3)])
def test_the_blocks_of_the_crews_are_the_lanes_of_each_part_once(parts: int, agents: int) -> None:
    """The lanes of a part are adjacent, as its sampler needs."""
    shape, of_part = (agents, CONFIG.actor.envs), agents * CONFIG.lanes
    blocks = [crew.lanes(parts, *shape, of_part) + crew.block_begins(*shape) for crew in crews(CONFIG)]
    for part in range(parts):
        lanes = [*chain(*(block[part].ravel().tolist() for block in blocks))]
        assert lanes == [*range(part * of_part, (part + 1) * of_part)]


def test_each_actor_of_a_cluster_has_a_number_of_its_own() -> None:
    names = [crew.names for crew in crews(CONFIG)]
    assert names == [["actor-0"], ["actor-1", "actor-2", "actor-3"], ["actor-4", "actor-5", "actor-6"]]


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 9)), min_size=1, max_size=9), st.integers(0, 4000))
def test_dealt_steps_add_up_and_follow_the_weights(each: Sequence[tuple[int, int]], total: int) -> None:
    steps, weights = [taken for taken, _ in each], [weight for _, weight in each]
    shares = dealt(total, steps, weights)
    parts = [share - taken for share, taken in zip(shares, steps, strict=True)]
    left = max(0, total - sum(steps))
    assert sum(parts) == left
    for part, weight in zip(parts, weights, strict=True):
        assert left * weight // sum(weights) <= part <= left * weight // sum(weights) + 1


def test_the_share_of_a_lost_node_goes_to_the_others() -> None:
    with Control.create(["actor-0", "node-0", "node-1"]) as control:
        shares = lambda: [control.notes[name].load(SHARE) for name in control.workers]  # noqa: E731
        deal_steps(control, CONFIG, ["node-0", "node-1"])
        assert shares() == [100, 300, 300]
        control.workers["actor-0"].store(STEPS, 20)
        control.workers["node-0"].store(STEPS, 80)
        deal_steps(control, CONFIG, ["node-1"])  # node-0 is lost after 80 steps: 600 are left
        assert shares() == [20 + 150, 0, 450]
        control.workers["node-1"].store(STEPS, 250)
        deal_steps(control, CONFIG, ["node-0", "node-1"])  # one has joined: 350 are left
        assert shares() == [20 + 50, 80 + 150, 250 + 150]


def learners(text: str) -> mc.ClusterConfig:
    return mc.ClusterConfig("auto", learners={"red": text})


AMOUNTS, BY_NAME = "learners: expected resources such as GPU=1,CPU=4", "learners: expected numbers above 0 by name, "
REFUSED: dict[str, Refused] = {
    "no address": (lambda: mc.ClusterConfig(nodes=2), "address: expected auto or host:port for nodes"),
    "Ray's client": (lambda: mc.ClusterConfig("ray://head:10001"), "address: expected auto or host:port"),
    "more at the start": (lambda: mc.ClusterConfig("auto", nodes_at_start=2), "nodes_at_start: expected at most nodes"),
    "no port": (lambda: mc.ClusterConfig("head:65536"), "address: expected auto or host:port"),
    "too many": (lambda: mc.ClusterConfig("auto", resources={"CPU": 2**53}), "resources: expected numbers above 0"),
    "half a core more": (lambda: mc.ClusterConfig("auto", resources={"CPU": 1.5}), "resources: expected numbers ab"),
    "a text with more": (lambda: learners("GPU=1=7"), AMOUNTS),
    "an amount twice": (lambda: learners("GPU=1,GPU=2"), AMOUNTS),
    "no name": (lambda: learners("=1"), f"{BY_NAME}whole if above 1"),
    "no end": (lambda: learners("GPU=inf"), f"{BY_NAME}whole if above 1"),
    "a long flush": (lambda: mc.ClusterConfig("auto", flush_seconds=61), "flush_seconds: expected a number"),
    "in turn": (lambda: mc.Config(mode="serial", cluster=CLUSTER), "mode: expected async when cluster.address is set"),
}
test_a_cluster_that_cannot_be_is_refused = refusals(REFUSED)


def test_what_a_learner_needs_is_text_or_amounts(tmp_path: Path) -> None:
    """The command line, a settings file, Python and a run's config.json give the same resources."""
    needs = {"red": {"GPU": 1.0, "CPU": 4.0}, "blue": {"highmem": 0.5}}
    text = ["red", "GPU=1,CPU=4", "blue", "highmem=0.5"]
    read = CommandLine("train", ["--cluster.learners", *text]).read(hints_of(mc.Config))["cluster.learners"]
    plain = "cluster: {address: auto, learners: {red: {GPU: 1, CPU: 4}, blue: highmem=0.5}}"
    (tmp_path / "run.yaml").write_text(plain)
    of_file = read_settings(tmp_path / "run.yaml").config.cluster
    for cluster in (mc.ClusterConfig("auto", learners=read), of_file, mc.ClusterConfig("auto", learners=needs)):
        assert cluster.learners == needs
        config = mc.Config(cluster=cluster)
        assert mc.Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert mc.ClusterConfig("head:6379", nodes=3, resources={"highmem": 1}).reserved == {"CPU": 1.0, "highmem": 1.0}
    assert mc.ClusterConfig("auto", resources={"rows": 2**53 - 1}).resources == {"rows": 2.0**53 - 1}
    assert cluster.reserved_for("red") == {"CPU": 4.0, "GPU": 1.0}
    assert cluster.reserved_for("blue") == {"CPU": 1.0, "highmem": 0.5}


@pytest.mark.long
def test_a_run_on_one_machine_imports_nothing_of_clusters(program: Callable[..., Any], tmp_path: Path) -> None:
    code = """
    import sys
    import marlcore as mc
    learner = mc.LearnerConfig(batch_size=8, warmup=20, device="cpu")
    config = mc.Config(60, mode="serial", run_dir=sys.argv[1], learner=learner)
    mc.train("gymnasium:CartPole-v1", "dqn", config, progress=False)
    assert not {"ray", "marlcore.cluster.relay", "marlcore.cluster.nodes"} & sys.modules.keys()
    """
    program(code, args=[tmp_path / "run"]).finish()
