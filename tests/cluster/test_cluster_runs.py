"""Whole runs on a cluster: they learn as on one machine, survive lost processes and nodes, and leave nothing behind."""

import json
import os
import signal
from dataclasses import replace

import pytest
from metric_names import unexplained
from processes import await_gone, family, until
from whole_clusters import Drive, leaves_nothing
from whole_runs import LONG, values_of

RUN = "told(mc.train(CARTPOLE, 'dqn', configured(sys.argv[2], int(sys.argv[3])), progress=False))"


@LONG
def test_the_actors_of_all_nodes_work_for_one_learner(drive: Drive) -> None:
    run_dir, steps = drive.run_dir, 20_000
    result = replace(drive, options={}).result(RUN, args=[steps])
    assert steps <= result["steps"] < steps + 50 and not result["stopped"] and result["returns"]["agent_0"] > 60
    assert result["updates"]["agent_0"] == pytest.approx((steps - 500) * 0.1, rel=0.02)
    assert {name: count for name, count in result["restarts"].items() if count} == {}
    taken = json.loads((run_dir / "checkpoints" / "run.json").read_text())["steps"]
    for node in ("node-0", "node-1"):
        assert taken[node] == pytest.approx(steps / 3, rel=0.02)
        assert not any(values_of(run_dir, f"gaps/{node}"))
    assert unexplained(run_dir) == []


JOINS = """
mc.train(slow, "dqn", configured(sys.argv[2], 10**9, cluster={"nodes_at_start": 1}), progress=False)
"""


@LONG
def test_a_node_that_joins_later_is_used_and_a_signal_leaves_nothing_on_any_node(drive: Drive) -> None:
    """SIGTERM, whose handler Ray replaces."""
    drive.nodes.remove(2)
    driver, metrics = drive(JOINS), drive.run_dir / "metrics.csv"

    def has_header() -> bool:  # not at once
        return metrics.exists() and metrics.stat().st_size > 0

    def await_rows(node: str) -> None:
        name = f"rows_per_s/{node}"
        until(lambda: has_header() and any(values_of(drive.run_dir, name)), lambda: driver.running)

    await_rows("node-0")
    drive.nodes.restart(2)
    await_rows("node-1")
    led_to = family(driver.pid)
    os.kill(driver.pid, signal.SIGTERM)
    until(lambda: not driver.running)
    await_gone(led_to)
    leaves_nothing(drive.nodes)
