"""`python -m marlcore.training.nodes PARENT RESULT`: the program of a node's agent, which supervises its actors.

It reads a path and a blueprint from standard input, works until the control block says stop, and writes the failure
that ended it, if one did, to the descriptor RESULT.
"""

import os
import pickle
import sys
import time
from contextlib import closing

from ...errors import WorkerFailed
from ...processes import Children, Control, end_with_parent
from ..async_run import POLL_S, resume_actors, supervisor_of
from ..workers import Blueprint

GRACE_S = 5.0  # for actors to end by themselves


def supervise(blueprint: Blueprint) -> WorkerFailed | None:
    """Runs the actors of a node until they are told to stop; returns what failed for good before."""
    names = blueprint.crew.names
    with closing(Control.attach(blueprint.control)) as control, closing(Children()) as children:
        supervisor = supervisor_of(blueprint, control, names, lambda name: None, children)
        try:
            for worker in supervisor.workers.values():
                worker.start()
            while not control.stopping:
                supervisor.watch(POLL_S)
                resume_actors(supervisor, blueprint, control)
        except WorkerFailed as error:
            return error
        supervisor.stand_down()
        deadline = time.monotonic() + GRACE_S
        while supervisor.running and time.monotonic() < deadline:
            supervisor.watch(POLL_S)
    return None


def main(parent: int, result: int) -> None:
    end_with_parent(parent)
    sys.path[:] = pickle.load(sys.stdin.buffer)
    failed = supervise(pickle.load(sys.stdin.buffer))
    if failed is not None:
        with os.fdopen(result, "wb") as file:
            pickle.dump(failed, file)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
