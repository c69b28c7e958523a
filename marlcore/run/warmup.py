"""Compiles every kernel in advance, so that no first sample waits for the compiler."""

import logging
import time

import numpy as np

from ..kernels import columns, jit, policies, sumtree
from ..kernels.plan import COLUMN
from ..kernels.random import next_random
from ..notices import say
from ..queue import TrajectoryQueue
from ..replay import Hindsight, Prioritized, ReplayBuffer, Uniform
from ..spec import Field, TransitionSpec

log = logging.getLogger(__name__)


def compile_before_a_run() -> None:
    """Compiles the kernels if this machine never has; otherwise each learner would compile them without a notice."""
    cache = jit.cache_directory()
    if cache is None or (cache / jit.WARM).exists():
        return
    jit.announced()
    say(jit.FIRST_COMPILATION)
    log.info("the kernels are compiled, in %.1f s", warm_up())


def warm_up() -> float:
    """Compiles or loads all kernels; returns the seconds taken."""
    began = time.monotonic()
    spec = TransitionSpec(Field((2,)), Field((), "int64"))
    with ReplayBuffer.create(spec, 8) as replay:
        replay.unlink()  # at once: a signal in the half minute of compiling must leave no file behind
        with replay.writer() as writer:
            for _ in range(4):
                writer.add(np.zeros(2, np.float32), 0, 0.0)
        plain, prioritized = replay.sampler(2), replay.sampler(2, prioritized=Prioritized())
        assert isinstance(plain._rows.strategy, Uniform)
        plain._rows.strategy.draw_listed(plain._rows.memory(), np.arange(2))
        prioritized.update_priorities(prioritized.sample().index, [1.0, 2.0])
        prioritized.load_state_dict(prioritized.state_dict())
    goals = TransitionSpec({name: Field() for name in ("achieved_goal", "desired_goal")}, Field())
    with ReplayBuffer.create(goals, 8) as replay:
        replay.unlink()
        replay.sampler(2, hindsight=Hindsight(compute_reward=np.where))
    with TrajectoryQueue.create(spec, 8) as queue:
        queue.unlink()
        queue.reader(batch_size=1).close()
    next_random(np.ones(4, np.uint64))  # as preload_torch.py calls it
    # Kernels that drop-ins and algorithms call beside the replay
    bytes_, ints, floats = np.zeros(64, np.uint8), np.zeros(2, np.int64), np.zeros(2)
    columns.gather(np.zeros(1, COLUMN), 1, ints[:0], bytes_)
    offsets = sumtree.level_offsets(8)
    tree = np.ones(offsets[-1])
    sumtree.repair(tree, offsets, ints.copy(), 2)
    sumtree.repair(tree, offsets, ints.copy(), 2, True)
    sumtree.find(tree, offsets, floats, ints, 2)
    rows = [np.zeros(1, np.float32) for _ in range(7)]
    policies.trace(*rows[:4], np.zeros(1, np.bool_), rows[4], 1.0, 1.0, 1.0, *rows[5:])
    policies.draw_category(np.zeros((1, 1), np.float32), 0, 1, np.zeros(1), np.zeros(1, np.int64), rows[0])
    cache = jit.cache_directory()
    if cache is not None:
        (cache / jit.WARM).touch()
    return time.monotonic() - began
