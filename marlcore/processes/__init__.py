"""Worker processes. This package knows nothing of reinforcement learning.

A fork server starts the processes in milliseconds, their owner watches and ends them, and the kernel kills them when
their parent dies. Counters, notes and metrics travel through shared memory. The workers' code comes from callers, as
callables and as names of modules to preload.
"""

from .children import EARLY, PRELOAD, Child, Children, failure_of
from .control import BEATS, BEGUN, DONE, EPISODES, PID, READY, RESTARTS, SHARE, SKIPS, STEPS, UPDATES, Control
from .fork_server import START_S, ForkServer, start_child
from .logs import opener, setup_logging, setup_worker
from .pickling import check_picklable, dumps
from .pool import Pool
from .serve import end_with_parent
from .signals import Interrupts, handlers_kept, stopped
from .supervisor import RestartPolicy, Supervisor
from .telemetry import Metric, Reporter, Telemetry, encoded_name, fitting_name
from .worker_base import WorkerBase
from .workers import WorkerContext, Workers
