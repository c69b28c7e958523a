"""A cluster of Ray on hosts with a network between them; host 0 has its head, and the drivers."""

import subprocess
import sys
from collections.abc import Sequence

import setup_worker
from network import Network
from ray_nodes import VARIABLES, end
from whole_clusters import title_of

from marlcore.closing import ClosedAfterError

PORT = 6379
OBJECT_STORE = 256 << 20  # bytes, of each host
ENVIRONMENT = {
    **VARIABLES,
    "RAY_AUTH_MODE": "disabled",  # else a token in the home directory would turn it on
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without it Ray warns of a later version
}
SETS = f"from ray._private import ray_constants; ray_constants.SETUP_WORKER_FILENAME = {setup_worker.__file__!r}; "
RAY = [sys.executable, "-c", SETS + "from ray.scripts.scripts import main; main()"]


class RayHosts(Network):
    """A context manager. Host i has the resource `host<i>`.

    Attributes:
        address: for `ray.init`.
    """

    def __init__(self, hosts: int, clocks: Sequence[int] = ()) -> None:
        super().__init__(hosts, clocks)
        self.address = f"{self.address_of(0)}:{PORT}"
        with ClosedAfterError(self):
            for host in range(hosts):
                self.start(host)

    def within(self, host: int) -> list[str]:
        variables = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
        return [*super().within(host), "env", f"RAY_TMPDIR={self.folder}", *variables]

    def start(self, host: int) -> None:
        """Starts Ray on a host, again too: what is left of an earlier start ends first."""
        end(self.processes(host))
        if host == 0:
            place = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self.folder}"]
        else:
            place = [f"--address={self.address}"]
        options = [
            f"--node-ip-address={self.address_of(host)}", "--num-cpus=2", "--num-gpus=0",
            f"--object-store-memory={OBJECT_STORE}", f'--resources={{"host{host}": 1000}}', "--disable-usage-stats",
        ]  # fmt: skip
        done = subprocess.run([*self.within(host), *RAY, "start", *place, *options], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def has_ray(self, host: int) -> bool:
        """Returns whether Ray works on a host; it ends by itself where it was cut off for long."""
        return any("raylet/raylet" in title_of(pid) for pid in self.processes(host))
