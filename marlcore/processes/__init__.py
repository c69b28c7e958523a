"""Supervised worker processes; this room knows nothing of reinforcement learning.

A fork server starts workers in milliseconds. The supervisor restarts workers that die or hang. Counters, notes and
metrics travel through shared memory. The kernel kills every worker when its parent dies. This room never imports the
workers' code: callers pass callables, and the names of modules to preload.
"""

from .control import BEATS, DONE, EPISODES, PID, READY, RESTARTS, STEPS, UPDATES, Control
from .forkserver import ForkServer
from .group import PRELOAD, WorkerContext, Workers
from .pdeathsig import end_with_parent
from .pool import Pool
from .signals import Interrupts
from .supervisor import RestartPolicy, Supervisor
from .telemetry import Metric, Reporter, Telemetry, encoded_name, fitting_name
from .worker import Failure, WorkerProcess, check_picklable, leave_if_forked
