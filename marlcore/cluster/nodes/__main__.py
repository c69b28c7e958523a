"""`python -m marlcore.cluster.nodes PARENT RESULT`: the program that supervises an agent's actors, or its learner.

PARENT is the process id of the agent. The program reads `sys.path`, the modules that its workers need, the run's spec,
and this machine's `Memory` from standard input, and works until the control block says stop. If a worker fails for
good, the program writes the pickled failure to the file descriptor RESULT.
"""

import os
import pickle
import sys
import time
from contextlib import closing

from ...errors import WorkerFailed
from ...processes import Children, Control, end_with_parent
from ...run import POLL_S, Memory, RunSpec, grace_of, resume_actors, supervisor_of

GRACE_S = 5.0  # seconds in which actors must end by themselves


def supervise(children: Children, spec: RunSpec, memory: Memory) -> None:
    """Runs the workers of a node until the control block says stop. Raises WorkerFailed if a worker fails for good."""
    actors = memory.crew.names
    with closing(Control.attach(memory.control)) as control:
        supervisor = supervisor_of(spec, memory, control, actors or spec.learners, lambda name: None, children)
        for worker in supervisor.workers.values():
            worker.start()
        while not control.stopping:
            supervisor.watch(POLL_S)
            resume_actors(supervisor, actors, control)
        if not control.finishing:  # while the run finishes, a learner that dies is restarted
            supervisor.stand_down()
        deadline = time.monotonic() + (GRACE_S if actors else grace_of(spec))
        while supervisor.unfinished and time.monotonic() < deadline:
            supervisor.watch(POLL_S)


def main(parent: int, result: int) -> None:
    end_with_parent(parent)
    sys.path[:], preload = pickle.load(sys.stdin.buffer)
    try:
        with closing(Children(preload, fork=None)) as children:
            children.server.begin()  # by a fork of this program, which has not imported the user's modules yet
            supervise(children, *pickle.load(sys.stdin.buffer))
    except WorkerFailed as error:
        with os.fdopen(result, "wb") as file:
            pickle.dump(error, file)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
