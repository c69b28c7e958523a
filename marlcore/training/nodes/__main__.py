"""`python -m marlcore.training.nodes PARENT RESULT`: the program of an agent, which supervises its actors or learner.

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
from ..async_run import POLL_S, grace_of, resume_actors, supervisor_of
from ..config import learner_names
from ..workers import Blueprint

GRACE_S = 5.0  # for actors to end by themselves


def supervise(blueprint: Blueprint) -> WorkerFailed | None:
    """Runs the workers of a node until they are told to stop; returns what failed for good."""
    config, policies = blueprint.config, [policy.name for policy in blueprint.policies]
    names = blueprint.crew.names or [*learner_names(config, policies)]
    grace = GRACE_S if blueprint.crew.names else grace_of(blueprint)
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
        if not control.finishing:  # else a learner that dies is restarted
            supervisor.stand_down()
        deadline = time.monotonic() + grace
        try:
            while supervisor.unfinished and time.monotonic() < deadline:
                supervisor.watch(POLL_S)
        except WorkerFailed as error:
            return error
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
