"""Supervised worker processes; this room knows nothing of reinforcement learning.

A fork server starts workers in milliseconds. The supervisor restarts workers that die or hang. Counters, notes and
metrics travel through shared memory. The kernel kills every worker when its parent dies. This room never imports the
workers' code: callers pass callables, and the names of modules to preload.
"""

from .control import BEATS as BEATS
from .control import DONE as DONE
from .control import EPISODES as EPISODES
from .control import PID as PID
from .control import READY as READY
from .control import RESTARTS as RESTARTS
from .control import STEPS as STEPS
from .control import UPDATES as UPDATES
from .control import Control as Control
from .forkserver import ForkServer as ForkServer
from .group import PRELOAD as PRELOAD
from .group import WorkerContext as WorkerContext
from .group import Workers as Workers
from .pdeathsig import end_with_parent as end_with_parent
from .pool import Pool as Pool
from .signals import Interrupts as Interrupts
from .supervisor import RestartPolicy as RestartPolicy
from .supervisor import Supervisor as Supervisor
from .telemetry import Metric as Metric
from .telemetry import Reporter as Reporter
from .telemetry import Telemetry as Telemetry
from .telemetry import encoded_name as encoded_name
from .telemetry import fitting_name as fitting_name
from .worker import Failure as Failure
from .worker import WorkerProcess as WorkerProcess
from .worker import check_picklable as check_picklable
from .worker import leave_if_forked as leave_if_forked
