"""A library of supervised worker processes, which knows nothing of reinforcement learning.

A fork server starts workers in milliseconds; the supervisor starts those again that died or hang; counters, notes and
metrics travel through shared memory. The kernel ends every worker with its parent. This room never imports what
workers do: it is handed callables, and the names of modules to load beforehand.
"""

from .control import BEATS, EPISODES, PID, READY, RESTARTS, STEPS, UPDATES, Control
from .forkserver import ForkServer, end_with_parent
from .group import WorkerContext, Workers
from .signals import Interrupts
from .supervisor import RestartPolicy, Supervisor
from .telemetry import NAME_BYTES, Metric, Telemetry
from .worker import WorkerProcess, check_picklable, reason_of

__all__ = [
    "BEATS",
    "EPISODES",
    "NAME_BYTES",
    "PID",
    "READY",
    "RESTARTS",
    "STEPS",
    "UPDATES",
    "Control",
    "ForkServer",
    "Interrupts",
    "Metric",
    "RestartPolicy",
    "Supervisor",
    "Telemetry",
    "WorkerContext",
    "WorkerProcess",
    "Workers",
    "check_picklable",
    "end_with_parent",
    "reason_of",
]
