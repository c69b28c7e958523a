"""The calls whose kernels `bench.instructions` counts: each stands between two stops (SIGSTOP), and is named before."""

import os
import signal
import sys
from collections.abc import Callable

import numpy as np

import marlcore as mc

from .transitions import VECTOR, spec_of

ROWS = 64


def main() -> None:
    priorities = np.random.default_rng(0).random(ROWS)
    many = np.zeros((ROWS, 4), np.float32), np.zeros(ROWS, np.int64), np.zeros(ROWS, np.float32)
    spec = spec_of(VECTOR)
    with mc.ReplayBuffer.create(spec, 4096) as replay, mc.TrajectoryQueue.create(spec, 4096) as queue:
        writer, sender, reader = replay.writer(), queue.writer(), queue.reader(batch_size=ROWS)
        for _ in range(100):
            writer.add_batch(*many)
        for _ in range(8):
            sender.add_batch(*many)
        preferring = replay.sampler(ROWS, seed=0, prioritized=mc.Prioritized())

        def prioritized() -> None:
            preferring.update_priorities(preferring.sample().index, priorities)

        calls: dict[str, Callable[[], object]] = {
            "sample 64": replay.sampler(ROWS, seed=0).sample,
            "sample 64, stack of 4, 3 steps": replay.sampler(ROWS, seed=0, stack=4, n_step=3).sample,
            "sample 8 windows of 8": replay.sampler(8, seed=0, sequence=mc.Sequence(8)).sample,
            "sample 64 by priority, and update": prioritized,
            "read 64 from a queue": reader.read,
        }
        for call in calls.values():
            for _ in range(3):
                call()
        for name, call in calls.items():
            sys.stdout.write(f"{name}\n")
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGSTOP)
            call()
            os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    main()
