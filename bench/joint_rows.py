"""`python -m bench.joint_rows`: a team's joint rows beside a lane for each of its members, 8 members in 64 copies.

Joint: a row holds all members' observations and actions at one step, and one call adds a row of each copy. Aligned:
each member has lanes of its own, so that a step takes a call for each member, and a batch of joint transitions must
gather the same steps of eight lanes. Times are CPU time of this thread, medians of `--repeats`.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from numpy.typing import NDArray

from marlcore import Field, ReplayBuffer, TransitionSpec

from .figures import four_digits

COPIES, MEMBERS, SIZE, BATCH = 64, 8, 16, 32
CAPACITY = 64 * 1024  # steps


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.joint_rows", description=__doc__.partition(":")[2].strip())
    parser.add_argument("--repeats", type=int, default=200)
    repeats = parser.parse_args().repeats
    figures = {"joint": joint(repeats), "aligned": aligned(repeats)}
    figures["aligned / joint"] = {name: figures["aligned"][name] / figures["joint"][name] for name in figures["joint"]}
    sys.stdout.write(json.dumps(four_digits(figures), indent=1) + "\n")


def joint(repeats: int) -> dict[str, float]:
    """The times of one step of all copies and of one batch, in microseconds, and the bytes of a step."""
    spec = TransitionSpec(obs=Field((MEMBERS, SIZE)), action=Field((MEMBERS,), "int64"))
    obs, action = _random(COPIES, MEMBERS, SIZE), np.zeros((COPIES, MEMBERS), np.int64)
    reward, ends = np.zeros(COPIES, np.float32), np.zeros(COPIES, np.bool_)
    with ReplayBuffer.create(spec, CAPACITY, COPIES) as replay, replay.vector_writer() as writer:
        add = _timed(lambda: writer.add(obs, action, reward, ends), max(repeats, 2 * BATCH))
        sampler = replay.sampler(BATCH, seed=0)
        return {"add": add, "sample": _timed(sampler.sample, repeats), "bytes": replay.nbytes / CAPACITY}


def aligned(repeats: int) -> dict[str, float]:
    """The same, where the batch is eight of the members' own, of the same steps."""
    spec = TransitionSpec(obs=Field((SIZE,)), action=Field((), "int64"))
    obs, action = _random(COPIES, SIZE), np.zeros(COPIES, np.int64)
    reward, ends = np.zeros(COPIES, np.float32), np.zeros(COPIES, np.bool_)
    lanes = COPIES * MEMBERS
    with ReplayBuffer.create(spec, CAPACITY * MEMBERS, lanes) as replay:
        writers = [replay.vector_writer(range(member * COPIES, (member + 1) * COPIES)) for member in range(MEMBERS)]

        def add() -> None:
            for writer in writers:
                writer.add(obs, action, reward, ends)

        adding = _timed(add, max(repeats, 2 * BATCH))
        samplers = [replay.sampler(BATCH, seed=member) for member in range(MEMBERS)]

        def sample() -> None:  # a batch of each member, without the search for rows of the same steps
            for sampler in samplers:
                sampler.sample()

        row = {"add": adding, "sample": _timed(sample, repeats), "bytes": replay.nbytes / CAPACITY}
        for writer in writers:
            writer.close()
        return row


def _random(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _timed(call: Callable[[], object], repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        began = time.thread_time_ns()
        call()
        times.append(time.thread_time_ns() - began)
    return median(times) / 1000


if __name__ == "__main__":
    main()
