"""The examples of docs/deployment.md, as far as they can be tried without a cloud, Kubernetes and SLURM."""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes import until
from ray_nodes import MARK, VARIABLES, end, marked

PAGE = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
CLUSTER, KUBERAY = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
(SLURM,) = (block for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if "#SBATCH" in block)

SCHEMA = """
import json, sys
from ray.autoscaler._private.commands import warn_about_bad_start_command
from ray.autoscaler._private.util import prepare_config, validate_config
config = prepare_config(json.load(sys.stdin))
validate_config(config)
warn_about_bad_start_command(config["head_start_ray_commands"])
print(config["max_workers"])
"""


@pytest.mark.long
def test_ray_takes_the_cluster_by_yaml() -> None:
    """By its own schema; and it has no warning, such as that the head would start no workers."""
    done = subprocess.run([sys.executable, "-c", SCHEMA], input=json.dumps(CLUSTER), capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("2\n", "")


@pytest.mark.parametrize("group", [KUBERAY["spec"]["headGroupSpec"], *KUBERAY["spec"]["workerGroupSpecs"]])
def test_a_pod_has_shared_memory_that_its_container_may_use(group: dict[str, Any]) -> None:
    pod = group["template"]["spec"]
    sizes = {volume["name"]: volume["emptyDir"] for volume in pod["volumes"]}
    (container,) = pod["containers"]
    mounts = {mount["mountPath"]: sizes[mount["name"]] for mount in container["volumeMounts"]}
    assert mounts["/dev/shm"]["medium"] == "Memory"
    limits = mounts["/dev/shm"]["sizeLimit"], container["resources"]["limits"]["memory"]
    shared, memory = (int(limit.removesuffix("Gi")) for limit in limits)
    assert 0 < shared < memory  # which counts the shared memory too


SRUN = """#!/bin/bash
# A task on each chosen machine, for which a directory of segments stands
while [[ $1 == -* ]]; do
    case $1 in -w) head=$2; shift 2 ;; --ntasks=*) tasks=${1#*=}; shift ;; *) shift ;; esac
done
for ((i = 0; i < tasks; i++)); do
    [[ $head ]] || export MARLCORE_SHM_DIR=$FOLDER/$i
    mkdir -p "${MARLCORE_SHM_DIR:-$FOLDER}"
    "$@" & started+=($!)
done
for pid in "${started[@]}"; do wait "$pid" || failed=1; done
exit "${failed:-0}"
"""
SCONTROL = '#!/bin/bash\n[[ "$*" == "show hostnames nodes[0-1]" ]] && printf "localhost\\nother\\n"\n'
SETTINGS = """
env: gymnasium:CartPole-v1
algo: dqn
total_steps: 2000
learner: {device: cpu}
actor: {processes: 0}
cluster: {address: auto, lease_seconds: 12.0}
"""


@pytest.fixture
def machine() -> Iterator[dict[str, str]]:
    """The environment of a job, with the doubles of SLURM's programs in its PATH; its processes end with the test."""
    with tempfile.TemporaryDirectory(prefix="sl", dir="/tmp") as name:  # the path of a socket in it must be short
        folder = Path(name)
        for program, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
            (folder / program).write_text(text)
            (folder / program).chmod(0o700)
        (folder / "run.yaml").write_text(SETTINGS)
        path = os.pathsep.join([name, str(Path(sys.executable).parent), os.environ["PATH"]])
        job = {"SLURM_JOB_NODELIST": "nodes[0-1]", "SCRATCH": name, "FOLDER": name, "RAY_AUTH_MODE": "disabled"}
        try:
            yield {**os.environ, **VARIABLES, **job, "PATH": path, "RAY_TMPDIR": name, MARK: name}
        finally:
            until(lambda: not end(marked(f"{MARK}={name}".encode())))


def small(script: str) -> str:
    """The script for two small machines, both of them this one."""
    with socket.create_server(("", 0)) as unused:
        port = unused.getsockname()[1]
    sizes = {"6379": port, "cpus=32": "cpus=2", "s=3": "s=1", "nodes 3": "nodes 1", "per-node 30": "per-node 1"}
    for size, smaller in sizes.items():
        assert size in script
        script = script.replace(size, str(smaller))
    return script


@pytest.mark.long
def test_the_slurm_script_trains_on_another_machine(machine: dict[str, str]) -> None:
    subprocess.run(["bash", "-n"], input=SLURM, text=True, check=True)
    folder = Path(machine["FOLDER"])
    with open(folder / "log", "w") as log:
        job = subprocess.run(["bash", "-c", small(SLURM)], cwd=folder, env=machine, stdout=log, stderr=log)
    assert job.returncode == 0, (folder / "log").read_text()
    steps = json.loads((folder / "run" / "checkpoints" / "run.json").read_text())["steps"]
    assert steps["node-0"] >= 2000
